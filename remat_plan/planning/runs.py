"""Runs of blocks as problems in local numbers.

In: ``Graph``, ``Cuts``, ``Hardware``. Out: ``Run`` for any two cuts: its equations, what it reads from outside,
what leaves it, the ``SegmentProblem`` for the minimum cut, and a signature that is equal for equal runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.launches import slow_elements
from remat_plan.cost.memory import region_cost
from remat_plan.cost.rules import Kind, called, eqn_flops, kind_of
from remat_plan.cost.work import work_class
from remat_plan.graph.action import SAVE, action_of
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.structure import structure_of
from remat_plan.graph.uses import residuals
from remat_plan.graph.ways import Segment, Way
from remat_plan.planning.cuts import Cuts
from remat_plan.planning.limits import NO_LIMITS, Limits
from remat_plan.solve.min_cut import Offer, SegmentProblem, Selection

Actions = tuple[tuple[int, str], ...]
"""(value, action) of the values that are kept."""

MERGE = 4
"""The most blocks that one segment may span by itself (nesting spans more)."""

_MOST_BLOCKS = 4 * MERGE
"""The most blocks that one segment may span from one major cut to another: so many minor cuts are between them."""

SMALL_SHARE = 1e-3
"""Values at most this share of a run's largest value are saved for nothing."""

_TINY_SECONDS = 1e-13


@dataclass(frozen=True, slots=True)
class Run:
    """The equations between two cuts.

    Attributes:
        ops: numbers of its operations (free ones left out).
        reads: values from outside that it reads, in order of first use.
        leaves: values made inside that are used after it.
        values: values made inside, in order; position = local number.
        crosses: values from outside that it reads and that are used after it too.
        free: operations outside that depend on literals only; the run makes its own copy of them.
        signature: equal for runs of equal work in equal roles.
        limits: what the user wants kept or recomputed.
    """

    ops: tuple[int, ...]
    reads: tuple[int, ...]
    leaves: tuple[int, ...]
    values: tuple[int, ...]
    crosses: tuple[int, ...]
    free: frozenset[int]
    signature: tuple[Any, ...]
    limits: Limits = NO_LIMITS

    def segment(self, way: Way) -> Segment:
        """Its operations, and what is between them, run in a way that is in its own numbers."""
        start, end = (self.ops[0], self.ops[-1] + 1) if self.ops else (0, 0)
        return Segment(start, end, way.moved(-start, dict(enumerate(self.values))))


def op_seconds(graph: Graph, hardware: Hardware) -> list[float]:
    """Return what running each operation once more costs, in seconds.

    Element-wise work is charged its arithmetic, and its output only where something reads it from memory (a
    matrix product, say): the rest is computed inside its consumer's kernel.
    """
    kinds = [kind_of(op.eqn) for op in graph.ops]
    materialised = [False] * len(graph.values)
    for op, kind in zip(graph.ops, kinds, strict=True):
        if kind >= Kind.OPAQUE:
            for v in op.reads:
                materialised[v] = True
    return [_seconds(graph, op, kind, hardware, materialised) for op, kind in zip(graph.ops, kinds, strict=True)]


def _seconds(graph: Graph, op: Op, kind: Kind, hardware: Hardware, materialised: list[bool]) -> float:
    if kind == Kind.ALIAS:
        return _TINY_SECONDS
    if kind == Kind.REGION:
        return _TINY_SECONDS + region_cost(op.eqn, hardware).seconds
    if kind == Kind.OPAQUE and called(op.eqn) is not None:
        inner = region_cost(op.eqn, hardware)
        if inner.matrix_flops:  # a function with a derivative of its own: not one class of work
            return _TINY_SECONDS + inner.seconds
    flops = eqn_flops(op.eqn)
    read = sum(graph.values[v].size_bytes for v in op.reads)
    written = sum(graph.values[v].size_bytes for v in op.outputs)
    compute = hardware.work_seconds(work_class(op.eqn), flops)
    if kind in (Kind.CHEAP, Kind.EXPENSIVE):
        if not any(materialised[v] for v in op.outputs):
            return _TINY_SECONDS + compute
        read = 0
    slow = slow_elements(op.eqn, kind, read, written)
    return _TINY_SECONDS + hardware.kernel_seconds(compute, read + written, elements=slow)


def make_run(graph: Graph, cuts: Cuts, start: int, end: int) -> Run:
    """Return the run between cuts ``start`` and ``end`` (numbers of cuts)."""
    ops = tuple(i for i in range(cuts.positions[start], cuts.positions[end]) if i not in cuts.free)
    after = cuts.frontiers[end]
    local: dict[int, int] = {}
    outside: dict[int, int] = {}
    free: dict[int, int] = {}
    rows: list[Any] = []
    for index in ops:
        op = graph.ops[index]
        operands = []
        for v in op.operands:
            if v < 0:
                operands.append(-1)
            elif v in local:
                operands.append(local[v])
            elif graph.values[v].producer in cuts.free:
                free.setdefault(v, len(free))
                operands.append(("free", graph.alike[graph.ops[graph.values[v].producer].kind]))
            else:
                number = outside.setdefault(v, len(outside))
                operands.append(("in", number, v in after, graph.values[v].producer >= 0))
        for v in op.outputs:
            local[v] = len(local)
        rows.append((graph.alike[op.kind], tuple(operands), op.differentiated, tuple(v in after for v in op.outputs)))
    limits = cuts.limits
    if limits != NO_LIMITS:
        rows.append(tuple((i in limits.fixed, i in limits.pinned, i in limits.whole) for i in ops))
        rows.append(tuple(v in limits.forbidden for v in local))
        rows.append(limits.unsplit.isdisjoint(ops))
    values = tuple(local)
    return Run(
        ops=ops,
        reads=tuple(outside),
        leaves=tuple(v for v in values if v in after),
        values=values,
        crosses=tuple(v for v in outside if v in after),
        free=cuts.free,
        signature=tuple(rows),
        limits=limits,
    )


