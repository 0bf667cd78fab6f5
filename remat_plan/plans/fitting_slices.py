"""The slices with which the gradient step of a function fits a budget.

In: a ``Judge``, a budget, numbers of slices and the schedule of each. Out: a schedule, or ``BudgetError``.

They are the schedules of a strategy that nobody named, searched like those of any other: mostly the fewest that fit,
since each slice reads all weights and adds to all of their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remat_plan.graph.schedule import Schedule
from remat_plan.planning.strategies.records import SEARCHED, Found, Strategy
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.confirm import find_confirmed
from remat_plan.search.driver import most_compiles
from remat_plan.search.judge import Judge
from remat_plan.small.budget import Budget


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


def fitting_slices(
    judge: Judge, budget: Budget, counts: Sequence[int], schedule_of: Callable[[int], Schedule]
) -> Schedule:
    """Return the fastest schedule that fits; the function as it is where that fits.

    Args:
        judge: of the program.
        budget: for its compiled gradient step.
        counts: numbers of slices.
        schedule_of: the schedule for a number of slices.

    Raises:
        BudgetError: none of them fits.
    """
    peak = judge.predicted_bytes if judge.mapped else judge.compiled_bytes
    judge.progress.say("measuring the function as written")
    present = peak(judge.baseline)
    budget_bytes = budget.resolve(present, judge.target.device_memory_bytes)
    if present <= budget_bytes:
        return judge.program.written
    schedules = tuple(map(schedule_of, counts))
    strategy = Strategy("slices", "", "", "", SEARCHED, find=lambda task: Found(schedules))
    request = Request(strategy, not judge.mapped, (), False, (), "keep")
    compiles = None if judge.mapped else most_compiles(judge.target)
    numbers = dict(zip(schedules, counts, strict=True))
    candidates = Candidates(judge.rules, judge.progress)

    def advise(least: Schedule) -> str:
        best = f" (along this one, {numbers[least]} slices need least)" if least in numbers else ""
        return f"another axis{best}, rp.remat (which recomputes too), "

    return find_confirmed(judge, candidates, budget_bytes, request, compiles, advise).schedule
