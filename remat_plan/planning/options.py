"""The options of every run of blocks.

In: ``Graph``, ``Cuts``, ``Rules``. Out: ``Options``: per run of up to ``MERGE`` blocks, and per run of as many blocks
between major cuts, the ways to run it (saved values, bytes kept, bytes of transient, seconds).

Equal runs (same signature) are solved and profiled once. Every run may be one ``jax.checkpoint`` segment for
each point of the minimum-cut hull, and one that saves its products. A run may also stay as it is (``plain``: what JAX
keeps by itself), the only choice for effects that are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from remat_plan.cost.builder import Rules
from remat_plan.cost.price import price
from remat_plan.graph.records import Graph
from remat_plan.graph.structure import RegionSolver, is_loop, structure_of
from remat_plan.graph.uses import residuals
from remat_plan.graph.ways import Keep, Plain, Way
from remat_plan.planning.cuts import Cuts, is_small
from remat_plan.planning.honours import honours_choice
from remat_plan.planning.limits import check_some
from remat_plan.planning.profile import PlainRun, backward_timeline, forward_timelines, plain_run
from remat_plan.planning.runs import (
    MERGE,
    Actions,
    Run,
    actions_of,
    find_runs,
    op_seconds,
    planned_problem,
    stays_plain,
)
from remat_plan.planning.saving import is_product, is_unbatched_product
from remat_plan.planning.splits import BEYOND, KNEE, LEAST_SLICE_BYTES, large_runs, narrowest, split_ways
from remat_plan.solve import min_cut
from remat_plan.solve.min_cut import SegmentProblem, Selection

_MAX_HULL = 12
_MAX_SINGLE = 8
_MAX_MERGED = 4
_MAX_LONG = 2
_LONG_RUN = 48
"""Merged runs of more equations get only the two ends of their hull: what lies between, the single blocks in them offer
too, and profiling takes the longer the longer the run is."""


@dataclass(frozen=True, slots=True)
class SegmentOption:
    """One way to run a run of blocks.

    Attributes:
        way: in the numbers of the run: of its values, and of its equations from the first one on.
        kept_bytes: kept after its forward pass, its end frontier included.
        forward_bytes, backward_bytes: needed while its forward / backward pass runs.
        seconds: more than the run takes plain (may be negative: saving costs writes too).
        tail: so many operations at the end of the run stay behind its segment, as they are: they read nothing that is
            recomputed.
        repeats: whether ``seconds`` come on top even at the end of a part that is run again. What a segment saves is
            all that is needed of its forward pass there; the steps of a loop need what those before them carry on.
    """

    way: Way
    kept_bytes: int
    forward_bytes: int
    backward_bytes: int
    seconds: float
    tail: int = 0
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """The options of one class of equal runs.

    Attributes:
        options: none of which another one beats.
        forward_seconds: of its forward pass.
        nestable: whether it may run inside a checkpointed segment.
    """

    options: tuple[SegmentOption, ...]
    forward_seconds: float
    nestable: bool


@dataclass(frozen=True, slots=True)
class Options:
    """All runs of a program with their options.

    Attributes:
        runs: (start cut, end cut) to ``Run``.
        profiles: (start cut, end cut) to ``Profile``, shared by equal runs.
    """

    runs: dict[tuple[int, int], Run]
    profiles: dict[tuple[int, int], Profile]


class _Profiler:
    """Solves and profiles runs, equal ones once."""

    def __init__(self, graph: Graph, rules: Rules, solve: RegionSolver):
        self.graph, self.rules, self.solve_region = graph, rules, solve
        self.seconds = op_seconds(graph, rules.hardware)
        self.known: dict[object, Profile] = {}

    def profile(self, run: Run, single: bool) -> Profile:
        key = (run.signature, single)
        if key not in self.known:
            self.known[key] = self.solve(run, single)
        return self.known[key]

    def solve(self, run: Run, single: bool) -> Profile:
        graph, rules = self.graph, self.rules
        problem = planned_problem(rules, run, self.seconds)
        leaves = sum(graph.values[v].size_bytes for v in run.leaves)
        plain = plain_run(rules, run)
        alone = stays_plain(graph, run)
        options = []
        nestable = not alone and run.limits.fixed.isdisjoint(run.ops)
        choices = [] if alone else self.choices(run, problem, single)
        kept_by = [actions_of(run, choice) for choice in choices]
        plain_forward, *forwards = forward_timelines(rules, run, [(), *kept_by])
        for choice, actions, forward in zip(choices, kept_by, forwards, strict=True):
            backward = backward_timeline(rules, run, actions, choice.recomputed)
            # What the evaluator cannot tell apart is decided by the work done again.
            extra = _difference(forward.seconds + backward.seconds, plain.timeline.seconds) + 1e-3 * choice.seconds
            kept = choice.kept_bytes + leaves
            made = SegmentOption(Keep(actions), kept, forward.peak_bytes, backward.peak_bytes, extra)
            options.append(made)
            if tail := self.tail(run, problem, choice):
                early = backward_timeline(rules, run, actions, choice.recomputed, tail)
                options.append(replace(made, backward_bytes=early.peak_bytes, tail=tail))
        if alone or run.limits.forbidden.isdisjoint(run.values):
            kept, peak = max(plain.kept_bytes, leaves), plain.timeline.peak_bytes
            if run.limits.changed.isdisjoint(run.ops):
                options.append(SegmentOption(Plain(), kept, peak, peak, 0.0))
            options += self.structure_options(run, plain)
        check_some(options, graph)
        return Profile(_undominated(options), plain_forward.seconds, nestable)

    def tail(self, run: Run, problem: SegmentProblem, choice: Selection) -> int:
        """How many operations at the end of a run read nothing that a choice recomputes; 0 where it does not matter.

        Left behind the segment they are differentiated before anything is recomputed. That matters in small programs,
        of which one value is a large part.
        """
        if not is_small(self.graph):
            return 0
        missing = {run.values[i] for i in problem.needed - choice.saved}
        tail = 0
        for n in range(len(run.ops) - 1, 0, -1):
            if n in choice.recomputed or not missing.isdisjoint(residuals(self.graph, self.graph.ops[run.ops[n]])):
                break
            tail += 1
        return tail

    def structure_options(self, run: Run, plain: PlainRun) -> Iterator[SegmentOption]:
        """The ways to run a run that is one structure."""
        op = self.graph.ops[run.ops[0]] if len(run.ops) == 1 else None
        structure = structure_of(op) if op is not None else None
        if op is None or structure is None or op.index in run.limits.whole:
            return
        for choice in structure.choices(self.rules, op, self.solve_region):
            if honours_choice(self.graph, run.limits, op, choice):
                yield from self.outside(run, Plain(((0, choice),)), plain, is_loop(op))

    def outside(self, run: Run, way: Way, plain: PlainRun, repeats: bool) -> Iterator[SegmentOption]:
        """A run outside any segment in a way of its own; ``plain`` is the same run as it is. None that the host has no
        room for."""
        found = plain_run(self.rules, run, way)
        if found.timeline.host_bytes > run.limits.host_bytes:
            return
        made, own = found.timeline, (plain.timeline.seconds, plain.timeline.flops)
        seconds = price(made.seconds, made.flops, *own) - price(*own, *own)
        kept = max(found.kept_bytes, sum(self.graph.values[v].size_bytes for v in run.leaves))
        yield SegmentOption(way, kept, made.peak_bytes, made.peak_bytes, seconds, repeats=repeats)

    def with_splits(self, run: Run, single: bool) -> Profile:
        """The profile of a run that may run in slices too."""
        key = run.signature, single, "split"
        if key not in self.known:
            profile = self.profile(run, single)
            self.known[key] = replace(profile, options=self.splits(run, profile.options))
        return self.known[key]

    def splits(self, run: Run, known: tuple[SegmentOption, ...]) -> tuple[SegmentOption, ...]:
        """The ways to run a run that are ``known``, and those in slices: from the knee on, in more and in fewer, as
        long as those are of use."""
        plain, options, counts = plain_run(self.rules, run), known, [KNEE]
        while counts:
            ways = split_ways(self.rules, run, LEAST_SLICE_BYTES, counts[:1])
            made = [option for way in ways for option in self.outside(run, way, plain, repeats=True)]
            before, options = options, _undominated([*options, *made])
            further = () if made and options == before else BEYOND.get(counts[0], ())
            counts = [*counts[1:], *further]
        return options

    def choices(self, run: Run, problem: SegmentProblem, single: bool) -> list[Selection]:
        if single or len(run.ops) <= _LONG_RUN:
            points = _spread(min_cut.hull(problem, _MAX_HULL), _MAX_SINGLE if single else _MAX_MERGED)
        else:
            points = min_cut.hull(problem, _MAX_LONG)
        chosen = {p.actions: p for p in points}
        for choice in product_selections(self.graph, run, problem):  # what people write; between, the hull has mixtures
            chosen.setdefault(choice.actions, choice)
        return list(chosen.values())


def product_selections(graph: Graph, run: Run, problem: SegmentProblem) -> Iterator[Selection]:
    """Yield the selections that save the products of a run, and those without batch dimensions."""
    made = [(i, graph.ops[graph.values[v].producer]) for i, v in enumerate(run.values)]
    for keeps in (is_product, is_unbatched_product):
        products = {i: 0 for i, op in made if problem.saveable[i] and keeps(op)}
        yield min_cut.prune(problem, min_cut.complete(problem, products))


def _difference(seconds: float, plain_seconds: float) -> float:
    """Seconds more than those of the plain run; what rounding leaves of equal ones is no difference."""
    difference = seconds - plain_seconds
    return difference if abs(difference) > 1e-9 * plain_seconds else 0.0


def _undominated(options: list[SegmentOption]) -> tuple[SegmentOption, ...]:
    """Drop options that another one beats in every respect."""
    kept: list[SegmentOption] = []
    for o in sorted(options, key=lambda o: (o.kept_bytes, o.seconds, o.backward_bytes, *_preference(o.way))):
        beaten = any(
            k.seconds <= o.seconds and k.backward_bytes <= o.backward_bytes and k.forward_bytes <= o.forward_bytes
            for k in kept
        )
        if not beaten:
            kept.append(o)
    return tuple(kept)


def _preference(way: Way) -> tuple[bool, Actions]:
    """What comes first of ways that are equal otherwise: the plain one."""
    return way.checkpointed, way.actions


def _spread(points: list[Selection], most: int) -> list[Selection]:
    """Choose at most ``most`` points spread evenly over the kept bytes, both ends among them."""
    if len(points) <= most:
        return points
    low, high = points[0].kept_bytes, points[-1].kept_bytes
    chosen = {0, len(points) - 1}
    for i in range(1, most - 1):
        target = low + (high - low) * i / (most - 1)
        chosen.add(min(range(len(points)), key=lambda p: abs(points[p].kept_bytes - target)))
    return [points[i] for i in sorted(chosen)]


def find_options(graph: Graph, cuts: Cuts, rules: Rules, solve: RegionSolver, merge: int = MERGE) -> Options:
    """Solve and profile every run of up to ``merge`` blocks, or blocks between major cuts; see the module docstring.

    ``solve`` makes schedules of the regions inside structures.
    """
    profiler = _Profiler(graph, rules, solve)
    runs = find_runs(graph, cuts, merge)
    profiles = {(s, e): profiler.profile(run, e == s + 1) for (s, e), run in runs.items()}
    single = {run: p for run, p in profiles.items() if run[1] == run[0] + 1}
    large = large_runs({run: min([o.backward_bytes for o in p.options], default=0) for run, p in single.items()})
    split = {runs[run].signature for block in large for run in (block, *narrowest(graph, runs, block))}
    for run in runs:
        if runs[run].signature in split:  # equal runs have equal options, which the chain relies on
            profiles[run] = profiler.with_splits(runs[run], run in single)
    return Options(runs, profiles)
