"""The options of every run of blocks, and the chain problem made of them.

In: ``Graph``, ``Cuts``, ``Hardware``. Out: ``Options``: per run of up to ``MERGE`` blocks the ways to run it
(saved values, bytes kept, bytes of transient, seconds), and the ``ChainProblem`` for ``solve.chain``.

Equal runs (same signature) are solved and profiled once. Every run has the option to be one ``jax.checkpoint``
segment for each point of the minimum-cut hull; runs of one block also have the option to stay as they are
(``PLAIN``: what JAX keeps by itself, nothing recomputed), the only one for equations with effects.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan.cost.backend import model_for
from remat_plan.cost.hardware import Hardware
from remat_plan.graph.records import Graph
from remat_plan.planning.cuts import Cuts
from remat_plan.planning.profile import Backward, backward_timeline, forward_timeline, plain_run
from remat_plan.planning.runs import Run, make_run, op_seconds, segment_problem
from remat_plan.solve import min_cut
from remat_plan.solve.chain import ChainProblem, RunOption

MERGE = 4
"""The most blocks that one segment may span by itself (nesting spans more)."""

_EARLY_SHARE = 0.05
_MAX_HULL = 12
_MAX_SINGLE = 10
_MAX_MERGED = 5


@dataclass(frozen=True, slots=True)
class SegmentOption:
    """One way to run a run: ``saved`` are local value numbers; ``plain`` leaves it outside any segment."""

    saved: frozenset[int]
    plain: bool


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
        self.avoid_small = model_for(hardware).library_clusters
        self.backwards: dict[int, Backward] = {}
        self.known: dict[object, Profile] = {}

    def profile(self, run: Run, single: bool) -> Profile:
        key = (run.signature, single)
        if key not in self.known:
            self.known[key] = self.solve(run, single)
        return self.known[key]

    def solve(self, run: Run, single: bool) -> Profile:
        graph = self.graph
        problem = segment_problem(graph, run, self.seconds, self.avoid_small)
        leaves = sum(graph.values[v].size_bytes for v in run.leaves)
        plain = plain_run(graph, run, self.backwards, self.hardware)
        rows: list[tuple[SegmentOption, int, int, float]] = []
        effects = any(graph.ops[i].effectful for i in run.ops)
        choices = [] if effects else min_cut.hull(problem, _MAX_HULL)
        for choice in _spread(choices, _MAX_SINGLE if single else _MAX_MERGED):
            forward = forward_timeline(graph, run, choice.saved, self.hardware)
            backward = backward_timeline(
                graph, run, choice.saved, choice.recomputed, self.backwards, self.hardware
            )
            # What the evaluator cannot tell apart is decided by the work done again.
            extra = forward.seconds + backward.seconds - plain.timeline.seconds + 1e-3 * choice.seconds
            transient = max(forward.peak_bytes, backward.peak_bytes)
            rows.append((SegmentOption(choice.saved, False), choice.kept_bytes + leaves, transient, extra))
        # What runs at the start of the program would weigh on every other block: only a segment holds it back.
        final = run.ops[-1] == len(graph.ops) - 1
        late = final or plain.early_bytes <= _EARLY_SHARE * plain.timeline.peak_bytes
        if effects or (single and late):
            kept = max(plain.kept_bytes, leaves)
            rows.append((SegmentOption(frozenset(), True), kept, plain.timeline.peak_bytes, 0.0))
        options, kept, transients, seconds = zip(*rows, strict=True)
        return Profile(options, kept, transients, seconds)

def _spread(points: list[min_cut.Selection], most: int) -> list[min_cut.Selection]:
    """Choose at most ``most`` points spread evenly over the kept bytes, both ends among them."""
    if len(points) <= most:
        return points
    low, high = points[0].kept_bytes, points[-1].kept_bytes
    chosen = {0, len(points) - 1}
    for i in range(1, most - 1):
        target = low + (high - low) * i / (most - 1)
        chosen.add(min(range(len(points)), key=lambda p: abs(points[p].kept_bytes - target)))
    return [points[i] for i in sorted(chosen)]


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
