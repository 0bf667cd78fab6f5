"""Planning one program: predict, compile, correct.

In: ``Program``, target, budget. Out: ``Plan``, or ``BudgetError``.

The evaluator chooses, the compiler corrects; both are asked through ``scores``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf

from remat_plan import collector
from remat_plan.by_name import (
    Family,
    Outcome,
    Request,
    fastest_within,
    find_schedules,
    least_peak,
    make_task,
    may_stay_plain,
)
from remat_plan.plan import NO_BUDGET, Plan
from remat_plan.planning.certificate import least_overhead
from remat_plan.planning.limits import NO_CONSTRAINTS, NO_LIMITS, Constraints
from remat_plan.planning.planner import Curve, Planner
from remat_plan.planning.strategies.records import Found as SchedulesFound
from remat_plan.planning.strategies.registry import check_settings, lookup
from remat_plan.program import Program
from remat_plan.report.decisions import decide
from remat_plan.report.progress import Progress
from remat_plan.report.shortfall import below_minimum, nothing_to_do
from remat_plan.report.trace import reduce_timeline
from remat_plan.rewrite.segments import emptied
from remat_plan.scores import Schedule, Scores
from remat_plan.units import Budget, BudgetError
from remat_plan.verify.search import MAX_MEASURES, Found, search
from remat_plan.verify.targets import Target

Tried = Sequence[tuple[Curve | Family, Found]]

_ROUNDS = 4
"""So many searches are made for one budget: what one compiles shows where the next has to look."""

_SLACK = 0.03
_NOTHING_TO_GAIN = 0.005
"""A plan found with fast compiles is not improved if it is so close to the budget, or recomputes so little."""

_LONG_OPS = 4000
"""Beside the schedules of longer programs, whose predictions take a second each, uniform ones are not judged."""

_FEW_MEASURES = 4
"""So many points of a curve are predicted: the search with the compiler begins there, or the plan is a prediction."""

_DOUBT = 1.1
_OTHER_COMPILES = 3
"""Schedules beside the curves are compiled if predicted up to this share over the budget, and at most so many."""

_LOW_POINTS = (0, 1, 2, 4, 8, 16)
"""Points of a curve that are tried without what their segments save, where no point fits."""

_AROUND = (0, 1, 2, 4, 8, 12)
"""How far above a found point schedules are tried that may fit although they were planned for more."""


def next_goal(goal: int, found_bytes: int, peak_bytes: int, budget_bytes: int) -> int:
    """The goal of the next search, after one came to a schedule that is not what was wanted.

    Args:
        goal: of that search.
        found_bytes, peak_bytes: the schedule's peak in the words of the search, and the one that counts.
        budget_bytes: what the peak that counts has to be within.
    """
    scaled = int(budget_bytes * found_bytes / peak_bytes * (1.0 if peak_bytes <= budget_bytes else 0.99))
    return max(scaled, found_bytes) if found_bytes > goal else scaled


class Session(Scores):
    """Plans one program for one target."""

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
            self.progress.say(f"making schedules by strategy {request.strategy}")
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
        tried = []
        for curve in self.curves(budget_bytes, by):
            found = self.search(curve, self.owned_bytes, budget_bytes, False, None)
            if found.point is not None:
                return self.outcome(curve.schedule(found.point), False)
            tried.append((curve, found))
        others = (*self.uniform_schedules(by), *self.lean_schedules(by))
        if faster := self.faster_ones(others, budget_bytes, inf):
            return self.outcome(faster[0], False)
        return self.least(tried, False, others)

    def find_compiled(self, budget_bytes: int, by: Request) -> Outcome:
        """``find`` with the compiler's word; the curve comes first whose best schedule is predicted to be fastest."""
        starts = []
        for curve in self.curves(budget_bytes, by):
            start = self.search(curve, self.owned_bytes, budget_bytes, False, None).point
            if start is not None:
                start = self.look_around(curve, start, budget_bytes)
            starts.append((inf if start is None else self.timeline(curve.schedule(start)).seconds, curve, start))
        chosen, seconds, tried = None, inf, []
        for _, curve, start in sorted(starts, key=lambda row: row[0]):
            found = self.search(curve, self.owned_bytes, budget_bytes, True, start)
            tried.append((curve, found))
            if found.point is not None:
                fitting = [p for p, peak in found.measured if peak <= budget_bytes]
                best = min(fitting, key=lambda p: self.timeline(curve.schedule(p)).seconds)
                near = self.look_around(curve, best, self.timeline(curve.schedule(best)).peak_bytes)
                if near != best:
                    best = near if self.compiled_bytes(curve.schedule(near), self.fast) <= budget_bytes else best
                chosen = curve.schedule(best)
                seconds = self.timeline(chosen).seconds
                break
        judged = self.uniform_schedules(by)
        if chosen is None:
            judged += self.lean_schedules(by)
        others = self.faster_ones(judged, int(_DOUBT * budget_bytes), seconds)[:_OTHER_COMPILES]
        if chosen is None and judged:
            others.append(self.smallest(judged))
        for other in others:
            if self.compiled_bytes(other, self.fast) <= budget_bytes:
                return self.outcome(other, True)
        return self.least(tried, True, judged) if chosen is None else self.outcome(chosen, True)

    def outcome(self, schedule: Schedule, verify: bool) -> Outcome:
        """A schedule with its peak in the words of a search."""
        peak = self.compiled_bytes(schedule, self.fast) if verify else self.timeline(schedule).peak_bytes
        return Outcome(schedule, peak)

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
        if by.strategy != "auto" or len(self.program.graph.ops) > _LONG_OPS:
            return ()
        task = make_task(self.program.graph, self.hardware, by.constraints, by.settings)
        by_hand = [find_schedules(name, task) for name in ("each_block", "dots", "dots_no_batch", "memory")]
        known = [*self.planner_for(by.constraints).baselines(), *(s for f in by_hand if f for s in f.schedules)]
        return tuple(dict.fromkeys(known))

    def lean_schedules(self, by: Request) -> tuple[Schedule, ...]:
        """The low end of a curve with nothing saved by segments that stand alone, for budgets below the curve.

        Constants that the reader of a saved value needs at full size may be there from the start of the program. The
        dynamic program cannot see that far ahead.
        """
        planner = self.planner_for(by.constraints)
        if by.strategy != "auto" or planner.cuts.limits != NO_LIMITS or len(self.program.graph.ops) > _LONG_OPS:
            return ()
        curve = planner.curves[0]
        return tuple(dict.fromkeys(emptied(curve.schedule(p)) for p in _LOW_POINTS if p < len(curve.points)))

    def find_confirmed(self, budget_bytes: int, verify: bool, by: Request) -> Schedule:
        """``find``, with the compiler's default options having the last word where the search compiles fast.

        Where nothing fits, or fast compiles are far off, a search for another goal may find what the first one missed.

        Raises:
            BudgetError: nothing fits.
        """
        goal, advice = budget_bytes, ""
        peaks: dict[Schedule, int] = {}
        for _ in range(_ROUNDS):
            outcome = self.find(goal, verify, by)
            if outcome.schedule in peaks:
                break
            advice = outcome.advice
            peak = peaks[outcome.schedule] = self.peak(outcome.schedule, verify)
            if peak <= budget_bytes and self.is_close(outcome.schedule, peak / budget_bytes, verify):
                break
            goal = next_goal(goal, outcome.peak_bytes, peak, budget_bytes)
        if fitting := [s for s, peak in peaks.items() if peak <= budget_bytes]:
            return min(fitting, key=lambda s: self.timeline(s).seconds)
        least = min(peaks, key=peaks.__getitem__)
        raise self.budget_error(least, peaks[least], budget_bytes, verify, advice)

    def is_close(self, schedule: Schedule, share: float, verify: bool) -> bool:
        """Whether no other search would find a better schedule than this one (its peak: a share of the budget)."""
        fast = verify and self.fast
        return not fast or share >= 1 - _SLACK or self.overhead(schedule) <= _NOTHING_TO_GAIN

    def look_around(self, curve: Curve, point: int, limit_bytes: int) -> int:
        """Of the schedules at a point and above, the fastest predicted to be within a limit.

        Peaks do not follow the bytes that schedules were made for exactly.
        """
        last = len(curve.limits) - 1
        reach = sorted({min(point + step, last) for step in _AROUND})
        fitting = [p for p in reach if self.timeline(curve.schedule(p)).peak_bytes <= limit_bytes]
        return min(fitting, key=lambda p: (self.timeline(curve.schedule(p)).seconds, p), default=point)

    def faster_ones(self, schedules: Sequence[Schedule], budget_bytes: int, seconds: float) -> list[Schedule]:
        """Of some schedules those that fit and take less than ``seconds``, by the evaluator, the fastest first."""
        fitting = [s for s in schedules if self.timeline(s).peak_bytes <= budget_bytes]
        faster = [s for s in fitting if self.timeline(s).seconds < seconds]
        return sorted(faster, key=lambda s: self.timeline(s).seconds)

    def smallest(self, schedules: Sequence[Schedule]) -> Schedule:
        """Of some schedules the one with the least peak, by the evaluator."""
        return min(schedules, key=lambda s: self.timeline(s).peak_bytes)

    def search(self, curve: Curve | Family, owned: int, budget_bytes: int, verify: bool, start: int | None) -> Found:
        """Search one curve for the point whose peak is close to the budget and within it."""

        def measure(point: int) -> int:
            schedule = curve.schedule(point)
            return self.compiled_bytes(schedule, self.fast) if verify else self.timeline(schedule).peak_bytes

        return search(curve.limits, owned, budget_bytes, measure, start, MAX_MEASURES if verify else _FEW_MEASURES)

    def least(self, tried: Tried, verify: bool, judged: Sequence[Schedule] = ()) -> Outcome:
        """The schedule with the least peak of searches that found nothing, and of others that were judged."""
        curve, found = min(tried, key=lambda row: row[1].least[1])
        least = self.outcome(curve.schedule(found.least[0]), verify)
        if judged and (other := self.outcome(self.smallest(judged), verify)).peak_bytes < least.peak_bytes:
            least = other
        bound = not isinstance(curve, Family) and curve.cuts.limits.forbidden
        if bound or self.baseline_bytes(verify) >= least.peak_bytes:
            return least
        plain = Outcome(self.program.plain, self.peak(self.program.plain, verify))
        return min(least, plain, key=lambda outcome: outcome.peak_bytes)

    def budget_error(self, schedule: Schedule, least: int, budget_bytes: int, verify: bool, advice: str) -> BudgetError:
        """The error that names ``least``, the peak of ``schedule``, as what can be had."""
        timeline = self.traced(schedule)  # its equations have the user's source lines
        return below_minimum(self.program.graph, timeline, least, budget_bytes, verify, self.device, advice)

    @collector.paused()
    def make_plan(self, budget: Budget | None, request: Request, started: float) -> Plan:
        """Plan for a budget, or without one; see ``api.plan``.

        ``started`` is when planning began (``time.perf_counter``).
        """
        strategy = lookup(request.strategy)
        check_settings(strategy, request.settings, budget is not None)
        task = make_task(self.program.graph, self.hardware, request.constraints, request.settings)
        verify = request.verify
        identity = self.program.plain
        notes: list[str] = []
        if verify and self.mapped:
            verify = False
            notes.append(
                "not verified: inside a map over named axes (shard_map, pmap, vmap) the function cannot be compiled "
                "by itself, so peaks are predictions"
            )
        self.progress.say("measuring the plain step")
        baseline = self.baseline_bytes(verify)
        budget_bytes = budget.resolve(baseline, self.target.device_memory_bytes) if budget is not None else None
        if (
            budget_bytes is not None
            and may_stay_plain(strategy, task)
            and baseline <= budget_bytes
            and self.peak(identity, verify) <= budget_bytes
        ):
            schedule: Schedule = identity
            notes.append("the budget is met without recomputing anything: the function is left as it is")
        else:
            if budget_bytes is None:
                schedule = least_peak(self.found(request), self)
            else:
                self.judged.clear()
                schedule = self.find_confirmed(budget_bytes, verify, request)
                notes += [f"{len(self.judged)} schedules were compiled"] if verify else []
            if (found := self.found(request)) is not None:
                notes += [f"source: {strategy.source}", *found.notes]
        if not self.tracing and not self.agrees(schedule):
            self.tracing = True
            return self.make_plan(budget, request, started)
        before, after = self.timeline(identity), self.traced(schedule)
        within = self.peak(schedule, verify) if budget_bytes is None else budget_bytes
        overhead = self.overhead(schedule)
        return Plan(
            strategy=request.strategy,
            target=self.device,
            budget=budget.text if budget is not None else NO_BUDGET,
            budget_bytes=budget_bytes,
            baseline_peak_bytes=baseline,
            predicted_peak_bytes=after.peak_bytes,
            compiled_peak_bytes=self.compiled_bytes(schedule) if verify else None,
            overhead=overhead,
            lower_bound=min(least_overhead(task.graph, task.cuts, self.hardware, before, within), overhead),
            program=self.program.fingerprint,
            schedule=schedule,
            decisions=decide(self.program.graph, schedule),
            before=reduce_timeline(before),
            after=reduce_timeline(after),
            step_flops=after.flops,
            plain_flops=before.flops,
            argnums=request.argnums,
            has_aux=request.has_aux,
            static_argnums=request.static_argnums,
            existing=request.existing,
            notes=tuple(notes),
            planning_seconds=time.perf_counter() - started,
        )
