"""The ways to run one scan: what each step keeps, in which groups.

In: a scan of a graph, ``Rules``. Out: ``LoopOption``: a ``LoopPlan`` with bytes kept and needed and seconds, for
``options``, where a scan is a block with options like any other.

    a step     as it is; or one segment for each point of the minimum-cut hull and between (MILP), or that keeps
               its products (those without batch dimensions), or segments in a segment (the chain of its own blocks)
    mixed      first steps that keep less, then steps that keep more
    grouped    one carry kept for each group of k steps, the group run again for its backward pass

Costs are those of a step, by the evaluator, times the steps; no loop is traced here. A step's blocks come from the same
planner, so scans in scans are planned in turn.

Limits: what a group that does not divide the length costs more (its inputs are read by index) is not in the estimate,
only in the evaluation of the schedule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from remat_plan.graph.loops import Loop, is_loop, loop_of
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.uses import free_ops, last_uses
from remat_plan.planning.builder import Rules
from remat_plan.planning.cuts import Cuts, frontiers, needed_values
from remat_plan.planning.profile import backward_timeline, forward_timelines, plain_run
from remat_plan.planning.runs import Run, make_run, op_seconds, segment_problem
from remat_plan.planning.saving import is_product, is_unbatched_product
from remat_plan.planning.whole_step import StepProgram
from remat_plan.rewrite.segments import LoopPlan, Segment, Stretch
from remat_plan.solve import milp, min_cut

_MAX_HULL = 8
_SHARE = 1 / 16
"""Steps may differ in what they keep by about this share of what is kept at most."""

_SMALL_GROUP, _GROUPS = 6, 4
_MIXTURES = 6

_MAX_GROUPINGS, _FEW_SIZES = 6, 3
_INNER_POINTS = 3


@dataclass(frozen=True, slots=True)
class StepOption:
    """One way to run a step of a scan.

    Attributes:
        schedule: of the body.
        kept_bytes: residuals of one step, the carry included where it is kept.
        forward_bytes, backward_bytes: needed while one step runs forward / backward.
        seconds: more than a plain step takes.
    """

    schedule: tuple[Segment, ...]
    kept_bytes: int
    forward_bytes: int
    backward_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LoopOption:
    """One way to run a scan: as ``StepOption``, for all steps."""

    plan: LoopPlan
    kept_bytes: int
    forward_bytes: int
    backward_bytes: int
    seconds: float


def divisors(n: int) -> list[int]:
    """Return the divisors of ``n`` that are neither 1 nor ``n``, increasing.

    >>> divisors(12)
    [2, 3, 4, 6]
    """
    small = [d for d in range(2, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def group_sizes(length: int) -> list[int]:
    """Return how many steps groups may have: divisors about the square root, or, for want of them, what is near it.

    >>> group_sizes(12), group_sizes(61)
    ([2, 3, 4, 6], [4, 8, 16])
    """
    root = math.sqrt(length)
    sizes = divisors(length)
    if len(sizes) < _FEW_SIZES:
        sizes = sorted({*sizes, *(round(root * factor) for factor in (0.5, 1, 2))} & set(range(2, length)))
    return sorted(sorted(sizes, key=lambda k: (abs(math.log(k / root)), k))[:_MAX_GROUPINGS])


class LoopProfiler:
    """Finds the options of one scan."""

    def __init__(self, graph: Graph, op: Op, rules: Rules):
        self.loop: Loop = loop_of(graph, op)
        self.body = self.loop.body
        self.rules = rules.inside(op)
        self.seconds = op_seconds(self.body, rules.hardware)
        n = len(self.body.ops)
        free, last = free_ops(self.body), last_uses(self.body)
        positions = (0, n)
        self.cuts = Cuts(positions, frontiers(self.body, positions, free, last), free, needed_values(self.body))
        self.run: Run = make_run(self.body, self.cuts, 0, 1)
        self.carry_bytes = self.size(v for v in self.loop.carries if v in self.run.reads)
        self.row_bytes = self.size(self.loop.rows)
        self.plain = plain_run(self.rules, self.run)
        (self.forward,) = forward_timelines(self.rules, self.run, [frozenset()])

    def size(self, values: Iterable[int]) -> int:
        """Bytes of some values of the body."""
        return sum(self.body.values[v].size_bytes for v in values)

    def steps(self) -> list[StepOption]:
        """All ways to run a step; none of them is beaten by another one in bytes and seconds."""
        plain = StepOption(
            (Segment(0, len(self.body.ops), "plain"),),
            self.plain.kept_bytes + self.size(v for v in self.loop.carries if v in self.cuts.needed),
            self.forward.peak_bytes,
            self.plain.timeline.peak_bytes,
            0.0,
        )
        return pareto([plain, *self.saving_steps(), *self.nested_steps()])

    def saving_steps(self) -> Iterator[StepOption]:
        """Steps that are one segment each."""
        problem = segment_problem(self.body, self.run, self.seconds, self.rules.model.library_clusters)
        hull = min_cut.hull(problem, _MAX_HULL)
        chosen = {c.saved: c for c in milp.between(problem, hull, share=_SHARE)}
        for keeps in (is_product, is_unbatched_product):
            made = [(i, self.body.ops[self.body.values[v].producer]) for i, v in enumerate(self.run.values)]
            products = frozenset(i for i, op in made if problem.saveable[i] and keeps(op))
            choice = min_cut.prune(problem, min_cut.complete(problem, products))
            chosen.setdefault(choice.saved, choice)
        forwards = forward_timelines(self.rules, self.run, list(chosen))
        for choice, forward in zip(chosen.values(), forwards, strict=True):
            backward = backward_timeline(self.rules, self.run, choice.saved, choice.recomputed)
            extra = forward.seconds + backward.seconds - self.plain.timeline.seconds + 1e-3 * choice.seconds
            saved = tuple(self.run.values[i] for i in sorted(choice.saved))
            kept = self.size(v for v in saved if v not in self.run.leaves)
            segment = Segment(0, len(self.body.ops), "save", saved)
            yield StepOption(
                (segment,), kept + self.carry_bytes, forward.peak_bytes, backward.peak_bytes, max(extra, 0.0)
            )

    def nested_steps(self) -> Iterator[StepOption]:
        """Steps that keep their carry only and run as a chain of segments when they are needed again."""
        from remat_plan.planning.planner import Planner  # a step's planner has loops of its own

        planner = Planner(self.body, self.rules)
        if len(planner.cuts.positions) < 3 and not any(is_loop(op) for op in self.body.ops):
            return
        curve = planner.curves[0]
        last = len(curve.points) - 1
        plain = self.plain.timeline
        for point in sorted({0, last // 8, last // 3}) if last >= 0 else ():
            children = curve.schedule(point)
            if len(children) < 2 and not any(is_loop(op) for op in self.body.ops):
                continue
            schedule = (Segment(0, len(self.body.ops), "nest", (), children),)
            timeline = StepProgram(self.rules, self.cuts.free).pullback_timeline(schedule)
            own = timeline.peak_bytes - timeline.argument_bytes - timeline.output_bytes
            extra = max(timeline.seconds - plain.seconds, 0.0)
            yield StepOption(schedule, self.carry_bytes, self.forward.peak_bytes, own, extra)

    def options(self) -> list[LoopOption]:
        """All ways to run the scan but to leave it as it is."""
        steps = self.steps()
        alike = [self.flat(step) for step in steps if step.schedule[0].kind != "plain"]
        return [*alike, *self.mixed(steps), *self.grouped(steps)]

    def flat(self, step: StepOption) -> LoopOption:
        """Every step alike, no groups."""
        n = self.loop.length
        plan = LoopPlan((), (Stretch(n, step.schedule),))
        return LoopOption(plan, n * step.kept_bytes, step.forward_bytes, step.backward_bytes, n * step.seconds)

    def mixed(self, steps: list[StepOption]) -> Iterator[LoopOption]:
        """First steps that keep less, then steps that keep more.

        Both stretches copy their rows; the gradients of the rows are pieces before they are one array.
        """
        n = self.loop.length
        copies = n * self.row_bytes
        for less, more in itertools.pairwise(steps):
            for count in sorted({round(n * i / _MIXTURES) for i in range(1, _MIXTURES)} - {0, n}):
                kept = (n - count) * less.kept_bytes + count * more.kept_bytes
                if n * more.kept_bytes - kept <= copies or kept - n * less.kept_bytes <= copies // 2:
                    continue
                plan = LoopPlan((), (Stretch(n - count, less.schedule), Stretch(count, more.schedule)))
                forward = max(less.forward_bytes, more.forward_bytes)
                backward = max(less.backward_bytes, more.backward_bytes) + count * self.row_bytes
                seconds = (n - count) * less.seconds + count * more.seconds
                yield LoopOption(plan, kept + copies, forward, backward, seconds)

    def grouped(self, steps: list[StepOption]) -> Iterator[LoopOption]:
        """Groups of steps that keep one carry each."""
        length = self.loop.length
        forward = length * self.forward.seconds
        inner = steps if len(steps) <= _INNER_POINTS else [steps[0], steps[len(steps) // 2], steps[-1]]
        for size in group_sizes(length):
            groups = -(-length // size)
            for step in inner:
                needed = size * (step.kept_bytes + self.row_bytes) + step.backward_bytes
                plan = LoopPlan((groups,), (Stretch(size, step.schedule),))
                seconds = forward + length * step.seconds
                yield LoopOption(plan, groups * self.carry_bytes, step.forward_bytes, needed, seconds)
        yield from self.deep(steps[0], forward)

    def deep(self, step: StepOption, forward: float) -> Iterator[LoopOption]:
        """Groups in groups, for long loops: as many at each level as a small divisor, for want of one ``_GROUPS``."""
        length, groups = self.loop.length, []
        while length > _SMALL_GROUP:
            groups.append(max((d for d in divisors(length) if d <= _SMALL_GROUP), default=_GROUPS))
            length = -(-length // groups[-1])
            if len(groups) < 2:
                continue
            kept = groups[0] * self.carry_bytes
            needed = sum(groups[1:]) * self.carry_bytes + length * step.kept_bytes + step.backward_bytes
            needed += self.loop.length // groups[0] * self.row_bytes
            seconds = len(groups) * forward + self.loop.length * step.seconds
            plan = LoopPlan(tuple(groups), (Stretch(length, step.schedule),))
            yield LoopOption(plan, kept, step.forward_bytes, needed, seconds)


def pareto(steps: list[StepOption]) -> list[StepOption]:
    """Keep the steps that no other one beats in bytes (kept, needed) and seconds, from fewest kept bytes to most."""
    kept: list[StepOption] = []
    for step in sorted(steps, key=lambda s: (s.kept_bytes, s.seconds, s.backward_bytes)):
        if not any(k.seconds <= step.seconds and k.backward_bytes <= step.backward_bytes for k in kept):
            kept.append(step)
    return kept
