"""Choosing among the schedules of one program for a budget, by the evaluator alone.

In: a ``Judge``, ``Candidates``, a budget, a ``Request``. Out: the fastest schedule found that is predicted to fit, or
the one that comes closest.

Searched are the planner's curves and, beside them, uniform schedules, lean ones, and those of a local search; or the
schedules of a strategy that was asked for by name. What the compiler says of them is asked by ``levels``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from remat_plan.cost.price import counts_gains
from remat_plan.graph.schedule import Schedule
from remat_plan.graph.structure import is_loop
from remat_plan.planning.planner import Curve
from remat_plan.planning.strategies.records import Found
from remat_plan.report.shortfall import nothing_to_do
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.curves import Family, Searched, look_around, rank, search_curve
from remat_plan.search.judge import Judge
from remat_plan.search.refine import ROUGHLY, refined

Tried = Sequence[tuple[Curve | Family, Searched]]

DOUBT = 1.1
"""The function as written stays where none predicted up to this share of the budget is predicted to be faster."""

_SHORT_OPS = 200
"""In programs of no more equations all that could be tried is predicted: it takes a moment, and there the chain's sums
are furthest from the seconds of the whole, so that a larger budget could come out with more overhead. For the same
reason what is next to the budget is refined there as well: it may be far slower than what is between two others."""

_STARTS = 4
"""So many of the fastest that fit are refined in them: what is made of one with less memory may beat what comes of
the fastest, and a smaller budget would find it."""

_RUNGS = 4
"""So many budgets a short program is planned for beside the one that is asked. Without them one of 2000 random programs
had +17 % at more than 85 % of the plain peak, and +1 % at 75 to 85 %."""

_REFINED_OPS = 1000
"""In longer programs without loops what is between a schedule and the next is not looked for by predictions alone."""

SAME_PEAK = 1e-3
"""Peaks that differ by no more than this share are the same where the least is looked for. Of a ResNet-50 on a TPU the
least by a millionth recomputes twice as much as the others, and the compiler needs 13 per cent more for it."""


def find(judge: Judge, candidates: Candidates, budget_bytes: int, request: Request) -> Schedule:
    """Find the schedule with the least recomputation that is predicted to fit, or else the least predicted peak.

    Raises:
        BudgetError: nothing is computed, so nothing can be recomputed.
    """
    program = judge.program
    if not program.graph.ops:
        raise nothing_to_do(program.graph, judge.predicted_bytes(program.plain), budget_bytes)
    if (named := candidates.named(request)) is not None:
        return fastest_within(judge, candidates, named, budget_bytes, request)
    return find_predicted(judge, candidates, budget_bytes, request)


def fastest_within(judge: Judge, candidates: Candidates, named: Found, budget_bytes: int, request: Request) -> Schedule:
    """Of a strategy's schedules the one with the fewest recomputed seconds that fits, or else the least peak.

    A strategy with one schedule has that one checked.
    """
    if len(named.schedules) == 1:
        return named.schedules[0]
    family = rank(named.schedules, judge)
    room = budget_bytes - judge.owned_bytes
    point = max((p for p, limit in enumerate(family.limits) if limit <= room), default=None)
    if point is None:
        return or_plain(judge, candidates, request, family.schedules[0])
    return family.schedules[point]


def find_predicted(judge: Judge, candidates: Candidates, budget_bytes: int, request: Request) -> Schedule:
    """``find`` among the planner's schedules, by predictions alone.

    Where refining starts and ends depends on the budget. So in a short program what fits is held against what is found
    within its own peak, within a byte less, and within a few budgets that are the same whatever is asked: a smaller
    budget would find that.
    """
    found = _predicted_within(judge, candidates, budget_bytes, request)
    is_short = len(judge.program.graph.ops) <= _SHORT_OPS
    overhead, peak_bytes = judge.overhead(found), judge.predicted_bytes(found)
    is_free = overhead == 0.0 or (overhead < 0.0 and not counts_gains(judge.hardware))
    if not is_short or peak_bytes > budget_bytes or is_free:
        return found
    rungs = candidates.rungs(request, lambda: _rungs(judge, candidates, request))
    below = [_predicted_within(judge, candidates, peak_bytes - less, request) for less in (0, 1)]
    return next(iter(faster_ones(judge, [*below, *rungs], budget_bytes, judge.price(found))), found)


def _rungs(judge: Judge, candidates: Candidates, request: Request) -> tuple[Schedule, ...]:
    """What is found within budgets from the least peak up, equally far apart, below the plain one."""
    low = judge.predicted_bytes(_predicted_within(judge, candidates, 0, request))
    high = judge.predicted_bytes(judge.unplanned)
    budgets = [low + (high - low) * step // _RUNGS for step in range(_RUNGS)] if low < high else []
    return tuple([_predicted_within(judge, candidates, budget, request) for budget in budgets])


def _predicted_within(judge: Judge, candidates: Candidates, budget_bytes: int, request: Request) -> Schedule:
    """The fastest schedule that is predicted to fit, refined from those at hand; or else the least peak."""
    starts = _starts(judge, candidates, budget_bytes, request)
    fitting = [curve.schedule(point) for curve, _, point in starts if point is not None]
    ops = judge.program.graph.ops
    is_short = len(ops) <= _SHORT_OPS
    others = known_beside(judge, candidates, request)
    if not fitting and not is_short:
        others += (*candidates.lean(request), *candidates.spread(request))
    if faster := faster_ones(judge, [*fitting, *others], budget_bytes, inf):
        if len(ops) > _REFINED_OPS and not any(map(is_loop, ops)):
            return faster[0]  # points of a curve are near each other there, and predictions take long
        known = _beside_curves(judge, candidates, request, others)
        curves = [curve for curve, _, _ in starts]
        if not is_short:
            return refined(judge, faster[0], curves, known, budget_bytes, ROUGHLY)
        found = [refined(judge, start, curves, known, budget_bytes, 0.0) for start in faster[:_STARTS]]
        return min(found, key=judge.price)
    closest = least(judge, [(curve, found) for curve, found, _ in starts], others)
    return or_plain(judge, candidates, request, closest)


def known_beside(judge: Judge, candidates: Candidates, request: Request) -> tuple[Schedule, ...]:
    """The schedules beside the curves that are judged whatever the budget; of a short program with those along them."""
    others = (*candidates.uniform(request), *candidates.improved(request, judge.cost, judge.identity))
    if len(judge.program.graph.ops) <= _SHORT_OPS:
        others += (*candidates.lean(request), *candidates.spread(request))
    return others


def _starts(
    judge: Judge, candidates: Candidates, budget_bytes: int, request: Request
) -> list[tuple[Curve, Searched, int | None]]:
    """Each of the planner's curves, what is predicted along it, and its point for a budget; None if none fits."""
    rows = []
    for curve in candidates.curves(budget_bytes - judge.owned_bytes, request):
        found = search_curve(curve, judge, budget_bytes)
        point = None if found.point is None else look_around(judge, curve, found.point, budget_bytes)
        rows.append((curve, found, point))
    return rows


