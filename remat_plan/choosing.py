"""Choosing among the schedules of one program: which fits a budget, by the evaluator and by the compiler.

In: ``Scores`` of a program, a budget, a ``Request``. Out: an ``Outcome``: the fastest schedule found that fits, or the
one that comes closest.

Searched are the planner's curves and, beside them, uniform schedules and lean ones. The evaluator says where to begin
and what is worth a compile; the compiler has the last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from remat_plan.by_name import Family, Outcome, Request, fastest_within, find_schedules, make_task
from remat_plan.graph.schedule import Schedule, emptied
from remat_plan.planning.blend import between
from remat_plan.planning.limits import NO_CONSTRAINTS, NO_LIMITS, Constraints
from remat_plan.planning.planner import Curve, Planner
from remat_plan.planning.strategies.records import Found as SchedulesFound
from remat_plan.planning.strategies.registry import lookup
from remat_plan.program import Program
from remat_plan.report.progress import Progress
from remat_plan.report.shortfall import nothing_to_do
from remat_plan.scores import Scores
from remat_plan.verify.search import MAX_MEASURES, Found, search
from remat_plan.verify.targets import Target

Tried = Sequence[tuple[Curve | Family, Found]]

_SLACK = 0.03
"""A schedule is not compiled if this share more than the budget is expected of it, and another one fits."""

_LONG_OPS = 4000
"""Beside the schedules of longer programs, whose predictions take a second each, uniform ones are not judged."""

_FEW_MEASURES = 4
"""So many points of a curve are predicted: the search with the compiler begins there, or the plan is a prediction."""

DOUBT = 1.1
_OTHER_COMPILES = 3
"""Schedules beside the curves are compiled if predicted up to this share over the budget, and at most so many."""

_GAIN = 0.02
_UNSURE_COMPILES = 2
"""A schedule that is not expected to fit is compiled all the same if this share faster, and at most so many."""

_LOW_POINTS = (0, 1, 2, 4, 8, 16)
"""Points of a curve that are tried without what their segments save, where no point fits."""

_NEARLY = 1.25
"""Where nothing fits, the fastest schedule predicted up to this much above the least peak is compiled as well: what is
run again inside what is run again may come out larger than predicted."""

_CLOSE = 0.005
_WORTH = 0.003
"""A schedule this close to the budget is not refined. Another one is compiled for so much less seconds or FLOPs."""

_REFINEMENTS = 2
"""So many compiles are spent on schedules between a fitting one and a faster one."""

_NEAR = 2
"""So many schedules on both sides of the border between fitting and not are judged: peaks do not quite rise."""

_CURVE_POINTS = 24
"""So many points of a curve are looked at for a faster neighbour."""

_AROUND = (0, 1, 2, 4, 8, 12)
"""How far above a found point schedules are tried that may fit although they were planned for more."""


def _spread_points(count: int) -> list[int]:
    """Return points of a curve, equally far apart, both ends among them."""
    if count <= _CURVE_POINTS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_CURVE_POINTS - 1)) for i in range(_CURVE_POINTS)})


class Chooser(Scores):
    """Judges the schedules of one program, and chooses."""

    def __init__(self, program: Program, target: Target, progress: Progress):
        super().__init__(program, target, progress)
        self._planners: dict[Constraints, Planner] = {}
        self._found: dict[Request, SchedulesFound | None] = {}

    @property
    def planner(self) -> Planner:
        """The solved chain (solved on first use)."""
        return self.planner_for(NO_CONSTRAINTS)

    def planner_for(self, constraints: Constraints) -> Planner:
        """The chain solved under a user's constraints (solved on first use)."""
        if constraints not in self._planners:
            self.progress.say("solving")
            self._planners[constraints] = Planner(self.program.graph, self.rules, constraints)
        return self._planners[constraints]

    def found(self, request: Request) -> SchedulesFound | None:
        """The schedules of the strategy that was asked for; None where it is the planner's own search."""
        if request not in self._found:
            self.progress.say(f"making schedules by strategy {request.strategy.name}")
            task = make_task(self.program.graph, self.hardware, request.constraints, request.settings)
            self._found[request] = find_schedules(request.strategy, task)
        return self._found[request]

    def find(self, budget_bytes: int, verify: bool, by: Request) -> Outcome:
        """Find the schedule with the least recomputation whose peak is within the budget, or else the least peak.

        The evaluator chooses among the planner's curves and where on them to begin; with ``verify`` the compiler
        then corrects.

        Raises:
            BudgetError: nothing is computed, so nothing can be recomputed.
        """
        if not self.program.graph.ops:
            raise nothing_to_do(self.program.graph, self.peak(self.program.plain, verify), budget_bytes)
        if (found := self.found(by)) is not None:
            return fastest_within(found, self, budget_bytes, verify)
        return self.find_compiled(budget_bytes, by) if verify else self.find_predicted(budget_bytes, by)

    def find_predicted(self, budget_bytes: int, by: Request) -> Outcome:
        """``find`` by predictions alone."""
        tried, fitting = [], []
        for curve in self.curves(budget_bytes, by):
            found = self.search(curve, self.owned_bytes, budget_bytes, False, None)
            if found.point is not None:
                fitting.append(curve.schedule(self.look_around(curve, found.point, budget_bytes)))
            tried.append((curve, found))
        others = self.uniform_schedules(by) if fitting else (*self.uniform_schedules(by), *self.lean_schedules(by))
        if fitting := self.faster_ones([*fitting, *others], budget_bytes, inf):
            return self.outcome(fitting[0], False)
        return self.least(tried, False, others)

    def find_compiled(self, budget_bytes: int, by: Request) -> Outcome:
        """``find`` with the compiler's word; the curve comes first whose best schedule is predicted to be fastest."""
        starts = []
        for curve in self.curves(budget_bytes, by):
            start = self.search(curve, self.owned_bytes, budget_bytes, False, None).point
            if start is not None:
                start = self.look_around(curve, start, budget_bytes)
            starts.append((inf if start is None else self.price(curve.schedule(start)), curve, start))
        chosen, price, tried = None, inf, []
        for _, curve, start in sorted(starts, key=lambda row: row[0]):
            found = self.search(curve, self.owned_bytes, budget_bytes, True, start)
            tried.append((curve, found))
            if found.point is not None:
                fitting = [p for p, peak in found.measured if peak <= budget_bytes]
                best = min(fitting, key=lambda p: self.price(curve.schedule(p)))
                near = self.look_around(curve, best, self.timeline(curve.schedule(best)).peak_bytes)
                if near != best:
                    best = near if self.judge(curve.schedule(near), budget_bytes)[1] <= budget_bytes else best
                chosen = curve.schedule(best)
                price = self.price(chosen)
                break
        judged = self.uniform_schedules(by)
        if chosen is None:
            judged += self.lean_schedules(by)
        others = self.worth_a_compile(judged, budget_bytes, price)
        if chosen is None:
            others += self.smallest(judged)
        for other in others:
            if self.judge(other, budget_bytes)[1] <= budget_bytes:
                return self.outcome(other, True, budget_bytes)
        if chosen is None:
            return self.least(tried, True, judged)
        return self.outcome(
            self.refined(chosen, [curve for curve, _ in tried], judged, budget_bytes), True, budget_bytes
        )

    def worth_a_compile(self, judged: Sequence[Schedule], budget_bytes: int, price: float) -> list[Schedule]:
        """Of schedules that are predicted to be faster, those expected to fit, and the likeliest of the others.

        Programs of another shape may be off in their own way, so a real gain is worth a try; so is each of the fastest
        where nothing fits yet (``price`` is infinite). Predictions that compiling has shown to be too high by more
        than that count as the compiler had it.
        """
        reach = max(DOUBT, (1 + _SLACK) / self.least_off)
        faster = self.faster_ones(judged, int(reach * budget_bytes), price)
        expected = {s: self.expected_bytes(s) for s in faster}
        close = [s for s in faster if expected[s] <= (1 + _SLACK) * budget_bytes]
        sure = (close if price < inf else faster)[:_OTHER_COMPILES]
        gain = [s for s in faster if s not in sure and self.price(s) < (1 - _GAIN) * price]
        likely = sorted(gain, key=lambda s: self.timeline(s).peak_bytes)[:_UNSURE_COMPILES]
        return [s for s in faster if s in sure or s in likely]

    def refined(
        self, chosen: Schedule, curves: Sequence[Curve | Family], judged: Sequence[Schedule], budget_bytes: int
    ) -> Schedule:
        """Of the schedules between one that fits and the next that is faster, the fastest that fits.

        Neighbours on a curve can lie far apart where layers are scanned: every step saves a value, or none does.
        """
        peak = self.judge(chosen, budget_bytes)[1]
        if peak >= (1 - _CLOSE) * budget_bytes:
            return chosen
        scale = peak / max(self.timeline(chosen).peak_bytes, 1)
        for _ in range(_REFINEMENTS):
            target = budget_bytes * (1 - _CLOSE / 4) / scale
            better = self.step_towards(chosen, self.faster_neighbour(chosen, curves, judged, target), target)
            if better is None or not self.is_worth_a_compile(better, chosen):
                break
            peak = self.judge(better, budget_bytes)[1]
            scale = peak / max(self.timeline(better).peak_bytes, 1)
            if peak <= budget_bytes:
                chosen = better
                if peak >= (1 - _CLOSE) * budget_bytes:
                    break
        return chosen

    def is_worth_a_compile(self, better: Schedule, chosen: Schedule) -> bool:
        """Whether a schedule of a lower price takes so much less seconds or FLOPs that a compile is worth it."""
        price, own = self.price(better), self.price(chosen)
        flops, own_flops = self.timeline(better).flops, self.timeline(chosen).flops
        return price < own and (price <= (1 - _WORTH) * own or flops <= (1 - _WORTH) * own_flops)

    def faster_neighbour(
        self, chosen: Schedule, curves: Sequence[Curve | Family], judged: Sequence[Schedule], target_bytes: float
    ) -> Schedule | None:
        """The schedule with the least predicted peak above a target among those that are predicted to be faster."""
        points = {s for c in curves for s in (c.schedule(p) for p in _spread_points(len(c.limits)))}
        known = [s for s in (*points, *judged, self.program.plain) if self.is_worth_a_compile(s, chosen)]
        above = [s for s in known if self.timeline(s).peak_bytes > target_bytes]
        return min(above, key=lambda s: (self.timeline(s).peak_bytes, self.price(s), repr(s)), default=None)

    def step_towards(self, low: Schedule, high: Schedule | None, target_bytes: float) -> Schedule | None:
        """The fastest schedule between two that is predicted to be within a target; None if none beats the first."""
        if high is None:
            return None
        own = self.price(low)
        steps = list(between(self.program.graph, low, high))
        low_end, high_end = 0, len(steps)  # predicted peaks rise along the way, nearly
        while low_end < high_end:
            middle = (low_end + high_end) // 2
            if self.timeline(steps[middle]).peak_bytes <= target_bytes:
                low_end = middle + 1
            else:
                high_end = middle
        near = steps[max(low_end - _NEAR, 0) : low_end + _NEAR]
        fitting = [s for s in near if self.timeline(s).peak_bytes <= target_bytes and self.price(s) < own]
        return min(fitting, key=lambda s: self.price(s), default=None)

    def outcome(self, schedule: Schedule, verify: bool, budget_bytes: int = 0) -> Outcome:
        """A schedule (or the one that speaks for it) with its peak in the words of a search for a budget."""
        if not verify:
            return Outcome(schedule, self.timeline(schedule).peak_bytes)
        return Outcome(*self.judge(schedule, budget_bytes))

    def curves(self, budget_bytes: int, by: Request) -> list[Curve]:
        """The curves of schedules to choose from, the one first that promises the least seconds for a budget."""
        room = budget_bytes - self.owned_bytes
        return sorted(self.planner_for(by.constraints).curves, key=lambda curve: curve.promised_seconds(room))

    @property
    def owned_bytes(self) -> int:
        """Bytes of arguments and results, which are in every peak."""
        plain = self.timeline(self.program.plain)
        return plain.argument_bytes + plain.output_bytes

    def uniform_schedules(self, by: Request) -> tuple[Schedule, ...]:
        """Schedules by one rule for all blocks, to be judged beside the planner's."""
        if by.strategy.name != "auto" or len(self.program.graph.ops) > _LONG_OPS:
            return ()
        task = make_task(self.program.graph, self.hardware, by.constraints, by.settings)
        by_hand = [find_schedules(lookup(name), task) for name in ("each_block", "dots", "dots_no_batch", "memory")]
        known = [*self.planner_for(by.constraints).baselines(), *(s for f in by_hand if f for s in f.schedules)]
        return tuple(dict.fromkeys(known))

    def lean_schedules(self, by: Request) -> tuple[Schedule, ...]:
        """The low end of a curve with nothing saved by segments that stand alone, for budgets below the curve.

        Constants that the reader of a saved value needs at full size may be there from the start of the program. The
        dynamic program cannot see that far ahead.
        """
        planner = self.planner_for(by.constraints)
        if by.strategy.name != "auto" or planner.cuts.limits != NO_LIMITS or len(self.program.graph.ops) > _LONG_OPS:
            return ()
        curve = planner.curve
        return tuple(dict.fromkeys(emptied(curve.schedule(p)) for p in _LOW_POINTS if p < len(curve.points)))

    def look_around(self, curve: Curve, point: int, limit_bytes: int) -> int:
        """Of the schedules at a point and above, the fastest predicted to be within a limit.

        Peaks do not follow the bytes that schedules were made for exactly.
        """
        last = len(curve.limits) - 1
        reach = sorted({min(point + step, last) for step in _AROUND})
        fitting = [p for p in reach if self.timeline(curve.schedule(p)).peak_bytes <= limit_bytes]
        return min(fitting, key=lambda p: (self.price(curve.schedule(p)), p), default=point)

    def expected_bytes(self, schedule: Schedule) -> int:
        """The least peak to expect of a schedule: as predicted, and off as little as any that was compiled."""
        return int(self.least_off * self.timeline(schedule).peak_bytes)

    def faster_ones(self, schedules: Sequence[Schedule], budget_bytes: int, price: float) -> list[Schedule]:
        """Of some schedules those that fit and have a lower price, the lowest first."""
        fitting = [s for s in schedules if self.timeline(s).peak_bytes <= budget_bytes]
        faster = [s for s in fitting if self.price(s) < price]
        return sorted(faster, key=lambda s: self.price(s))

    def smallest(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """Of some schedules the one with the least peak, by the evaluator, and the fastest that is nearly as small.

        They do not depend on the budget: a search for the least peak of a search that found nothing comes to them too.
        """
        if not schedules:
            return []
        least = min(schedules, key=lambda s: self.timeline(s).peak_bytes)
        near = [s for s in schedules if self.timeline(s).peak_bytes <= _NEARLY * self.timeline(least).peak_bytes]
        return list(dict.fromkeys([least, min(near, key=self.price)]))

    def search(self, curve: Curve | Family, owned: int, budget_bytes: int, verify: bool, start: int | None) -> Found:
        """Search one curve for the point whose peak is close to the budget and within it.

        Once one fits, points that are expected well above the budget are not compiled: that is their peak then.
        """
        fits = False

        def measure(point: int) -> int:
            nonlocal fits
            schedule = curve.schedule(point)
            if not verify:
                return self.timeline(schedule).peak_bytes
            if fits and (expected := self.expected_bytes(schedule)) > (1 + _SLACK) * budget_bytes:
                return expected
            peak = self.judge(schedule, budget_bytes)[1]
            fits = fits or peak <= budget_bytes
            return peak

        return search(curve.limits, owned, budget_bytes, measure, start, MAX_MEASURES if verify else _FEW_MEASURES)

    def least(self, tried: Tried, verify: bool, judged: Sequence[Schedule] = ()) -> Outcome:
        """The schedule with the least peak of searches that found nothing, and of others that were judged."""
        curve, found = min(tried, key=lambda row: row[1].least[1])
        others = [self.outcome(s, verify) for s in self.smallest(judged)]
        least = min([self.outcome(curve.schedule(found.least[0]), verify), *others], key=lambda o: o.peak_bytes)
        bound = not isinstance(curve, Family) and curve.cuts.limits.forbidden
        if bound or self.plain_bytes(verify) >= least.peak_bytes:
            return least
        plain = Outcome(self.program.plain, self.peak(self.program.plain, verify))
        return min(least, plain, key=lambda outcome: outcome.peak_bytes)
