"""The options of every run of blocks, and the chain problem made of them.

In: ``Graph``, ``Cuts``, ``Hardware``. Out: ``Options``: per run of up to ``MERGE`` blocks the ways to run it
(saved values, bytes kept, bytes of transient, seconds), and the ``ChainProblem`` for ``solve.chain``.

Equal runs (same signature) are solved and profiled once. Every run has the option to be one ``jax.checkpoint``
segment for each point of the minimum-cut hull; runs of one block also have the option to stay as they are
(``PLAIN``: what JAX keeps by itself, nothing recomputed), the only one for equations with effects.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan.cost.hardware import Hardware
from remat_plan.graph.records import Graph
from remat_plan.planning.cuts import Cuts
from remat_plan.planning.profile import Backward, backward_timeline, forward_timeline
from remat_plan.planning.runs import Run, make_run, op_seconds, plain_bytes, segment_problem
from remat_plan.solve import min_cut
from remat_plan.solve.chain import ChainProblem, RunOption

MERGE = 4
"""The most blocks that one segment may span by itself (nesting spans more)."""

_MAX_HULL = 12


@dataclass(frozen=True, slots=True)
class SegmentOption:
    """One way to run a run: ``saved`` are local value numbers; ``plain`` leaves it outside any segment."""

    saved: frozenset[int]
    plain: bool
    recomputed_seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The options of one class of equal runs, with what the chain needs to know of each."""

    options: tuple[SegmentOption, ...]
    kept_bytes: tuple[int, ...]
    transient_bytes: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """All runs of a program with their options.

    Attributes:
        runs: (start cut, end cut) to ``Run``.
        profiles: (start cut, end cut) to ``Profile``, shared by equal runs.
        problem: the chain.
        unique: how many different runs were solved.
    """

    runs: dict[tuple[int, int], Run]
    profiles: dict[tuple[int, int], Profile]
    problem: ChainProblem
    unique: int


class _Profiler:
    """Solves and profiles runs, equal ones once."""

    def __init__(self, graph: Graph, cuts: Cuts, hardware: Hardware):
        self.graph, self.cuts, self.hardware = graph, cuts, hardware
        self.seconds = op_seconds(graph, hardware)
        self.backwards: dict[int, Backward] = {}
        self.known: dict[object, Profile] = {}

    def profile(self, run: Run, single: bool) -> Profile:
        key = (run.signature, single)
        if key not in self.known:
            self.known[key] = self.solve(run, single)
        return self.known[key]

    def solve(self, run: Run, single: bool) -> Profile:
        graph = self.graph
        problem = segment_problem(graph, self.cuts, run, self.seconds)
        leaves = sum(graph.values[v].size_bytes for v in run.leaves)
        forward = forward_timeline(graph, run, self.hardware)
        everything = min_cut.complete(
            problem, frozenset(v for v in problem.needed if problem.saveable[v])
        )
        base = self.backward(run, everything)
        options, kept, transient, seconds = [], [], [], []
        effects = any(graph.ops[i].effectful for i in run.ops)
        if not effects:
            for choice in min_cut.hull(problem, _MAX_HULL):
                timeline = self.backward(run, choice)
                options.append(SegmentOption(choice.saved, False, choice.seconds))
                kept.append(choice.kept_bytes + leaves)
                transient.append(max(timeline.peak_bytes, forward.peak_bytes))
                seconds.append(max(timeline.seconds - base.seconds, 0.0))
        if single or effects:
            plain = max(plain_bytes(graph, run), leaves)
            options.append(SegmentOption(frozenset(), True, 0.0))
            kept.append(plain)
            transient.append(max(base.peak_bytes + max(plain - leaves - everything.kept_bytes, 0), forward.peak_bytes))
            seconds.append(0.0)
        return Profile(tuple(options), tuple(kept), tuple(transient), tuple(seconds))

    def backward(self, run: Run, choice: min_cut.Selection):  # noqa: ANN202
        return backward_timeline(
            self.graph, run, choice.saved, choice.recomputed, self.backwards, self.hardware
        )


def _crossing_bytes(graph: Graph, cuts: Cuts, run: Run, start: int, end: int) -> int:
    """Bytes of cotangents that wait while a run's backward pass works: values that pass it by."""
    touched = set(run.reads)
    passing = cuts.frontiers[start] & cuts.frontiers[end]
    return sum(graph.values[v].size_bytes for v in passing if v not in touched and graph.active[v])


def find_options(graph: Graph, cuts: Cuts, hardware: Hardware, merge: int = MERGE) -> Options:
    """Solve and profile every run of up to ``merge`` blocks; see the module docstring."""
    n = len(cuts.positions) - 1
    profiler = _Profiler(graph, cuts, hardware)
    runs: dict[tuple[int, int], Run] = {}
    profiles: dict[tuple[int, int], Profile] = {}
    rows = []
    may_nest = []
    classes: dict[object, int] = {}
    block_classes = []
    forward = []
    for s in range(n):
        row = []
        for e in range(s + 1, min(s + merge, n) + 1):
            run = make_run(graph, cuts, s, e)
            if e > s + 1 and any(graph.ops[i].effectful for i in run.ops):
                break
            crossing = _crossing_bytes(graph, cuts, run, s, e)
            profile = profiler.profile(run, e == s + 1)
            runs[s, e], profiles[s, e] = run, profile
            columns = zip(profile.kept_bytes, profile.transient_bytes, profile.seconds, strict=True)
            row.append((e, tuple(RunOption(k, t + crossing, r) for k, t, r in columns)))
            if e == s + 1:
                key = (run.signature, crossing, sum(graph.values[v].size_bytes for v in cuts.frontiers[e]))
                block_classes.append(classes.setdefault(key, len(classes)))
                forward.append(sum(profiler.seconds[i] for i in run.ops))
                may_nest.append(not any(graph.ops[i].effectful for i in run.ops))
        rows.append(tuple(row))
    problem = ChainProblem(
        block_classes=tuple(block_classes),
        runs=tuple(rows),
        frontiers=_frontier_spans(graph, cuts),
        forward_seconds=tuple(forward),
        may_nest=tuple(may_nest),
    )
    return Options(runs, profiles, problem, len(profiler.known))


def _frontier_spans(graph: Graph, cuts: Cuts) -> tuple[tuple[tuple[int, int], ...], ...]:
    last: dict[int, int] = {}
    for number, frontier in enumerate(cuts.frontiers):
        for v in frontier:
            last[v] = number
    return tuple(
        tuple((graph.values[v].size_bytes, last[v]) for v in sorted(frontier)) for frontier in cuts.frontiers
    )
