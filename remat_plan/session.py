"""Planning one program: predict, compile, correct.

In: ``Program``, target, budget. Out: ``Plan``, or ``BudgetError``.

The evaluator chooses, the compiler corrects (``choosing``); both are asked through ``scores``. Every plan is set
against the function as its author wrote it, with ``jax.checkpoint`` regions of its own or without.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from typing import TypedDict

from remat_plan import collector
from remat_plan.by_name import Request, least_peak, make_task, may_stay_plain
from remat_plan.choosing import DOUBT, Chooser
from remat_plan.graph.schedule import Schedule, is_written
from remat_plan.planning.certificate import least_overhead
from remat_plan.planning.limits import NO_CONSTRAINTS
from remat_plan.planning.strategies.registry import check_budget
from remat_plan.report.shortfall import below_minimum
from remat_plan.results.decisions import decide
from remat_plan.results.plan import NO_BUDGET, Plan
from remat_plan.results.trace import reduce_timeline
from remat_plan.scores import AGREEMENT
from remat_plan.units import Budget, BudgetError

_ROUNDS = 4
"""So many searches are made for one budget: what one compiles shows where the next has to look."""

_SLACK = 0.03
_NOTHING_TO_GAIN = 0.005
"""A plan found with fast compiles is not improved if it is so close to the budget, or recomputes so little."""

_LEFT_AS_WRITTEN = (
    "left as it was written, with jax.checkpoint regions of its own: it fits, and nothing that fits is predicted to be "
    "faster"
)


def next_goal(goal: int, found_bytes: int, peak_bytes: int, budget_bytes: int) -> int:
    """The goal of the next search, after one came to a schedule that is not what was wanted.

    Args:
        goal: of that search.
        found_bytes, peak_bytes: the schedule's peak in the words of the search, and the one that counts.
        budget_bytes: what the peak that counts has to be within.
    """
    scaled = int(budget_bytes * found_bytes / peak_bytes * (1.0 if peak_bytes <= budget_bytes else 0.99))
    return max(scaled, found_bytes) if found_bytes > goal else scaled


class WrittenFigures(TypedDict, total=False):
    """What a plan says about a function with ``jax.checkpoint`` regions of its own; see ``Plan``."""

    written_overhead: float
    written_flops: float


class Session(Chooser):
    """Plans one program for one target."""

    def find_confirmed(self, budget_bytes: int, verify: bool, by: Request) -> Schedule:
        """``find``, with the compiler's default options having the last word where the search compiles fast.

        Where nothing fits, or fast compiles are far off, a search for another goal may find what the first one missed.
        The function as written is a candidate like any other, whose peak is known.

        Raises:
            BudgetError: nothing fits.
        """
        goal, advice = budget_bytes, ""
        peaks: dict[Schedule, int] = {}
        if self.may_stay_written(by):
            written = self.program.written
            peaks[written] = self.baseline_bytes(verify)
            if peaks[written] <= budget_bytes and not self.may_be_beaten(written, budget_bytes, by):
                return written
        for _ in range(_ROUNDS):
            outcome = self.find(goal, verify, by)
            if outcome.schedule in peaks:
                break
            advice = outcome.advice
            peak = peaks[outcome.schedule] = self.peak(outcome.schedule, verify)
            if peak <= budget_bytes and self.is_close(outcome.schedule, peak / budget_bytes, verify):
                break
            if peak == outcome.peak_bytes and peak > (1 + _SLACK) * budget_bytes:
                break  # the search heard the last word, and its least is far above
            goal = next_goal(goal, outcome.peak_bytes, peak, budget_bytes)
        if fitting := [s for s, peak in peaks.items() if peak <= budget_bytes]:
            return self.fastest(fitting)
        least = min(peaks, key=peaks.__getitem__)
        raise self.budget_error(least, peaks[least], budget_bytes, verify, advice)

    def may_stay_written(self, by: Request) -> bool:
        """Whether the function as written is a candidate: a search without constraints, of one that has own remat."""
        return by.strategy.name == "auto" and by.constraints == NO_CONSTRAINTS and self.program.has_own_remat

    def may_be_beaten(self, written: Schedule, budget_bytes: int, by: Request) -> bool:
        """Whether any schedule that may fit is predicted to be faster than the function as written."""
        limit = int(DOUBT * budget_bytes)
        others = (self.find_predicted(limit, by).schedule, *self.uniform_schedules(by), *self.lean_schedules(by))
        return bool(self.faster_ones(others, limit, (1 - AGREEMENT) * self.price(written)))

    def fastest(self, schedules: Sequence[Schedule]) -> Schedule:
        """Of schedules that fit the fastest predicted; the function as written unless another is clearly faster."""
        best = min(schedules, key=self.price)
        written = self.program.written
        if written in schedules and self.price(best) > (1 - AGREEMENT) * self.price(written):
            return written
        return best

    def is_close(self, schedule: Schedule, share: float, verify: bool) -> bool:
        """Whether no other search would find a better schedule than this one (its peak: a share of the budget)."""
        fast = verify and self.fast
        return not fast or share >= 1 - _SLACK or self.overhead(schedule) <= _NOTHING_TO_GAIN

    def budget_error(self, schedule: Schedule, least: int, budget_bytes: int, verify: bool, advice: str) -> BudgetError:
        """The error that names ``least``, the peak of ``schedule``, as what can be had."""
        timeline = self.timeline(schedule)
        return below_minimum(self.program.graph, timeline, least, budget_bytes, verify, self.device, advice)

    @collector.paused()
    def make_plan(self, budget: Budget | None, request: Request, started: float) -> Plan:
        """Plan for a budget, or without one; see ``api.plan``.

        ``started`` is when planning began (``time.perf_counter``).
        """
        strategy = request.strategy
        check_budget(strategy, request.settings, budget is not None)
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
        self.progress.say("measuring the function as it is")
        baseline, plain = self.baseline_bytes(verify), self.plain_bytes(verify)
        budget_bytes = budget.resolve(baseline, self.target.device_memory_bytes) if budget is not None else None
        self.speakers.clear()
        self.least_off = inf
        if may_stay_plain(strategy, task):
            self.introduce(identity)
        if self.may_stay_written(request):
            self.introduce(self.program.written)
        if budget_bytes is None:
            schedule = least_peak(self.found(request), self)
            notes += self.source_notes(request)
        elif may_stay_plain(strategy, task) and plain <= budget_bytes and self.peak(identity, verify) <= budget_bytes:
            written = [self.program.written] if self.may_stay_written(request) and baseline <= budget_bytes else []
            schedule = self.fastest([identity, *written])
            notes.append(_LEFT_AS_WRITTEN if schedule in written else self.plain_note)
        else:
            self.judged.clear()
            schedule = self.find_confirmed(budget_bytes, verify, request)
            notes += [_LEFT_AS_WRITTEN] if is_written(schedule) else self.faster_note(schedule, baseline, budget_bytes)
            searched = len(self.judged - {self.program.written})
            notes += [f"{searched} schedules were compiled"] if verify and searched else []
            notes += self.source_notes(request)
        before, after = self.timeline(identity), self.timeline(schedule)
        within = self.peak(schedule, verify) if budget_bytes is None else budget_bytes
        overhead = self.overhead(schedule)
        return Plan(
            strategy=strategy.name,
            target=self.device,
            budget=budget.text if budget is not None else NO_BUDGET,
            budget_bytes=budget_bytes,
            written_peak_bytes=baseline,
            plain_peak_bytes=plain,
            **self.written_figures(),
            predicted_peak_bytes=after.peak_bytes,
            compiled_peak_bytes=self.compiled_bytes(schedule) if verify else None,
            overhead=overhead,
            lower_bound=min(least_overhead(task.graph, task.cuts, self.hardware, before, within), overhead),
            program=self.program.fingerprint,
            schedule=schedule,
            decisions=decide(self.program.graph, schedule),
            plain_timeline=reduce_timeline(before),
            planned_timeline=reduce_timeline(after),
            step_flops=after.flops,
            plain_flops=before.flops,
            argnums=request.argnums,
            has_aux=request.has_aux,
            static_argnums=request.static_argnums,
            existing=request.existing,
            notes=tuple(notes),
            planning_seconds=time.perf_counter() - started,
        )

    @property
    def plain_note(self) -> str:
        """Why the plan recomputes nothing."""
        own = "the function's own jax.checkpoint regions are left out"
        left = own if self.program.has_own_remat else "the function is left as it is"
        return f"the budget is met without recomputing anything: {left}"

    def faster_note(self, schedule: Schedule, baseline_bytes: int, budget_bytes: int) -> list[str]:
        """What a plan gains where the function as written would fit too."""
        if not self.program.has_own_remat or baseline_bytes > budget_bytes:
            return []
        gain = 1 - self.timeline(schedule).seconds / self.timeline(self.program.written).seconds
        text = f"the function as written is within the budget too; this plan is predicted to be {gain:.1%} faster"
        return [text] if gain > 0 else []

    def source_notes(self, request: Request) -> list[str]:
        """What a strategy by name has to say; nothing for the planner's own search."""
        found = self.found(request)
        source = [f"source: {request.strategy.source}"] if request.strategy.source else []
        return [] if found is None else [*source, *found.notes]

    def written_figures(self) -> WrittenFigures:
        """The figures of a plan for a function with ``jax.checkpoint`` regions of its own; none for any other."""
        if not self.program.has_own_remat:
            return {}
        written = self.program.written
        return {
            "written_overhead": self.overhead(written),
            "written_flops": self.timeline(written).flops,
        }
