"""What JAX itself makes of a primitive on its way to the compiler.

In: an equation and a platform. Out: a jaxpr of the equation's operands, or None where JAX has no such function.

A primitive that a backend has no operation for (``ragged_dot`` and ``cumsum`` on a CPU, ``scaled_dot``, polynomials,
linear solves) is lowered by tracing a function, so that function is the truth about its bytes and FLOPs. On a CPU a
product of matrices that is none to XLA is written as the multiplication and sum that it makes of it.

Limits: XLA:GPU does that too, but what it leaves of the associative scans that such products are in is not known: with
this rule the peak of a Mamba came out 13 points further off there.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.cost.flops import dot_shape

_LOG = logging.getLogger("remat_plan")


def lowered_jaxpr(eqn: Any, platform: str = "") -> Any | None:
    """Return what is compiled in place of an equation; ``platform=""`` asks for the rule that all platforms share."""
    fun = _multiplied if platform == "cpu" and _is_elementwise(eqn) else _compat.lowering_function(eqn, platform)
    avals = [a.aval for a in eqn.invars]
    if fun is None or not all(hasattr(a, "shape") and not _compat.is_ref(a) for a in avals):
        return None
    given = (fun, tuple(map(_compat.struct, avals)), tuple(eqn.params.items()), _compat.trace_context())
    try:
        return _traced(*given)
    except TypeError:  # parameters that cannot be hashed
        return _traced.__wrapped__(*given)


def _is_elementwise(eqn: Any) -> bool:
    """Tell whether a product sums nothing, or repeats no element: a multiplication (``AlgebraicSimplifier``)."""
    if eqn.primitive.name != "dot_general":
        return False
    batch, rows, columns, depth = dot_shape(eqn)
    return depth == 1 or (rows == columns == 1 and batch * depth > 0)


def _multiplied(left: Any, right: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    """A product as a multiplication and a sum."""
    contract, batch = dimension_numbers
    sides = []
    for place, value in enumerate((left, right)):
        free = [d for d in range(value.ndim) if d not in (*contract[place], *batch[place])]
        shape = [[value.shape[d] for d in dims] for dims in (batch[place], free, contract[place])]
        sides.append((value.transpose(*batch[place], *free, *contract[place]), *shape))
    (a, batched, rows, summed), (b, _, columns, _) = sides
    a = a.reshape(*batched, *rows, *[1] * len(columns), *summed)
    b = b.reshape(*batched, *[1] * len(rows), *columns, *summed)
    product = a * b
    return product.sum(range(product.ndim - len(summed), product.ndim)) if summed else product


@functools.lru_cache(maxsize=512)
def _traced(fun: Callable[..., Any], structs: Any, params: tuple[tuple[str, Any], ...], _context: Any) -> Any | None:
    try:
        return jax.make_jaxpr(functools.partial(fun, **dict(params)))(*structs)
    except Exception:  # JAX's rule may raise anything for cases it is not for; the compiler will refuse them too
        _LOG.debug("a lowering rule cannot be traced: the cost of its equation is guessed", exc_info=True)
        return None
