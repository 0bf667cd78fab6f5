"""The ways to run one scan: what each step keeps, in which groups.

In: a scan of a graph, ``Rules``. Out: ``LoopOption``: a ``LoopPlan`` with bytes kept and needed and seconds, for
``options``, where a scan is a block with options like any other.

    a step     as it is; or one segment for each point of the minimum-cut hull and between, or that keeps the outputs of
               its products (those without batch dimensions), or segments in a segment (the chain of its own blocks)
    mixed      first steps that keep less, then steps that keep more
    grouped    one carry kept for each group of k steps, the group run again for its backward pass

Costs are those of a step, by the evaluator, times the steps; no loop is traced here. A step's blocks come from the same
planner, so scans in scans are planned in turn.

Limits: groups are divisors of the length, so that rows are grouped without copying; a prime length has the choices for
a step only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from remat_plan.cost.program import MATRIX_PRIMITIVES
from remat_plan.graph.loops import Loop, is_loop, loop_of
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.uses import free_ops, last_uses
from remat_plan.planning.builder import Rules
from remat_plan.planning.cuts import Cuts, frontiers, needed_values
from remat_plan.planning.profile import backward_timeline, forward_timelines, plain_run
from remat_plan.planning.runs import Run, make_run, op_seconds, segment_problem
from remat_plan.planning.whole_step import StepProgram
from remat_plan.rewrite.segments import LoopPlan, Segment, Stretch
from remat_plan.solve import min_cut

_MAX_HULL = 8
_MAX_STEPS = 20
_SMALL_GROUP = 6
_MIXTURES = 6

_MAX_GROUPINGS = 6
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
    """One way to run a scan: as ``StepOption``, for all steps; None as plan leaves it as it is."""

    plan: LoopPlan | None
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
        carries = self.body.inputs[self.loop.n_consts : self.loop.n_consts + self.loop.n_carry]
        self.carry_bytes = sum(self.body.values[v].size_bytes for v in carries if self.is_read(v))
        rows = self.body.inputs[self.loop.n_consts + self.loop.n_carry :]
        self.row_bytes = sum(self.body.values[v].size_bytes for v in rows)
        self.plain = plain_run(self.rules, self.run)
        (self.forward,) = forward_timelines(self.rules, self.run, [frozenset()])

    def is_read(self, v: int) -> bool:
        """Tell whether a step reads an input at all."""
        return v in self.run.reads

    def steps(self) -> list[StepOption]:
        """All ways to run a step; none of them is beaten by another one in bytes and seconds."""
        plain = StepOption(
            (Segment(0, len(self.body.ops), "plain"),),
            self.plain.kept_bytes + self.kept_inputs(),
            self.forward.peak_bytes,
            self.plain.timeline.peak_bytes,
            0.0,
        )
        return pareto([plain, *self.saving_steps(), *self.nested_steps()])

    def kept_inputs(self) -> int:
        """Bytes of the carry that a plain step keeps: what its backward equations read of it."""
        carries = self.body.inputs[self.loop.n_consts : self.loop.n_consts + self.loop.n_carry]
        return sum(self.body.values[v].size_bytes for v in carries if v in self.cuts.needed)

    def saving_steps(self) -> Iterator[StepOption]:
        """Steps that are one segment each."""
        problem = segment_problem(self.body, self.run, self.seconds, self.rules.model.library_clusters)
        chosen = {c.saved: c for c in spread(min_cut.fill(problem, min_cut.hull(problem, _MAX_HULL)), _MAX_STEPS)}
        for batched in (True, False):
            dots = frozenset(
                i for i, v in enumerate(self.run.values) if problem.saveable[i] and self.is_dot(v, batched)
            )
            choice = min_cut.prune(problem, min_cut.complete(problem, dots))
            chosen.setdefault(choice.saved, choice)
        forwards = forward_timelines(self.rules, self.run, list(chosen))
        for choice, forward in zip(chosen.values(), forwards, strict=True):
            backward = backward_timeline(self.rules, self.run, choice.saved, choice.recomputed)
            extra = forward.seconds + backward.seconds - self.plain.timeline.seconds + 1e-3 * choice.seconds
            saved = tuple(self.run.values[i] for i in sorted(choice.saved))
            kept = sum(self.body.values[v].size_bytes for v in saved if v not in self.run.leaves)
            segment = Segment(0, len(self.body.ops), "save", saved)
            yield StepOption(
                (segment,), kept + self.carry_bytes, forward.peak_bytes, backward.peak_bytes, max(extra, 0.0)
            )

    def is_dot(self, v: int, batched: bool) -> bool:
        """Tell whether a value is the result of a product; with ``batched`` also of one with batch dimensions."""
        op = self.body.ops[self.body.values[v].producer]
        if op.primitive not in MATRIX_PRIMITIVES:
            return False
        numbers = op.eqn.params.get("dimension_numbers")
        return batched or op.primitive != "dot_general" or not numbers[1][0]

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
        """All ways to run the scan, none of them beaten by another one."""
        steps = self.steps()
        return [*map(self.flat, steps), *self.mixed(steps), *self.grouped(steps)]

    def flat(self, step: StepOption) -> LoopOption:
        """Every step alike, no groups."""
        n = self.loop.length
        plan = None if step.schedule[0].kind == "plain" else LoopPlan((), (Stretch(n, step.schedule),))
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
        sizes = divisors(length)
        best = sorted(sizes, key=lambda k: (abs(math.log(k * k / length)), k))[:_MAX_GROUPINGS]
        inner = steps if len(steps) <= _INNER_POINTS else [steps[0], steps[len(steps) // 2], steps[-1]]
        for size in sorted(best):
            for step in inner:
                kept = length // size * self.carry_bytes
                needed = size * (step.kept_bytes + self.row_bytes) + step.backward_bytes
                plan = LoopPlan((length // size,), (Stretch(size, step.schedule),))
                yield LoopOption(plan, kept, step.forward_bytes, needed, forward + length * step.seconds)
        yield from self.deep(steps[0], forward)

    def deep(self, step: StepOption, forward: float) -> Iterator[LoopOption]:
        """Groups in groups, for long loops: as many turns at each level as the length has small divisors."""
        length, groups = self.loop.length, []
        while length > _SMALL_GROUP and (small := [d for d in divisors(length) if d <= _SMALL_GROUP]):
            groups.append(small[-1])
            length //= small[-1]
            if len(groups) < 2:
                continue
            kept = groups[0] * self.carry_bytes
            needed = sum(groups[1:]) * self.carry_bytes + length * step.kept_bytes + step.backward_bytes
            needed += self.loop.length // groups[0] * self.row_bytes
            seconds = len(groups) * forward + self.loop.length * step.seconds
            plan = LoopPlan(tuple(groups), (Stretch(length, step.schedule),))
            yield LoopOption(plan, kept, step.forward_bytes, needed, seconds)


def spread(points: list[min_cut.Selection], most: int) -> list[min_cut.Selection]:
    """Choose about ``most`` points, evenly over the kept bytes, both ends among them."""
    if len(points) <= most:
        return points
    gap = (points[-1].kept_bytes - points[0].kept_bytes) / most
    chosen = [points[0]]
    for point in points[1:-1]:
        if point.kept_bytes - chosen[-1].kept_bytes >= gap:
            chosen.append(point)
    return [*chosen, points[-1]]


def pareto(steps: list[StepOption]) -> list[StepOption]:
    """Keep the steps that no other one beats in bytes (kept, needed) and seconds, from fewest kept bytes to most."""
    kept: list[StepOption] = []
    for step in sorted(steps, key=lambda s: (s.kept_bytes, s.seconds, s.backward_bytes)):
        if not any(k.seconds <= step.seconds and k.backward_bytes <= step.backward_bytes for k in kept):
            kept.append(step)
    return kept
