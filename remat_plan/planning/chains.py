"""The chain problems made of the options.

In: ``Graph``, ``Cuts``, ``Options``. Out: one or two ``ChainProblem`` for ``solve.chain``.

Left outside a segment, a block may compute things for its backward pass that depend on arguments only. The
compiler runs them at the start of the program, so they are there during the forward passes of the blocks before
it too, where the peak may be if the block is the last one (the loss). The dynamic program cannot see that far
ahead, so there are two chains where it matters: one in which the last block is a segment, and one in which it
is plain and every forward pass has these bytes on top.
"""

from __future__ import annotations

from remat_plan.graph.records import Graph
from remat_plan.graph.ways import Plain
from remat_plan.planning.cuts import Cuts
from remat_plan.planning.options import EARLY_SHARE, Options, SegmentOption
from remat_plan.planning.runs import Run
from remat_plan.solve.chain import IMPOSSIBLE, ChainProblem, RunOption


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


def _early(option: SegmentOption) -> int:
    """Early bytes where they are worth speaking of."""
    return option.early_bytes if option.early_bytes > EARLY_SHARE * option.backward_bytes else 0


def _run_option(option: SegmentOption, crossing: int, early: int, final: bool, only: bool) -> RunOption:
    """One option of one run; ``early`` bytes are there during every forward pass but the final run's own."""
    if not final:
        transient = max(option.forward_bytes + early, option.backward_bytes + crossing)
    elif _early(option) and not early and not only:
        transient = IMPOSSIBLE
    else:
        transient = max(option.forward_bytes, option.backward_bytes + crossing)
    return RunOption(option.kept_bytes, transient, option.seconds, option.seconds if option.repeats else 0.0)


def make_problems(graph: Graph, cuts: Cuts, options: Options) -> tuple[ChainProblem, ...]:
    """Return the chain problems of a program; see the module docstring."""
    n = len(cuts.positions) - 1
    last = [_early(o) for o in options.profiles[n - 1, n].options if isinstance(o.way, Plain)] if n else []
    early = max(last, default=0)
    problems = [_problem(graph, cuts, options, 0)]
    if early:
        problems.append(_problem(graph, cuts, options, early))
    return tuple(problems)


def _problem(graph: Graph, cuts: Cuts, options: Options, early: int) -> ChainProblem:
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
            only = len(profile.options) == 1
            row.append((e, tuple(_run_option(o, crossing, early, e == n, only) for o in profile.options)))
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
