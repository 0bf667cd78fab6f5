"""Searching one curve of schedules for one whose peak is within the budget and close to it.

In: a ``Curve`` of the planner, or a ``Family`` of a strategy's schedules; a ``Judge``, a budget. Out: ``Searched``:
the point to use, or the least peak seen.

The predicted peak follows the planned limit closely but not exactly, so the search corrects the limit: from each
judged point it moves by the bytes missing, then by interpolation between the nearest point that fits and the
nearest that does not. It stops within ``TOLERANCE`` of the budget, at neighbouring points, or after ``MAX_MEASURES``
predictions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remat_plan.graph.schedule import Schedule
from remat_plan.planning.planner import Curve
from remat_plan.search.judge import Judge

TOLERANCE = 0.01
"""A point that fits is taken, and no other tried, if this share of the budget or less is left."""

MAX_MEASURES = 4
"""So many points are predicted before the low end: the search with the compiler corrects the rest."""

_LOW_END = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35)
"""Where on the curve, by limits, points are measured when none fits: the least peak reported is the least of these."""

_AROUND = (0, 1, 2, 4, 8, 12)
"""How far above a found point schedules are tried that may fit although they were planned for more. A curve of no more
points than these is tried whole: a lower point may be the faster one."""


@dataclass(frozen=True, slots=True)
class Family:
    """Schedules of which none needs more memory and more time than another, from least memory to most.

    Attributes:
        schedules: in that order.
        limits: per schedule its predicted peak, arguments and results left out.
    """

    schedules: tuple[Schedule, ...]
    limits: tuple[int, ...]

    def schedule(self, point: int) -> Schedule:
        """The schedule at a point."""
        return self.schedules[point]


@dataclass(frozen=True, slots=True)
class Searched:
    """Result of a search.

    Attributes:
        point: the point to use; None when none fits.
        measured: (point, compiled peak bytes) of everything that was compiled, in order.
        floor: those of them that every search compiles that finds nothing, whatever its budget.
    """

    point: int | None
    measured: tuple[tuple[int, int], ...]
    floor: tuple[int, ...] = ()

    @property
    def least(self) -> tuple[int, int]:
        """The point with the least peak; another search with that peak as its budget finds it (or a better one)."""
        sure = [pair for pair in self.measured if pair[0] in self.floor] or self.measured
        return min(sure, key=lambda pair: (pair[1], -pair[0]))


def rank(schedules: Sequence[Schedule], judge: Judge) -> Family:
    """Evaluate schedules and return those that no other beats in both peak and seconds."""
    timelines = [judge.timeline(schedule) for schedule in schedules]
    kept: list[tuple[int, float, int]] = []
    for row in sorted((made.peak_bytes, made.seconds, number) for number, made in enumerate(timelines)):
        if not kept or (row[1] < kept[-1][1] and row[0] > kept[-1][0]):
            kept.append(row)
    return Family(tuple(schedules[row[2]] for row in kept), tuple(row[0] - judge.owned_bytes for row in kept))


def search_curve(curve: Curve | Family, judge: Judge, budget_bytes: int) -> Searched:
    """Search one curve for the point whose predicted peak is close to the budget and within it; see ``find_point``."""
    return find_point(curve.limits, judge.owned_bytes, budget_bytes, lambda p: judge.predicted_bytes(curve.schedule(p)))


def look_around(judge: Judge, curve: Curve | Family, point: int, limit_bytes: int) -> int:
    """Of the schedules at a point and above, the fastest predicted to be within a limit; of a short curve, of all.

    Peaks do not follow the bytes that schedules were made for exactly; nor do seconds those that the chain added up.
    """
    last = len(curve.limits) - 1
    short = last < len(_AROUND)
    reach = range(last + 1) if short else sorted({min(point + step, last) for step in _AROUND})
    fitting = [p for p in reach if judge.predicted_bytes(curve.schedule(p)) <= limit_bytes]
    return min(fitting, key=lambda p: (judge.price(curve.schedule(p)), p), default=point)


class _Search:
    def __init__(self, limits: Sequence[int], base_bytes: int, budget: int, measure: Callable[[int], int], most: int):
        self.limits, self.base, self.budget, self.measure, self.most = limits, base_bytes, budget, measure, most
        self.seen: dict[int, int] = {}

    def peak(self, point: int) -> int:
        if point not in self.seen:
            self.seen[point] = self.measure(point)
        return self.seen[point]

    def point_for(self, limit_bytes: float) -> int:
        return min(max(bisect_right(self.limits, limit_bytes) - 1, 0), len(self.limits) - 1)

    def aim(self, fits: int | None, misses: int | None) -> float:
        """The limit to try next, from the nearest measured points on both sides."""
        target = self.budget * (1 - TOLERANCE / 2)
        if fits is not None and misses is not None:
            low, high = self.peak(fits), self.peak(misses)
            share = (target - low) / max(high - low, 1)
            share = min(max(share, 0.1), 0.9)
            return self.limits[fits] + share * (self.limits[misses] - self.limits[fits])
        known = fits if fits is not None else misses
        if known is None:
            return target - self.base
        return self.limits[known] + (target - self.peak(known)) / self.slope(known)

    def slope(self, known: int) -> float:
        """Bytes of peak per byte of limit below a measured point: less than one where outputs lend their memory."""
        below = [p for p in self.seen if p < known and self.peak(p) <= self.budget]
        if not below:
            return 1.0
        nearest = max(below)
        rise = self.peak(known) - self.peak(nearest)
        return min(max(rise / max(self.limits[known] - self.limits[nearest], 1), 0.2), 1.0)

    def run(self, start: int | None) -> int | None:
        last = len(self.limits) - 1
        fits: int | None = None
        misses: int | None = None
        point = self.point_for(self.aim(None, None)) if start is None else start
        while len(self.seen) < self.most:
            peak = self.peak(point)
            if peak <= self.budget:
                fits = point if fits is None else max(fits, point)
                if peak >= (1 - TOLERANCE) * self.budget or fits == last:
                    break
            else:
                misses = point if misses is None else min(misses, point)
                if misses == 0:
                    break
            if fits is not None and misses is not None and misses - fits <= 1:
                break
            point = self.point_for(self.aim(fits, misses))
            if fits is not None:
                point = max(point, fits + 1)
            if misses is not None:
                point = min(point, misses - 1)
        return fits

    def floor(self) -> tuple[int, ...]:
        """The points of ``low_end``, which do not depend on the budget."""
        low, high = self.limits[0], self.limits[-1]
        return tuple(self.point_for(low + share * (high - low)) for share in _LOW_END)

    def low_end(self) -> int | None:
        """Compile a few schedules that save little: the compiler's minimum is not always the planned one."""
        for point in self.floor():
            self.peak(point)
        fitting = [p for p, peak in self.seen.items() if peak <= self.budget]
        return max(fitting) if fitting else None


def find_point(
    limits: Sequence[int],
    base_bytes: int,
    budget: int,
    measure: Callable[[int], int],
    start: int | None = None,
    most: int = MAX_MEASURES,
) -> Searched:
    """Find the point with the most memory whose measured peak is within the budget.

    Args:
        limits: per point the bytes it was planned for, increasing.
        base_bytes: arguments and outputs, which come on top.
        budget: bytes not to be exceeded.
        measure: compiles a point (or predicts it) and returns its peak bytes.
        start: the point to measure first; by default from its limit.
        most: how many points may be measured before the low end is tried.
    """
    state = _Search(limits, base_bytes, budget, measure, most)
    point = state.run(start)
    floor: tuple[int, ...] = ()
    if point is None:
        point, floor = state.low_end(), state.floor()
    return Searched(point, tuple(state.seen.items()), floor)
