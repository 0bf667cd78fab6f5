"""The schedule for a budget, with the last word on its peak.

In: a ``Measure``, ``Candidates``, a budget, a ``Request``. Out: a schedule within the budget, or ``BudgetError``.

Where a search compiles fast, the peak that counts is another one than the search went by. What one search comes to
shows where the next has to look.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_plan.graph.schedule import Schedule
from remat_plan.report.shortfall import below_minimum
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.choose import DOUBT, faster_ones, find, find_predicted
from remat_plan.search.judge import UNMERGED, Judge
from remat_plan.search.measure import Compiled, Measure
from remat_plan.search.seconds import by_compiler, faster_by, no_more_work

_ROUNDS = 4
"""So many searches are made for one budget at most: after fewer, what fast compiles are far off may be missed."""

_AGREEMENT = 0.005
"""The share by which seconds of the function as written, which JAX traces, may differ from those of a schedule put
together here and count as equal."""

_SLACK = 0.03
"""A plan found with fast compiles is not improved if it is this close to the budget, as a share of it. Where the least
peak found is further above it, and is the one that counts, no other search is made."""

_NOTHING_TO_GAIN = 0.005
"""Nor is one improved that recomputes this share of the plain seconds, or less."""

_ADVICE = "another strategy ('auto' searches for one that fits), "
_COLLECTIVES_ADVICE = "never_recompute=() (collectives may run again then), "


def find_confirmed(measure: Measure, candidates: Candidates, budget_bytes: int, request: Request) -> Schedule:
    """``find``, with the peak that counts having the last word.

    Where nothing fits, or fast compiles are far off, a search for another goal may find what the first one missed.
    The function as written is a candidate like any other, whose peak is known.

    Raises:
        BudgetError: nothing fits.
    """
    judge = measure.judge
    goal = budget_bytes
    peaks: dict[Schedule, int] = {}
    if may_stay_written(judge, request):
        written = judge.program.written
        peaks[written] = measure.peak(written)
        if peaks[written] <= budget_bytes and not _may_be_beaten(judge, candidates, budget_bytes, request):
            return written
    for _ in range(_ROUNDS):
        outcome = find(measure, candidates, goal, request)
        if outcome.schedule in peaks:
            break
        peak = peaks[outcome.schedule] = measure.peak(outcome.schedule)
        if peak <= budget_bytes and _is_close(measure, outcome.schedule, peak / budget_bytes):
            break
        if peak == outcome.peak_bytes and peak > (1 + _SLACK) * budget_bytes:
            break  # the search heard the last word, and its least is far above
        goal = next_goal(goal, outcome.peak_bytes, peak, budget_bytes)
    if fitting := [s for s, peak in peaks.items() if peak <= budget_bytes]:
        return _quickest(measure, fastest(judge, fitting), budget_bytes)
    least = min(peaks, key=peaks.__getitem__)
    graph, timeline, verified = judge.program.graph, judge.timeline(least), isinstance(measure, Compiled)
    named = candidates.named(request)
    advice = _ADVICE if named is not None and len(named.schedules) == 1 else ""
    advice += _COLLECTIVES_ADVICE if candidates.keeps_collectives(request) else ""
    raise below_minimum(graph, timeline, peaks[least], budget_bytes, verified, judge.device, advice)


def _quickest(measure: Measure, found: Schedule, budget_bytes: int) -> Schedule:
    """Of what the search compiled and what fits, the fastest by the compiler; ``found`` unless it is surely faster."""
    if not isinstance(measure, Compiled):
        return found
    judge = measure.judge
    fitting = [s for s, peak in measure.peaks.items() if peak <= budget_bytes and s != UNMERGED]
    return faster_by(by_compiler(judge), found, no_more_work(lambda s: judge.timeline(s).flops, found, fitting))


def next_goal(goal: int, found_bytes: int, peak_bytes: int, budget_bytes: int) -> int:
    """The goal of the next search, after one came to a schedule that is not what was wanted.

    Args:
        goal: of that search.
        found_bytes, peak_bytes: the schedule's peak in the words of the search, and the one that counts.
        budget_bytes: what the peak that counts has to be within.
    """
    scaled = int(budget_bytes * found_bytes / peak_bytes * (1.0 if peak_bytes <= budget_bytes else 0.99))
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


def _is_close(measure: Measure, schedule: Schedule, share: float) -> bool:
    """Whether no other search would find a better schedule than this one (its peak: a share of the budget)."""
    return not measure.fast or share >= 1 - _SLACK or measure.judge.overhead(schedule) <= _NOTHING_TO_GAIN
