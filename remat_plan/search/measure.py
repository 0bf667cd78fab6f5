"""Whose word on peaks a search goes by: the evaluator's or the compiler's.

In: a ``Judge``. Out: a ``Measure``, made for one search: the peak of a schedule, and the peak (of another schedule,
perhaps) that is good enough to search with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from remat_plan.graph.schedule import Schedule
from remat_plan.search.judge import Judge
from remat_plan.verify.compile import CompiledMemory

SLACK = 0.03
"""A schedule is not compiled if this share more than the budget is expected of it, and another one fits."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search came to.

    Attributes:
        schedule: the one to use; where none fits, the one with the least peak.
        peak_bytes: its peak in the words of the search: predicted, or compiled.
    """

    schedule: Schedule
    peak_bytes: int


class Predicted:
    """The evaluator's word.

    Attributes:
        judge: who predicts.
    """

    def __init__(self, judge: Judge):
        self.judge = judge

    def peak(self, schedule: Schedule) -> int:
        """The predicted peak."""
        return self.judge.predicted_bytes(schedule)

    def ask(self, schedule: Schedule, budget_bytes: int = 0) -> Outcome:
        """The predicted peak; every schedule speaks for itself."""
        return Outcome(schedule, self.peak(schedule))

    def along(self, budget_bytes: int) -> Callable[[Schedule], int]:
        """The predicted peak, whatever the budget."""
        return self.peak


class Compiled:
    """The compiler's word; attributes as of ``Predicted``.

    Schedules with equal predicted peaks and seconds, to the byte, mostly are one program (what they save differently
    nothing reads), so the first of them speaks for the others.

    Args:
        judge: who compiles.
        known: schedules that speak before all others.
    """

    def __init__(self, judge: Judge, known: Sequence[Schedule] = ()):
        self.judge = judge
        self.least_off = inf  # the least compiled peak over its prediction
        self.peaks: dict[Schedule, int] = {}
        self.speakers: dict[tuple[int, float], Schedule] = {}  # by predicted peak and seconds
        for schedule in known:
            self.speaker(schedule)

    def memory(self, schedule: Schedule) -> CompiledMemory:
        """What the compiler says of a schedule."""
        memory = self.judge.compiled(schedule)
        self.peaks[schedule] = memory.total_bytes
        return memory

    def peak(self, schedule: Schedule) -> int:
        """The compiled peak."""
        return self.memory(schedule).total_bytes

    def ask(self, schedule: Schedule, budget_bytes: int = 0) -> Outcome:
        """Compile a schedule, or the one that speaks for it, and return the one compiled and its peak.

        Where the speaker needs more than the budget although it was predicted to fit, the schedule speaks for itself
        alone.
        """
        speaker, predicted = self.speaker(schedule), self.judge.predicted_bytes(schedule)
        peak = self.peak(speaker)
        self.least_off = min(self.least_off, peak / max(predicted, 1))
        if speaker != schedule and predicted <= budget_bytes < peak:
            return Outcome(schedule, self.peak(schedule))
        return Outcome(speaker, peak)

    def speaker(self, schedule: Schedule) -> Schedule:
        """The schedule that speaks for this one from now on: itself, if it is the first of its kind."""
        made = self.judge.timeline(schedule)
        return self.speakers.setdefault((made.peak_bytes, made.seconds), schedule)

    def expected_bytes(self, schedule: Schedule) -> int:
        """The least peak to expect of a schedule: as predicted, and off as little as any that was compiled."""
        return int(self.least_off * self.judge.predicted_bytes(schedule))

    def along(self, budget_bytes: int) -> Callable[[Schedule], int]:
        """The compiled peak; once one fits, the expected one of schedules that are expected well above the budget."""
        fits = False

        def peak(schedule: Schedule) -> int:
            nonlocal fits
            if fits and (expected := self.expected_bytes(schedule)) > (1 + SLACK) * budget_bytes:
                return expected
            found = self.ask(schedule, budget_bytes).peak_bytes
            fits = fits or found <= budget_bytes
            return found

        return peak


Measure = Predicted | Compiled
"""What a search is given; the two have ``judge``, ``peak``, ``ask`` and ``along`` in common."""
