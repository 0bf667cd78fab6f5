"""The largest batch that fits, for a limit on overhead.

In: a function from batch sizes to marked steps, a budget. Out: ``Largest``: a batch size, with its compiled peak.

What a step holds, and what its marks need at a given overhead, grow with the batch along straight lines: two sizes that
are predicted say where the budget is met, and the compiler says what a predicted byte comes out at. Each size that is
named was compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from remat_plan.search.driver import CLOSE
from remat_plan.search.mark import Choice, Mark, held_bytes, level_bytes, overhead, rate
from remat_plan.training.schedules import Measuring, first_rate, search_choices
from remat_plan.verify.compile import CompiledMemory

_TRIES = 4
"""So many batch sizes are compiled at most for one limit. After one that did not fit the next is smaller by the share
``CLOSE`` at least: what it missed may be the overhead. One that is larger than one that fits by less is not tried."""

_HALVINGS = 10
"""Steps of the search for the least level within a limit; the level is within a thousandth of the plain one then."""


@dataclass(frozen=True)
class MarkedStep:
    """A step at one batch size: its marks, and how it is compiled."""

    marks: tuple[Mark, ...]
    measuring: Measuring


@dataclass(frozen=True, slots=True)
class Largest:
    """A batch size, 0 where none fits; what its step needs, and its overhead."""

    batch: int
    peak_bytes: int | None
    overhead: float


def largest_of(found: Sequence[Largest], limit: float | None) -> Largest:
    """The largest of some batches with no more than an overhead (None: with any); of equals the first.

    >>> largest_of([Largest(8, 90, 0.0), Largest(48, 95, 0.25), Largest(51, 99, 0.24)], 0.3).batch
    51
    """
    return max((row for row in found if limit is None or row.overhead <= limit), key=lambda row: row.batch)


@dataclass
class Batches:
    """Steps of several batch sizes, each traced once.

    Attributes:
        step_at: makes the step of a batch size.
        unit: what batch sizes are multiples of.
        budget_bytes: what a step must be within.
        rate: compiled bytes that a predicted byte above the arguments comes out at; learned.
    """

    step_at: Callable[[int], MarkedStep]
    unit: int
    budget_bytes: int
    rate: float = 1.0
    _steps: dict[int, MarkedStep] = field(default_factory=dict)

    def step(self, batch: int) -> MarkedStep:
        """The step of a batch size."""
        if batch not in self._steps:
            self._steps[batch] = self.step_at(batch)
        return self._steps[batch]

    @property
    def compiles(self) -> int:
        """How often steps were compiled."""
        return sum(step.measuring.compiles for step in self._steps.values())

    def as_written(self) -> Largest:
        """The largest batch of the step as it was written."""
        peaks = {b: self._written(b).total_bytes for b in (self.unit, 2 * self.unit)}
        for _ in range(_TRIES):
            low, high = sorted(peaks)[-2:]
            guess = self._on_line(low, peaks[low], high, peaks[high])
            over = [b for b, peak in peaks.items() if peak > self.budget_bytes]
            guess = min([guess, *(b - self.unit for b in over)])
            if guess in peaks or guess < self.unit:
                break
            peaks[guess] = self._written(guess).total_bytes
        best = max((b for b, peak in peaks.items() if peak <= self.budget_bytes), default=0)
        known = self.step(best or self.unit)
        self.rate = first_rate(known.measuring, known.marks)
        return Largest(best, peaks.get(best), 0.0)

    def within(self, limit: float | None, first: int) -> Largest:
        """The largest batch whose step fits with no more than some overhead (None: with any).

        Args:
            limit: the overhead.
            first: a batch size; the line that predictions are on goes through it and its double.
        """
        needs = {b: level_within(self.step(b).marks, limit) for b in (first, 2 * first)}
        best = Largest(0, None, 0.0)
        most: float = math.inf
        for _ in range(_TRIES):
            guess = int(min(self._crossing(first, needs), most))
            if guess < self.unit or guess <= (1 + CLOSE) * best.batch:
                break
            row = self._fitted(guess, limit)
            if row.peak_bytes is not None and row.peak_bytes <= self.budget_bytes:
                best = row
            else:
                most = self._rounded(min((1 - CLOSE) * guess, self._in_proportion(row)))
        return best

    def _in_proportion(self, row: Largest) -> float:
        """The batch size that fits if what a step does not hold whatever the batch is in proportion to it."""
        if row.peak_bytes is None:
            return math.inf
        fixed = self._held(0)
        return row.batch * (self.budget_bytes - fixed) / max(row.peak_bytes - fixed, 1)

    def _fitted(self, batch: int, limit: float | None) -> Largest:
        """The step of a batch size, fitted; the one with the least peak and allowed overhead where none fits.

        There is no peak where none that was compiled has so little overhead.

        What a predicted byte comes out at is learned from the choice that needs least of those that are allowed.
        """
        step, held = self.step(batch), self._held(batch)
        found, tried = search_choices(step.measuring, step.marks, self.budget_bytes, self.rate, held)
        allowed = {
            choice: memory.total_bytes
            for choice, memory in tried.items()
            if limit is None or overhead(step.marks, choice) <= limit
        }
        if not allowed:
            return Largest(batch, None, 0.0)
        least = min(allowed, key=allowed.__getitem__)
        self.rate = rate(step.marks, least, allowed[least] - held)
        if found.fits and found.choice in allowed:
            return Largest(batch, found.memory.total_bytes, overhead(step.marks, found.choice))
        return Largest(batch, max(allowed[least], self.budget_bytes + 1), overhead(step.marks, least))

    def _crossing(self, first: int, needs: dict[int, int]) -> int:
        """The batch size at which the budget is met, by what two sizes are predicted to need."""
        peaks = [self._held(b) + self.rate * needs[b] for b in (first, 2 * first)]
        return self._on_line(first, peaks[0], 2 * first, peaks[1])

    def _on_line(self, one: int, peak: float, other: int, other_peak: float) -> int:
        """The multiple at or below the place where a line through two sizes meets the budget."""
        slope = (other_peak - peak) / (other - one)
        if slope <= 0:
            return 2 * max(one, other)
        batch = one + (self.budget_bytes - peak) / slope
        return self._rounded(batch)

    def _rounded(self, batch: float) -> int:
        """The multiple at or below a number."""
        return int(batch // self.unit) * self.unit

    def _written(self, batch: int) -> CompiledMemory:
        return self.step(batch).measuring.as_written

    def _held(self, batch: int) -> int:
        """What the step of a batch size holds all the time, on the line through the two smallest."""
        one, two = (held_bytes(self._written(b)) for b in (self.unit, 2 * self.unit))
        return one + (two - one) * (batch - self.unit) // self.unit


def level_within(marks: tuple[Mark, ...], limit: float | None) -> int:
    """The least level at which marks recompute no more than a share of their plain seconds."""
    plain: Choice = tuple(mark.judge.program.plain for mark in marks)
    low, high = 0, level_bytes(marks, plain)
    least = tuple(mark.fastest(0) for mark in marks)
    if limit is None or overhead(marks, least) <= limit:
        return level_bytes(marks, least)
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        choice = tuple(mark.fastest(middle) for mark in marks)
        low, high = (low, middle) if _is_within(marks, choice, middle, limit) else (middle, high)
    return high


def _is_within(marks: tuple[Mark, ...], choice: Choice, level: int, limit: float) -> bool:
    return level_bytes(marks, choice) <= level and overhead(marks, choice) <= limit
