"""Which equations are calls, told by what they are.

In: an equation. Out: the jaxpr that it calls, or that may be written out in its place, or None.

What calls share are the types, whoever made their primitives; which of them run a jaxpr once, only JAX's own names tell
(``_compat.INLINE_CALLS``).
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

    Such a call is one of JAX's own, and has nothing that would be lost: a ``jit`` has no shardings. A primitive of
    somebody else may run its jaxpr twice or not at all, whatever its types are, so it stays whole.
    """
    if eqn.primitive.name not in _compat.INLINE_CALLS or _compat.has_shardings(eqn):
        return None
    return _compat.call_jaxpr(eqn)
