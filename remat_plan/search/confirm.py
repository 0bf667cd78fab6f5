"""The schedule for a budget, or the error that says what is needed at least.

In: a ``Measure``, ``Candidates``, a budget, a ``Request``. Out: a schedule within the budget, or ``BudgetError``.

Where compiling is quick, the planner's curves are searched with it (``choose``). Where it takes minutes (TPUs that are
not attached), the step is searched by levels, as a training step with one mark that is all of it: that takes few
compiles.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_plan.graph.schedule import Schedule
from remat_plan.report.shortfall import UNSEEN_ADVICE, below_minimum
from remat_plan.search.alone import find_by_levels
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.choose import DOUBT, faster_ones, find, find_predicted
from remat_plan.search.judge import UNMERGED, Judge, may_be_spread
from remat_plan.search.measure import Compiled, Measure
from remat_plan.search.seconds import by_compiler, faster_by, no_more_work

_ROUNDS = 4
"""So many searches are made for one budget at most, each around the least peak of the one before."""

_AGREEMENT = 0.005
"""The share by which seconds of the function as written, which JAX traces, may differ from those of a schedule put
together here and count as equal."""

_SLACK = 0.03
"""Where the least peak found is further above the budget, as a share of it, no other search is made."""

_ADVICE = "another strategy ('auto' searches for one that fits), "
_COLLECTIVES_ADVICE = "never_recompute=() (collectives may run again then), "


def find_confirmed(measure: Measure, candidates: Candidates, budget_bytes: int, request: Request) -> Schedule:
    """The fastest schedule found whose peak is within a budget.

    The function as written is a candidate like any other, whose peak is known.

    Raises:
        BudgetError: nothing fits.
    """
    judge = measure.judge
    peaks: dict[Schedule, int] = {}
    if may_stay_written(judge, request):
        written = judge.program.written
        peaks[written] = measure.peak(written)
        if peaks[written] <= budget_bytes and not _may_be_beaten(judge, candidates, budget_bytes, request):
            return written
    named = candidates.named(request)
    checked = named is not None and len(named.schedules) == 1
    if isinstance(measure, Compiled) and judge.fast and not checked:
        outcome = find_by_levels(measure, candidates, budget_bytes, request)
        peaks[outcome.schedule] = outcome.peak_bytes
    else:
        _search(measure, candidates, budget_bytes, request, peaks)
    if fitting := [s for s, peak in peaks.items() if peak <= budget_bytes]:
        return _quickest(measure, fastest(judge, fitting), budget_bytes)
    least = min(peaks, key=peaks.__getitem__)
    graph, timeline, verified = judge.program.graph, judge.timeline(least), isinstance(measure, Compiled)
    advice = _ADVICE if checked else ""
    advice += _COLLECTIVES_ADVICE if candidates.keeps_collectives(request) else ""
    advice += UNSEEN_ADVICE if may_be_spread(judge.program.call.leaves, judge.target) and not judge.mapped else ""
    present_bytes = measure.peak(judge.baseline)
    raise below_minimum(graph, timeline, peaks[least], budget_bytes, present_bytes, verified, judge.device, advice)


def _search(
    measure: Measure, candidates: Candidates, budget_bytes: int, request: Request, peaks: dict[Schedule, int]
) -> None:
    """``find``; where its least is just above the budget, again, since around it there is often less.

    Args:
        measure: whose word counts.
        candidates: where schedules come from.
        budget_bytes: what has to be met.
        request: what was asked for.
        peaks: of the schedules that are known; those that are found are added.
    """
    goal = budget_bytes
    for _ in range(_ROUNDS):
        outcome = find(measure, candidates, goal, request)
        if outcome.schedule in peaks:
            break
        peak = peaks[outcome.schedule] = measure.peak(outcome.schedule)
        if peak <= budget_bytes or (peak == outcome.peak_bytes and peak > (1 + _SLACK) * budget_bytes):
            break
        goal = next_goal(goal, outcome.peak_bytes, peak, budget_bytes)


def _quickest(measure: Measure, found: Schedule, budget_bytes: int) -> Schedule:
    """Of what the search compiled and what fits, the fastest by the compiler; ``found`` unless it is surely faster."""
    if not isinstance(measure, Compiled):
        return found
    judge = measure.judge
    fitting = [s for s, peak in measure.peaks.items() if peak <= budget_bytes and s != UNMERGED]
    return faster_by(by_compiler(judge), found, no_more_work(lambda s: judge.timeline(s).flops, found, fitting))


def next_goal(goal: int, found_bytes: int, peak_bytes: int, budget_bytes: int) -> int:
    """The goal of the next search, after one came to a schedule that needs more than the budget.

    Args:
        goal: of that search.
        found_bytes, peak_bytes: peaks of the schedule that speaks for this one, and its own.
        budget_bytes: what its own has to be within.
    """
    scaled = int(budget_bytes * found_bytes / peak_bytes * 0.99)
    return max(scaled, found_bytes) if found_bytes > goal else scaled


def may_stay_written(judge: Judge, request: Request) -> bool:
    """Whether the function as written is a candidate: a search without constraints, of one that has own remat."""
    free = request.strategy.name == "auto" and request.constraints.is_free
    return free and judge.program.has_own_remat


def fastest(judge: Judge, schedules: Sequence[Schedule]) -> Schedule:
    """Of schedules that fit the fastest predicted; the function as written unless another is clearly faster."""
    best = min(schedules, key=judge.price)
    written = judge.program.written
    if written in schedules and judge.price(best) > (1 - _AGREEMENT) * judge.price(written):
        return written
    return best


def _may_be_beaten(judge: Judge, candidates: Candidates, budget_bytes: int, request: Request) -> bool:
    """Whether any schedule that may fit is predicted to be faster than the function as written."""
    limit = int(DOUBT * budget_bytes)
    found = find_predicted(judge, candidates, limit, request).schedule
    others = (found, *candidates.uniform(request), *candidates.lean(request))
    return bool(faster_ones(judge, others, limit, (1 - _AGREEMENT) * judge.price(judge.program.written)))
