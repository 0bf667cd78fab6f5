"""Which equations are calls, told by what they are.

In: an equation. Out: the jaxpr that it calls, or None.

JAX renames its call primitives (``closed_call``, ``core_call``, ``eval_jaxpr``), and users make their own; what they
share are the types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_plan import _compat


def called_jaxpr(eqn: Any) -> Any | None:
    """Return the jaxpr that an equation runs on just its operands, giving just its results; None without one.

    It is found by its types, whatever the primitive and the parameter are called. That it runs *once* they do not
    tell: the body of a loop that only carries values has the same types.
    """
    operands, results = _array_types(eqn.invars), _array_types(eqn.outvars)
    fits = []
    for sub in _compat.sub_jaxprs(eqn.params):
        inner, _ = _compat.open_jaxpr(sub)
        if _array_types(inner.invars) == operands and _array_types(inner.outvars) == results:
            fits.append(sub)
    return fits[0] if len(fits) == 1 else None


def _array_types(atoms: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(getattr(a.aval, "shape", None), getattr(a.aval, "dtype", None)) for a in atoms]


def inlinable(eqn: Any) -> Any | None:
    """Return the jaxpr of a call that may be written out in its place, or None.

    Such a call has nothing that would be lost: no shardings, no derivative rules, no name that a compiler knows.
    So it is a ``jit`` without shardings, or a primitive with no parameter but its jaxpr.
    """
    if eqn.primitive.name in _compat.INLINE_CALLS:
        return None if _compat.has_shardings(eqn) else _compat.call_jaxpr(eqn)
    return called_jaxpr(eqn) if len(eqn.params) == 1 else None
