"""The user's ``jax.checkpoint`` regions inside the bodies of scans, dissolved.

In: a ``scan`` equation. Out: the same scan, whose body computes the same without ``jax.checkpoint``, so that it is
planned anew like regions outside of scans (which ``graph.flatten`` inlines).

Limits: regions inside branches (``cond``), ``while`` loops and custom derivatives stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.calls import inlinable


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