def find_runs(graph: Graph, cuts: Cuts, merge: int = MERGE) -> dict[tuple[int, int], Run]:
    """Return the runs of up to ``merge`` blocks, or blocks between major cuts, by the numbers of their cuts.

    What stays outside of segments, and a structure, are runs by themselves only.
    """
    n = len(cuts.positions) - 1
    major_runs = _major_runs(cuts, merge)
    found: dict[tuple[int, int], Run] = {}
    for s in range(n):
        near = range(s + 1, min(s + merge, n) + 1)
        for e in [*near, *[e for e in major_runs.get(s, []) if e not in near]]:
            run = make_run(graph, cuts, s, e)
            if e > s + 1 and (stays_plain(graph, run) or _runs_structure(graph, run)):
                break
            found[s, e] = run
    return found


def _major_runs(cuts: Cuts, merge: int) -> dict[int, list[int]]:
    """Return per major cut those that follow it, up to ``merge`` of them, and not too many blocks away.

    So what can be one segment does not depend on how many minor cuts there are in it.
    """
    majors = sorted(cuts.major)
    return {s: [e for e in majors[i + 1 : i + 1 + merge] if e <= s + _MOST_BLOCKS] for i, s in enumerate(majors)}


def stays_plain(graph: Graph, run: Run) -> bool:
    """Tell whether a run must stay outside any segment: an equation with an effect, or a user's constraint."""
    return any(i in graph.apart or i in run.limits.pinned for i in run.ops)


def _runs_structure(graph: Graph, run: Run) -> bool:
    """Tell whether a structure that can be planned is among the operations of a run."""
    return any(structure_of(graph.ops[i]) is not None for i in run.ops)


def segment_problem(graph: Graph, run: Run, seconds: list[float], avoid_small: bool = False) -> SegmentProblem:
    """Return the minimum-cut problem of a run.

    Values that leave it are stored anyway, so saving them is free. Values far smaller than the largest of the
    run (means, variances) would only multiply the options: saving them is free too, or, with ``avoid_small``,
    they are never saved (where the compiler makes them inside the kernel that uses them, but would write a
    saved one to memory again at the size of what it is broadcast to).
    """
    local = {v: i for i, v in enumerate(run.values)}
    least = max((graph.values[v].size_bytes for v in run.values), default=0) * SMALL_SHARE
    small = {v for v in run.values if graph.values[v].size_bytes <= least}
    stored = set(run.leaves) if avoid_small else set(run.leaves) | small
    return SegmentProblem(
        op_inputs=tuple(tuple(local[v] for v in graph.ops[i].reads if v in local) for i in run.ops),
        op_outputs=tuple(tuple(local[v] for v in graph.ops[i].outputs) for i in run.ops),
        op_seconds=tuple(seconds[i] for i in run.ops),
        value_bytes=tuple(0 if v in stored else graph.values[v].size_bytes for v in run.values),
        saveable=tuple(
            hasattr(graph.values[v].aval, "shape")
            and v not in run.limits.forbidden
            and not (avoid_small and v in small - set(run.leaves) and graph.values[v].producer not in run.limits.fixed)
            for v in run.values
        ),
        needed=frozenset({local[v] for i in run.ops for v in residuals(graph, graph.ops[i]) if v in local}),
        fixed=frozenset(n for n, i in enumerate(run.ops) if i in run.limits.fixed),
    )


def planned_problem(rules: Rules, run: Run, seconds: list[float]) -> SegmentProblem:
    """Return ``segment_problem`` as plans are made by it: with the habits of the backend, and all actions allowed."""
    problem = segment_problem(rules.graph, run, seconds, avoid_small=bool(rules.backend.of("library")))
    offers = tuple([_offer(rules, run, problem, name) for name in run.limits.priced])
    return replace(problem, offers=offers)


def _offer(rules: Rules, run: Run, problem: SegmentProblem, name: str) -> Offer:
    """An action for the values of a run; what it does not take, or is there anyway, costs what it does as it is."""
    action, rows = action_of(name), []
    for v, size in zip(run.values, problem.value_bytes, strict=True):
        gains = size > 0 and action.takes(rules.graph.values[v].aval)
        rows.append((action.device_bytes(size), 2 * action.seconds(size, rules.hardware)) if gains else (size, 0.0))
    return Offer(*zip(*rows, strict=True)) if rows else Offer((), ())


def actions_of(run: Run, selection: Selection) -> Actions:
    """Return what a selection saves, in numbers of the run, with the names of the actions."""
    names = SAVE, *run.limits.priced
    return tuple([(v, names[k]) for v, k in selection.actions])
