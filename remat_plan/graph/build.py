"""From a function to its ``Graph``.

In: a closed jaxpr, which of its arguments are differentiated, which of its outputs a cotangent is given to.
Out: ``Graph`` with activity (what carries tangents and cotangents) and needs per class of equal equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_plan import _compat
from remat_plan.graph.flatten import Flat, flatten, substituted
from remat_plan.graph.merge import merge_equal, sink_views
from remat_plan.graph.records import Graph, Op, Value
from remat_plan.graph.tell import loses_effects, told_behind
from remat_plan.graph.walks import Derivatives, differentiate


def _differentiated(
    flat: Flat, inputs: set[int], wanted: Sequence[bool] | None, keep_remat: bool
) -> tuple[Flat, Derivatives]:
    """Differentiate a program; where a loop would lose effects by it, they are put behind the loop."""
    outputs = {o for i, o in enumerate(flat.outputs) if wanted is None or wanted[i]}
    found = differentiate(flat, inputs, outputs)
    hit = [any(found.needs[kind].active_outputs) for kind in found.kinds]
    losing = [i for i, item in enumerate(flat.eqns) if hit[i] and loses_effects(item.eqn)]
    if not losing:
        return flat, found
    bodies = {i: told_behind(flat.eqns[i].eqn) for i in losing}
    return _differentiated(substituted(flat, bodies, keep_remat), inputs, wanted, keep_remat)


def build(
    closed: Any,
    differentiated: tuple[bool, ...],
    keep_remat: bool = False,
    merge: bool = True,
    wanted: Sequence[bool] | None = None,
) -> Graph:
    """Build the graph of a closed jaxpr on flat arguments.

    ``keep_remat`` leaves the user's own ``jax.checkpoint`` regions whole, ``merge`` takes equal equations as one.
    ``wanted``: which outputs a cotangent is given to; by default every one of floating point.
    """
    flat = flatten(_compat.without_dead_results(closed), keep_remat)
    count = len(flat.eqns)
    if merge:
        flat = merge_equal(flat)
    merged = count - len(flat.eqns)
    flat = sink_views(flat)
    inputs = tuple(v for v, d in zip(flat.inputs, differentiated, strict=True) if d)
    flat, found = _differentiated(flat, set(inputs), wanted, keep_remat)
    producer = [-1] * len(flat.avals)
    names = [""] * len(flat.avals)
    ops = []
    for index, (item, kind, active) in enumerate(zip(flat.eqns, found.kinds, found.active, strict=True)):
        for o in item.outputs:
            producer[o] = index
            if item.eqn.primitive.name == "name":
                names[o] = str(item.eqn.params.get("name", ""))
        hit = any(found.needs[kind].active_outputs)
        ops.append(Op(index, item.eqn, item.operands, item.outputs, active, hit, kind, _compat.runs_once(item.eqn)))
    read = {o for item in flat.eqns for o in item.operands}.union(flat.outputs)
    values = tuple(Value(i, aval, _compat.aval_bytes(aval), producer[i], names[i]) for i, aval in enumerate(flat.avals))
    return Graph(
        ops=tuple(ops),
        values=values,
        inputs=flat.inputs,
        differentiated_inputs=inputs,
        constants=tuple(flat.constants),
        literals=tuple(flat.literals),
        outputs=flat.outputs,
        output_avals=tuple([atom.aval for atom in _compat.open_jaxpr(closed)[0].outvars]),
        wanted=found.moving.intersection([o for i, o in enumerate(flat.outputs) if wanted is None or wanted[i]]),
        needs=found.needs,
        alike=found.alike,
        active=tuple(i in found.reached for i in range(len(flat.avals))),
        moving=tuple(i in found.moving for i in range(len(flat.avals))),
        apart=frozenset(op.index for op in ops if op.effectful and not read.isdisjoint(op.outputs)),
        keep_remat=keep_remat,
        merged=merged,
    )
