"""The lower bound that a plan is compared with.

In: ``Rules``, ``Cuts``, the plain ``Timeline``, bytes on the device. Out: the overhead that no schedule goes below, of
those that run nothing in slices.

At any instant of the backward pass, what is needed after it and not in memory runs again after it. So each instant at
which something is known to be in memory gives a bound: the least seconds of what must run again when the rest of the
budget is filled as well as can be (``solve.min_cut``). Instants are the beginning of the backward pass, and those at
which a large product is differentiated: its cotangent and the gradient that it makes are there then, and all that is
made into its operand is differentiated later. The largest bound counts.

What makes it a bound for every such schedule, whatever the compiler fuses or reorders:

* Only what the backend never fuses is charged, products by their arithmetic: element-wise work may cost nothing.
* A residual that plain JAX makes of others (``1 - y*y`` of tanh) may be kept in their place; where it is smaller than
  they are, they do not count as needed.
* Temporaries may live in outputs that are not written yet: one at a time in each, and none that is larger than it.
* Inside a loop only what depends on what is carried is counted, times the trip count: the rest may be made once.

It is no bound for schedules with split segments. In slices, neither what is needed later nor the cotangent and gradient
of a large product is ever there whole, and where a gradient is made in the forward pass nothing runs again.

Limits: seconds of one visit of each equation after each instant; nested schedules may need more. Nothing is known of
the inside of branches, and of loops in loops.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.cost.memory import Timeline, region_cost
from remat_plan.cost.rules import Kind
from remat_plan.graph.action import action_of
from remat_plan.graph.records import MATRIX_PRIMITIVES, Graph, Op
from remat_plan.graph.structure import Trips, holds_structure, structure_of
from remat_plan.graph.uses import residuals
from remat_plan.planning.cuts import Cuts, find_cuts
from remat_plan.planning.limits import NO_LIMITS
from remat_plan.planning.runs import Run, make_run, op_seconds, segment_problem
from remat_plan.solve.min_cut import SegmentProblem, joined, recompute_bound

_INSTANTS = 4
"""So many products are looked at, those that are differentiated first among the larger and larger ones."""


def least_overhead(rules: Rules, cuts: Cuts, plain: Timeline, budget_bytes: int) -> float:
    """Return the overhead that no schedule without slices can go below within a budget.

    Args:
        rules, cuts: of the program.
        plain: its timeline without recomputation.
        budget_bytes: bytes on the device, arguments and results among them.
    """
    if plain.seconds <= 0 or plain.peak_bytes <= budget_bytes:
        return 0.0
    graph = rules.graph
    limits = dataclasses.replace(NO_LIMITS, actions=cuts.limits.actions)
    run = make_run(graph, dataclasses.replace(cuts, limits=limits), 0, len(cuts.positions) - 1)
    problem = certificate_problem(rules, run)
    room = budget_bytes - plain.argument_bytes - plain.output_bytes + lent_bytes(rules)
    best = recompute_bound(problem, max(room, 0.0))
    local = {v: i for i, v in enumerate(run.values)}
    for held, later in instants(rules):
        needed = {local[v] for op in later for v in surely_needed(graph, op) if v in local}
        after = dataclasses.replace(problem, needed=problem.needed & needed)
        best = max(best, recompute_bound(after, max(room - held, 0.0)))
    return best / plain.seconds


def certificate_problem(rules: Rules, run: Run) -> SegmentProblem:
    """Return the whole program as one minimum-cut problem, with the steps of its loops beside it.

    The user's constraints are left out: a bound without them holds with them too. A value counts as many bytes as the
    action that keeps the fewest, for nothing.
    """
    graph, actions = rules.graph, run.limits.actions
    problem = segment_problem(graph, run, _charged_seconds(rules))
    local = {v: i for i, v in enumerate(run.values)}
    needed = {local[v] for op in graph.ops for v in surely_needed(graph, op) if v in local}
    sizes = [_least_bytes(graph, v, b, actions) for v, b in zip(run.values, problem.value_bytes, strict=True)]
    problem = dataclasses.replace(problem, needed=frozenset(needed), value_bytes=tuple(sizes))
    for trips in () if graph.is_region else _loops(graph):
        problem = joined(problem, _step_problem(rules.inside(trips.body), trips, actions))
    return problem


def _loops(graph: Graph) -> list[Trips]:
    """The loops of a program."""
    structures = [(structure_of(op), op) for op in graph.ops]
    found = [structure.loop(graph, op) for structure, op in structures if structure is not None]
    return [trips for trips in found if trips is not None]


def _least_bytes(graph: Graph, value: int, size_bytes: int, actions: Sequence[str]) -> int:
    """The fewest bytes on the device that keep a value: as it is, or by an action."""
    allowed = [action for name in actions if (action := action_of(name)).takes(graph.values[value].aval)]
    return min([size_bytes, *(action.device_bytes(size_bytes) for action in allowed)])


def _step_problem(rules: Rules, trips: Trips, actions: tuple[str, ...]) -> SegmentProblem:
    """All steps of a loop as one: equal steps share what may be kept in equal parts.

    What goes into a step is there for nothing, so no step waits for another. What it hands on has to be kept like any
    other value, but for the last step's (``lent_bytes``).
    """
    graph, count = rules.graph, trips.count
    cuts = find_cuts(graph, dataclasses.replace(NO_LIMITS, actions=actions))
    run = make_run(graph, cuts, 0, len(cuts.positions) - 1)
    problem = certificate_problem(rules, run)
    changing = {before for before, _ in trips.carried}
    for op in graph.ops:
        if not changing.isdisjoint(op.reads):
            changing.update(op.outputs)
    handed = {v for _, v in trips.carried if graph.outputs.count(v) == 1}
    pairs = zip(run.values, problem.value_bytes, strict=True)
    sizes = [_least_bytes(graph, v, graph.values[v].size_bytes, actions) if v in handed else b for v, b in pairs]
    moves = [not changing.isdisjoint(graph.ops[i].outputs) for i in run.ops]
    return dataclasses.replace(
        problem,
        value_bytes=tuple(count * b if v in changing else 0 for v, b in zip(run.values, sizes, strict=True)),
        op_seconds=tuple(count * s if m else 0.0 for s, m in zip(problem.op_seconds, moves, strict=True)),
    )


def _charged_seconds(rules: Rules) -> list[float]:
    """What running each equation again costs at least.

    A product may be one kernel with what is around it, so it is charged its arithmetic alone, also inside what is only
    called. Of a structure that is planned inside, any part may run again.
    """
    hardware = rules.hardware
    fastest = max(hardware.matrix_flops, *hardware.rates.values(), 0.0)
    charged = []
    for op, alone in zip(rules.graph.ops, op_seconds(rules.graph, hardware), strict=True):
        facts = rules.facts.of(op.eqn)
        if structure_of(op) is not None:
            charged.append(0.0)
        elif op.primitive in MATRIX_PRIMITIVES:
            charged.append(hardware.work_seconds(facts.work, facts.flops))
        elif facts.inner is not None:
            charged.append(region_cost(op.eqn, hardware).matrix_flops / fastest)
        else:
            charged.append(alone if facts.kind in (Kind.OPAQUE, Kind.REGION) else 0.0)
    return charged


def surely_needed(graph: Graph, op: Op) -> list[int]:
    """Return the values that must be there when an equation is differentiated, whatever is kept in their place."""
    if not op.differentiated:
        return []
    need = graph.needs[op.kind]
    places = {"in": op.operands, "out": op.outputs}
    direct = [places[side][i] for side, i in need.direct]
    walked = {*residuals(graph, op)}.difference(direct)
    replaced = need.internal_bytes < sum(graph.values[v].size_bytes for v in walked)
    return [v for v in (*direct, *(() if replaced else walked)) if v >= 0]


def lent_bytes(rules: Rules) -> int:
    """Return how many bytes of what the problem counts may be kept beside the temporaries.

    In the memory of outputs before it is written, one value at a time in each; rows that a loop stacks come in any
    number. And what the last step of a loop hands on, which may be an output itself.
    """
    graph = rules.graph
    handed = sum(trips.carry_bytes for trips in _loops(graph))
    if not rules.backend.reuses_outputs:
        return handed
    gradients = [graph.values[v].size_bytes for v in graph.differentiated_inputs]
    outputs = gradients + [_compat.aval_bytes(aval) for aval in graph.output_avals]
    if holds_structure(graph):
        return sum(outputs) + handed
    sizes = sorted({0, *(v.size_bytes for v in graph.values if v.producer >= 0)})
    return sum(sizes[bisect_right(sizes, size) - 1] for size in outputs)


def instants(rules: Rules) -> Iterator[tuple[int, list[Op]]]:
    """Yield the bytes that are surely there while a product is differentiated, and what is differentiated after it.

    Where products compute their operands on the way in, or write what is computed behind them, nothing is sure.
    """
    graph, backend = rules.graph, rules.backend
    if any(rule(name) for rule in backend.of("takes_in") for name in MATRIX_PRIMITIVES):
        return
    apart = {name for name in MATRIX_PRIMITIVES if not any(rule(name, "add") for rule in backend.of("follows"))}
    largest = found = 0
    for op in reversed(graph.ops):
        if op.primitive not in apart or not op.differentiated:
            continue
        reached = graph.needs[op.kind].reached
        made = [v for v, r in zip(op.operands, reached, strict=True) if r and v >= 0 and graph.values[v].producer >= 0]
        held = sum(graph.values[v].size_bytes for v in (op.outputs[0], *made[:1]))
        if made and held > largest and found < _INSTANTS:
            largest, found = held, found + 1
            yield held, _sources(graph, made[0])


def _sources(graph: Graph, value: int) -> list[Op]:
    """The equations that a value is made by, as far as cotangents go back."""
    wanted = {value}
    found = []
    for op in reversed(graph.ops):
        if not wanted.isdisjoint(op.outputs):
            found.append(op)
            moving = zip(op.operands, op.active, strict=True)
            wanted.update(v for v, active in moving if active and v >= 0)
    return found
