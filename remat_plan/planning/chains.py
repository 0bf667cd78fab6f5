"""The chain problem made of the options.

In: ``Graph``, ``Cuts``, ``Options``. Out: the ``ChainProblem`` for ``solve.chain``.
"""

from __future__ import annotations

from remat_plan.graph.records import Graph
from remat_plan.planning.cuts import Cuts
from remat_plan.planning.options import Options, SegmentOption
from remat_plan.planning.runs import Run
from remat_plan.solve.chain import ChainProblem, RunOption


def _crossing_bytes(graph: Graph, cuts: Cuts, run: Run, start: int, end: int) -> int:
    """Bytes of cotangents that wait while a run's backward pass works: values that pass it by."""
    touched = set(run.reads)
    passing = cuts.frontiers[start] & cuts.frontiers[end]
    return sum(graph.values[v].size_bytes for v in passing if v not in touched and graph.active[v])


def _frontier_spans(graph: Graph, cuts: Cuts) -> tuple[tuple[tuple[int, int], ...], ...]:
    last: dict[int, int] = {}
    for number, frontier in enumerate(cuts.frontiers):
        for v in frontier:
            last[v] = number
    return tuple(tuple((graph.values[v].size_bytes, last[v]) for v in sorted(frontier)) for frontier in cuts.frontiers)


def _run_option(option: SegmentOption, crossing: int) -> RunOption:
    transient = max(option.forward_bytes, option.backward_bytes + crossing)
    return RunOption(option.kept_bytes, transient, option.seconds, option.seconds if option.repeats else 0.0)


def make_problem(graph: Graph, cuts: Cuts, options: Options) -> ChainProblem:
    """Return the chain problem of a program."""
    n = len(cuts.positions) - 1
    classes: dict[object, int] = {}
    rows, block_classes, forward, may_nest = [], [], [], []
    ends: list[list[int]] = [[] for _ in range(n)]
    for s, e in options.profiles:
        ends[s].append(e)
    for s in range(n):
        row = []
        for e in ends[s]:
            profile, run = options.profiles[s, e], options.runs[s, e]
            crossing = _crossing_bytes(graph, cuts, run, s, e)
            row.append((e, tuple(_run_option(o, crossing) for o in profile.options)))
            if e == s + 1:
                passing = sum(graph.values[v].size_bytes for v in cuts.frontiers[e])
                key = (run.signature, crossing, passing, e == n)
                block_classes.append(classes.setdefault(key, len(classes)))
                forward.append(profile.forward_seconds)
                may_nest.append(profile.nestable)
        rows.append(tuple(row))
    return ChainProblem(
        block_classes=tuple(block_classes),
        runs=tuple(rows),
        frontiers=_frontier_spans(graph, cuts),
        forward_seconds=tuple(forward),
        may_nest=tuple(may_nest),
    )
