"""Which equations are calls, told by what they are, and the user's ``jax.checkpoint`` regions dissolved.

In: an equation. Out: the jaxpr that it calls, or that may be written out in its place, or None. In: a ``scan``. Out:
the same scan, whose body computes the same without ``jax.checkpoint``, so that it is planned anew like regions outside
of scans (which ``graph.flatten`` inlines).

What calls share are the types, whoever made their primitives; which of them run a jaxpr once, only JAX's own names tell
(``_compat.INLINE_CALLS``).

Limits: regions inside branches (``cond``), ``while`` loops and custom derivatives stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

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


def holds_remat(jaxpr: Any) -> bool:
    """Tell whether a jaxpr has a checkpointed region, at the top, in calls that are inlined or in scans."""
    opened, _ = _compat.open_jaxpr(jaxpr)
    for eqn in opened.eqns:
        if _compat.checkpointed_jaxpr(eqn) is not None:
            return True
        inner = eqn.params["jaxpr"] if eqn.primitive.name == "scan" else inlinable(eqn)
        if inner is not None and holds_remat(inner):
            return True
    return False


def dissolved(eqn: Any) -> Any:
    """Return a scan without checkpointed regions in its body."""
    body, consts = _compat.open_jaxpr(eqn.params["jaxpr"])
    structs = [_compat.struct(v.aval) for v in body.invars]
    made = jax.make_jaxpr(lambda *args: evaluate(body, consts, args))(*structs)
    return eqn.replace(params={**eqn.params, "jaxpr": made})


def evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Run an open jaxpr on values, with what checkpointed regions and inlined calls hold in their place."""

    def run(eqn: Any, values: Sequence[Any]) -> list[Any]:
        inner = _compat.checkpointed_jaxpr(eqn)
        if inner is None and (call := inlinable(eqn)) is not None and holds_remat(call):
            inner = call
        if inner is not None:
            return evaluate(*_compat.open_jaxpr(inner), values)
        is_scan = eqn.primitive.name == "scan" and holds_remat(eqn.params["jaxpr"])
        return _compat.bind(dissolved(eqn) if is_scan else eqn, values)

    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    return _compat.run_equations(jaxpr.eqns, env, jaxpr.outvars, run)
