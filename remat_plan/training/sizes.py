"""The largest batch, sequence or model that fits, for a limit on overhead.

In: a function from sizes to steps, a budget. Out: ``LargestSize``, with its compiled peak.

What a step holds grows with the size along a straight line, and what its marks need at a given overhead does too, or
along a parabola. Two sizes that are predicted say where the budget is met first, and the compiler says what a predicted
byte comes out at; sizes that were compiled bend the line. Each size that is named was compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from remat_plan.results.steps import LargestSize
from remat_plan.search.driver import CLOSE, DOUBT
from remat_plan.search.mark import Choice, held_bytes, level_bytes, overhead, rate
from remat_plan.training.schedules import Measuring, first_rate, search_choices
from remat_plan.verify.compile import CompiledMemory

_TRIES = 4
"""So many sizes are compiled at most for one limit. After one that did not fit the next is smaller by the share
``CLOSE`` at least: what it missed may be the overhead. One that is larger than one that fits by less is not tried."""

_HALVINGS = 10
"""Steps of the search for the least level within a limit; the level is within a thousandth of the plain one then."""


def largest_of(found: Sequence[LargestSize], limit: float | None) -> LargestSize:
    """The largest of some sizes with no more than an overhead (None: with any); of equals the first.

    >>> rows = [LargestSize(8, 90, 0.0, 0.0), LargestSize(48, 95, 0.25, 0.3), LargestSize(51, 99, 0.24, 0.5)]
    >>> largest_of(rows, 0.3)
    LargestSize(size=51, peak_bytes=99, overhead=0.24, limit=0.3, host_bytes=0)
    """
    allowed = (row for row in found if limit is None or row.overhead <= limit)
    return replace(max(allowed, key=lambda row: row.size), limit=limit)


def where_met(peaks: Mapping[int, float], budget_bytes: float) -> float:
    """The size at which a budget is met, by the peaks of two sizes or more.

    Of the three that are nearest to the budget, on the parabola through them where it opens upwards (attention scores
    grow as the square of a sequence); else on the line through two of them. Infinite where peaks do not grow.

    Small sizes may all have one peak, that of the optimizer's update, and say nothing of larger ones: where two sizes
    are above the budget, the three are these and the largest within it.

    >>> where_met({1: 10.0, 2: 20.0}, 80), where_met({1: 1.0, 2: 4.0, 10: 100.0}, 36)
    (8.0, 6.0)
    >>> where_met({1: 4.0, 2: 4.0, 40: 42.0, 90: 92.0}, 24)
    22.0
    """
    near = sorted(peaks, key=lambda size: abs(peaks[size] - budget_bytes))[:3]
    within = max((size for size, peak in peaks.items() if peak <= budget_bytes), default=0)
    above = sorted(size for size, peak in peaks.items() if peak > budget_bytes and size > within)[:2]
    if within and len(above) == 2:
        near = [within, *above]
    one, other = sorted(near[:2])
    slope = (peaks[other] - peaks[one]) / (other - one)
    if len(near) > 2:
        # Newton's form: the line through two, and what the third is above it.
        third = near[2]
        bend = (peaks[third] - peaks[one] - slope * (third - one)) / ((third - one) * (third - other))
        if bend > 0:
            linear = slope - bend * (one + other)
            constant = peaks[one] - linear * one - bend * one * one - budget_bytes
            inside = linear * linear - 4 * bend * constant
            return (math.sqrt(max(inside, 0.0)) - linear) / (2 * bend)
    return one + (budget_bytes - peaks[one]) / slope if slope > 0 else math.inf


@dataclass
class Sizes:
    """Steps of several sizes, multiples of ``unit``, each traced once by ``step_at``.

    ``rate``, which is learned, are the compiled bytes that a predicted byte above the arguments comes out at.
    """

    step_at: Callable[[int], Measuring]
    unit: int
    budget_bytes: int
    rate: float = 1.0
    _steps: dict[int, Measuring] = field(default_factory=dict)

    def step(self, size: int) -> Measuring:
        if size not in self._steps:
            self._steps[size] = self.step_at(size)
        return self._steps[size]

    @property
    def compiles(self) -> int:
        return sum(step.compiles for step in self._steps.values())

    def as_written(self) -> LargestSize:
        """The largest size of the step as it was written."""
        peaks = {n: self._written(n).total_bytes for n in (self.unit, 2 * self.unit)}
        for _ in range(_TRIES):
            over = [n for n, peak in peaks.items() if peak > self.budget_bytes]
            guess = min([self._guess(peaks), *(n - self.unit for n in over)])
            if guess in peaks or guess < self.unit:
                break
            peaks[guess] = self._written(guess).total_bytes
        best = max((n for n, peak in peaks.items() if peak <= self.budget_bytes), default=0)
        self.rate = first_rate(self.step(best or self.unit))
        return LargestSize(best, peaks.get(best), 0.0, 0.0)

    def within(self, limit: float | None, first: int) -> LargestSize:
        """The largest size whose step fits with no more than some overhead (None: with any).

        Predictions are of the size ``first`` and its double; of what was compiled the least bytes are known.
        """
        needs = {n: level_within(self.step(n), limit) for n in (first, 2 * first)}
        known: dict[int, float] = {}
        best = LargestSize(0, None, 0.0, limit)
        most: float = math.inf
        for _ in range(_TRIES):
            expected = {n: self._held(n) + self.rate * need for n, need in needs.items()}
            guess = int(min(self._guess(expected | known), most))
            if guess < self.unit or guess <= (1 + CLOSE) * best.size:
                break
            row, least_bytes = self._fitted(guess, limit)
            if least_bytes is not None:
                known[guess] = least_bytes
            if row is None:
                most = self._rounded((1 - CLOSE) * guess)
            else:
                best = row
        return best

    def _fitted(self, size: int, limit: float | None) -> tuple[LargestSize | None, int | None]:
        """The step of a size, fitted, if it fits; the least bytes that it needs, if anything has so little overhead.

        What a predicted byte comes out at is learned from the choice that needs least of those that are allowed.
        Without a limit that is compiled first, and where it is far above the budget nothing else is.
        """
        step, held = self.step(size), self._held(size)
        if limit is None:
            lean = tuple(mark.fastest(0) for mark in step.marks)
            lean_bytes = step.compile(lean).total_bytes
            if lean_bytes > (1 + DOUBT) * self.budget_bytes:
                self.rate = rate(step.marks, lean, lean_bytes - held)
                return None, lean_bytes
        found, tried = search_choices(step, self.budget_bytes, self.rate, held)
        allowed = {
            choice: memory.total_bytes
            for choice, memory in tried.items()
            if limit is None or overhead(step.marks, choice) <= limit
        }
        if not allowed:
            return None, None
        least = min(allowed, key=allowed.__getitem__)
        self.rate = rate(step.marks, least, allowed[least] - held)
        if not found.fits or found.choice not in allowed:
            return None, allowed[least]
        made, memory = overhead(step.marks, found.choice), found.memory
        return LargestSize(size, memory.total_bytes, made, limit, memory.host_temp_bytes), allowed[least]

    def _guess(self, peaks: Mapping[int, float]) -> int:
        """The multiple at or below the place where peaks meet the budget; twice the largest where they do not grow."""
        place = where_met(peaks, self.budget_bytes)
        return 2 * max(peaks) if math.isinf(place) else self._rounded(place)

    def _rounded(self, size: float) -> int:
        return int(size // self.unit) * self.unit

    def _written(self, size: int) -> CompiledMemory:
        return self.step(size).as_written

    def _held(self, size: int) -> int:
        """What the step of a size holds all the time, on the line through the two smallest."""
        one, two = (held_bytes(self._written(n)) for n in (self.unit, 2 * self.unit))
        return one + (two - one) * (size - self.unit) // self.unit


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
