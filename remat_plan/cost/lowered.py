"""What JAX itself makes of a primitive on its way to the compiler.

In: an equation and a platform. Out: a jaxpr of the equation's operands, or None where JAX has no such function.

A primitive that a backend has no operation for (``ragged_dot`` and ``cumsum`` on a CPU, ``scaled_dot``, polynomials,
linear solves) is lowered by tracing a function, so that function is the truth about its bytes and FLOPs.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax

from remat_plan import _compat

_LOG = logging.getLogger("remat_plan")


def lowered_jaxpr(eqn: Any, platform: str = "") -> Any | None:
    """Return what is compiled in place of an equation; ``platform=""`` asks for the rule that all platforms share."""
    fun = _compat.lowering_function(eqn, platform)
    avals = [a.aval for a in eqn.invars]
    if fun is None or not all(hasattr(a, "shape") and not _compat.is_ref(a) for a in avals):
        return None
    given = (fun, tuple(map(_compat.struct, avals)), tuple(eqn.params.items()), _compat.trace_context())
    try:
        return _traced(*given)
    except TypeError:  # parameters that cannot be hashed
        return _traced.__wrapped__(*given)


@functools.lru_cache(maxsize=512)
def _traced(fun: Callable[..., Any], structs: Any, params: tuple[tuple[str, Any], ...], _context: Any) -> Any | None:
    try:
        return jax.make_jaxpr(functools.partial(fun, **dict(params)))(*structs)
    except Exception:  # JAX's rule may raise anything for cases it is not for; the compiler will refuse them too
        _LOG.debug("a lowering rule cannot be traced: the cost of its equation is guessed", exc_info=True)
        return None