def _beside_curves(
    judge: Judge, candidates: Candidates, request: Request, others: Sequence[Schedule]
) -> list[Schedule]:
    """What is refined towards beside the curves: other schedules, and the plain one where it is allowed."""
    return [*others, *([judge.program.plain] if candidates.may_stay_plain(request) else [])]


def faster_ones(judge: Judge, schedules: Sequence[Schedule], budget_bytes: int, price: float) -> list[Schedule]:
    """Of some schedules those that are predicted to fit and have a lower price, the lowest first."""
    fitting = [s for s in schedules if judge.predicted_bytes(s) <= budget_bytes]
    return sorted((s for s in fitting if judge.price(s) < price), key=judge.price)


def or_plain(judge: Judge, candidates: Candidates, request: Request, found: Schedule) -> Schedule:
    """What came closest; or the schedule that recomputes nothing where that needs less and is allowed."""
    if not candidates.may_stay_plain(request):
        return found
    return min(found, judge.program.plain, key=judge.predicted_bytes)


def least(judge: Judge, tried: Tried, others: Sequence[Schedule] = ()) -> Schedule:
    """The schedule with the least peak of searches that found nothing, and of others.

    Where one instant sets the peak, much of a curve has nearly the same; of that it is the one that recomputes least.
    """
    low = (1 + SAME_PEAK) * min(found.least[1] for _, found in tried)
    ends = [(curve, found.least[0]) for curve, found in tried if found.least[1] <= low]
    schedules = [curve.schedule(p) for curve, end in ends for p in (end, _end_of_plateau(judge, curve, end))]
    peaks = {s: judge.predicted_bytes(s) for s in (*schedules, *others)}
    most = (1 + SAME_PEAK) * min(peaks.values())
    return min((s for s in peaks if peaks[s] <= most), key=lambda s: (judge.price(s), peaks[s]))


def _end_of_plateau(judge: Judge, curve: Curve | Family, point: int) -> int:
    """The last of the points above one that are predicted to need as much as it and to recompute less and less."""
    limit = int((1 + SAME_PEAK) * judge.predicted_bytes(curve.schedule(point)))
    while (further := look_around(judge, curve, point, limit)) > point:
        point = further
    return point
