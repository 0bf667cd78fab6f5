"""The largest batch that fits, for a limit on overhead.

In: a function from batch sizes to steps, a budget. Out: ``BatchSize``, with its compiled peak.

What a step holds, and what its marks need at a given overhead, grow with the batch along straight lines: two sizes that
are predicted say where the budget is met, and the compiler says what a predicted byte comes out at. Each size that is
named was compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from remat_plan.results.steps import BatchSize
from remat_plan.search.driver import CLOSE
from remat_plan.search.mark import Choice, held_bytes, level_bytes, overhead, rate
from remat_plan.training.schedules import Measuring, first_rate, search_choices
from remat_plan.verify.compile import CompiledMemory

_TRIES = 4
"""So many batch sizes are compiled at most for one limit. After one that did not fit the next is smaller by the share
``CLOSE`` at least: what it missed may be the overhead. One that is larger than one that fits by less is not tried."""

_HALVINGS = 10
"""Steps of the search for the least level within a limit; the level is within a thousandth of the plain one then."""


def largest_of(found: Sequence[BatchSize], limit: float | None) -> BatchSize:
    """The largest of some batches with no more than an overhead (None: with any); of equals the first.

    >>> largest_of([BatchSize(8, 90, 0.0, 0.0), BatchSize(48, 95, 0.25, 0.3), BatchSize(51, 99, 0.24, 0.5)], 0.3)
    BatchSize(batch=51, peak_bytes=99, overhead=0.24, limit=0.3)
    """
    allowed = (row for row in found if limit is None or row.overhead <= limit)
    return replace(max(allowed, key=lambda row: row.batch), limit=limit)


@dataclass
class Batches:
    """Steps of several batch sizes, multiples of ``unit``, each traced once by ``step_at``.

    ``rate``, which is learned, are the compiled bytes that a predicted byte above the arguments comes out at.
    """

    step_at: Callable[[int], Measuring]
    unit: int
    budget_bytes: int
    rate: float = 1.0
    _steps: dict[int, Measuring] = field(default_factory=dict)

    def step(self, batch: int) -> Measuring:
        if batch not in self._steps:
            self._steps[batch] = self.step_at(batch)
        return self._steps[batch]

    @property
    def compiles(self) -> int:
        return sum(step.compiles for step in self._steps.values())

    def as_written(self) -> BatchSize:
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
        self.rate = first_rate(self.step(best or self.unit))
        return BatchSize(best, peaks.get(best), 0.0, 0.0)

    def within(self, limit: float | None, first: int) -> BatchSize:
        """The largest batch whose step fits with no more than some overhead (None: with any).

        The line that predictions are on goes through the batch size ``first`` and its double.
        """
        needs = {b: level_within(self.step(b), limit) for b in (first, 2 * first)}
        best = BatchSize(0, None, 0.0, limit)
        most: float = math.inf
        for _ in range(_TRIES):
            low, high = (self._held(b) + self.rate * need for b, need in needs.items())
            guess = int(min(self._on_line(first, low, 2 * first, high), most))
            if guess < self.unit or guess <= (1 + CLOSE) * best.batch:
                break
            row = self._fitted(guess, limit)
            if row.peak_bytes is not None and row.peak_bytes <= self.budget_bytes:
                best = row
            else:
                most = self._rounded(min((1 - CLOSE) * guess, self._in_proportion(row)))
        return best

    def _in_proportion(self, row: BatchSize) -> float:
        """The batch size that fits if what a step does not hold whatever the batch is in proportion to it."""
        if row.peak_bytes is None:
            return math.inf
        fixed = self._held(0)
        return row.batch * (self.budget_bytes - fixed) / max(row.peak_bytes - fixed, 1)

    def _fitted(self, batch: int, limit: float | None) -> BatchSize:
        """The step of a batch size, fitted; the one with the least peak and allowed overhead where none fits.

        There is no peak where none that was compiled has so little overhead.

        What a predicted byte comes out at is learned from the choice that needs least of those that are allowed.
        """
        step, held = self.step(batch), self._held(batch)
        found, tried = search_choices(step, self.budget_bytes, self.rate, held)
        allowed = {
            choice: memory.total_bytes
            for choice, memory in tried.items()
            if limit is None or overhead(step.marks, choice) <= limit
        }
        if not allowed:
            return BatchSize(batch, None, 0.0, limit)
        least = min(allowed, key=allowed.__getitem__)
        self.rate = rate(step.marks, least, allowed[least] - held)
        if found.fits and found.choice in allowed:
            return BatchSize(batch, found.memory.total_bytes, overhead(step.marks, found.choice), limit)
        return BatchSize(batch, max(allowed[least], self.budget_bytes + 1), overhead(step.marks, least), limit)

    def _on_line(self, one: int, peak: float, other: int, other_peak: float) -> int:
        """The multiple at or below the place where a line through two sizes meets the budget."""
        slope = (other_peak - peak) / (other - one)
        if slope <= 0:
            return 2 * max(one, other)
        return self._rounded(one + (self.budget_bytes - peak) / slope)

    def _rounded(self, batch: float) -> int:
        return int(batch // self.unit) * self.unit

    def _written(self, batch: int) -> CompiledMemory:
        return self.step(batch).as_written

    def _held(self, batch: int) -> int:
        """What the step of a batch size holds all the time, on the line through the two smallest."""
        one, two = (held_bytes(self._written(b)) for b in (self.unit, 2 * self.unit))
        return one + (two - one) * (batch - self.unit) // self.unit


def level_within(step: Measuring, limit: float | None) -> int:
    """The least level at which the marks of a step recompute no more than a share of their plain seconds."""
    marks = step.marks

    def fastest(level: int) -> Choice:
        return tuple(mark.fastest(level) for mark in marks)

    low, high, least = 0, level_bytes(marks, step.plain), fastest(0)
    if limit is None or overhead(marks, least) <= limit:
        return level_bytes(marks, least)
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        choice = fastest(middle)
        is_within = level_bytes(marks, choice) <= middle and overhead(marks, choice) <= limit
        low, high = (low, middle) if is_within else (middle, high)
    return high
