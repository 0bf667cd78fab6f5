"""The fewest slices with which the gradient step of a function fits a budget.

In: a ``Judge``, a budget, numbers of slices and the schedule of each. Out: a number and its schedule, or
``BudgetError``.

More slices need less, until what stands beside them is all that is left. So the fewest that are predicted to fit are
found by doubling and halving; they are compiled, what comes out corrects the predictions, and so on until the same
number comes out again. Predictions are of what is beyond arguments and results, which are known.

Limits: inside a map over named axes nothing can be compiled, so predictions count, as in plans.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from remat_plan.graph.schedule import Schedule
from remat_plan.results.shortfall import below_minimum
from remat_plan.search.driver import most_compiles
from remat_plan.search.judge import Judge
from remat_plan.small.budget import Budget, BudgetError, format_bytes

_LOG = logging.getLogger("remat_plan")


def numbers_of_slices(units: int) -> list[int]:
    """Numbers of slices to choose among, ascending: of those between two powers of two the ones that divide the axis.

    Where none does, all are. A last, shorter slice runs behind the loop, so that it is compiled by itself and needs
    memory of its own: of a head for 4096 tokens, 8 slices need less than 14.

    >>> numbers_of_slices(64), numbers_of_slices(13)
    ([2, 4, 8, 16, 32, 64], [2, 3, 4, 5, 7, 13])
    """
    possible = sorted({-(-units // part) for part in range(1, units)})
    even = {count.bit_length() for count in possible if units % count == 0}
    return [count for count in possible if units % count == 0 or count.bit_length() not in even]


def fewest_slices(
    judge: Judge, budget: Budget, counts: Sequence[int], schedule_of: Callable[[int], Schedule]
) -> tuple[int, Schedule]:
    """Return the fewest slices that fit, with their schedule; 1 and the function as it is where that fits.

    Args:
        judge: of the program.
        budget: for its compiled gradient step.
        counts: numbers of slices, ascending.
        schedule_of: the schedule for a number of slices.

    Raises:
        BudgetError: none of them fits.
    """
    written = judge.program.written
    peak = judge.predicted_bytes if judge.mapped else judge.compiled_bytes
    judge.progress.say("measuring the function as written")
    present = peak(judge.baseline)
    budget_bytes = budget.resolve(present, judge.target.device_memory_bytes)
    if present <= budget_bytes:
        return 1, written
    search = _Search(judge, counts, schedule_of)
    peaks: dict[int, int] = {}
    while len(peaks) < most_compiles(judge.target):
        count = search.first_within(budget_bytes)
        if count is None or count in peaks:
            break
        peaks[count] = peak(schedule_of(count))
        search.learn(count, peaks[count])
    fitting = [count for count, size in peaks.items() if size <= budget_bytes]
    if not fitting:  # the least that is predicted is tried whatever came before, so that it is what an error names
        least = search.least()
        peaks[least] = peak(schedule_of(least))
        if peaks[least] > budget_bytes:
            raise _shortfall(judge, least, schedule_of(least), peaks[least], budget_bytes, present)
        fitting = [least]
    count = min(fitting)
    _LOG.info("%d slices: %s instead of %s", count, *map(format_bytes, (peaks[count], present)))
    return count, schedule_of(count)


class _Search:
    """What is predicted for numbers of slices; ``rate``: what a predicted byte comes out at when compiled."""

    def __init__(self, judge: Judge, counts: Sequence[int], schedule_of: Callable[[int], Schedule]):
        self.judge, self.counts, self.schedule_of = judge, counts, schedule_of
        self.rate = 1.0

    def beyond(self, count: int) -> int:
        """Predicted bytes beyond arguments and results."""
        self.judge.progress.say(f"evaluating {count} slices")
        return self.judge.predicted_bytes(self.schedule_of(count)) - self.judge.owned_bytes

    def learn(self, count: int, compiled: int) -> None:
        """Take what was compiled for a number as what its predicted bytes come out at."""
        self.rate = max(compiled - self.judge.owned_bytes, 0) / max(self.beyond(count), 1)

    def first_within(self, budget_bytes: int) -> int | None:
        """The fewest slices that are expected to fit; None where none are."""

        def fits(place: int) -> bool:
            return self.judge.owned_bytes + self.rate * self.beyond(self.counts[place]) <= budget_bytes

        low, high = -1, next((place for place in self.probes() if fits(place)), None)
        if high is None:
            return None
        low = max([place for place in self.probes() if place < high], default=low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return self.counts[high]

    def least(self) -> int:
        """Of some numbers of slices, from few to all, the one with the least predicted peak."""
        return min([self.counts[place] for place in self.probes()], key=self.beyond)

    def probes(self) -> list[int]:
        """Places among the numbers: twice as far each time, and the last."""
        places = [2**power - 1 for power in range(len(self.counts).bit_length())]
        return [*places, len(self.counts) - 1] if places[-1] < len(self.counts) - 1 else places


def _shortfall(
    judge: Judge, count: int, schedule: Schedule, least: int, budget_bytes: int, present: int
) -> BudgetError:
    """The error of a budget that no number of slices meets."""
    advice = f"another axis (along this one, {count} slices need least), rp.remat (which recomputes too), "
    timeline, verified = judge.timeline(schedule), not judge.mapped
    graph, device = judge.program.graph, judge.device
    return below_minimum(graph, timeline, least, budget_bytes, present, verified, device, advice)
