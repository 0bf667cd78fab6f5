"""Choosing among the schedules of one program: which fits a budget, by the evaluator and by the compiler.

In: a ``Measure``, ``Candidates``, a budget, a ``Request``. Out: an ``Outcome``: the fastest schedule found that fits,
or the one that comes closest.

Searched are the planner's curves and, beside them, uniform schedules, lean ones, and those of a local search; or the
schedules of a strategy that was asked for by name. The evaluator says where to begin and what is worth a compile; the
compiler, where it is asked, has the last word.
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
from remat_plan.search.measure import SLACK, Compiled, Measure, Outcome, Predicted
from remat_plan.search.refine import ROUGHLY, refined

Tried = Sequence[tuple[Curve | Family, Searched]]

DOUBT = 1.1
"""Schedules predicted up to this share of the budget may fit: of those beside the curves no others are compiled, and
the function as written stays where none is predicted to be faster."""

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

_OTHER_COMPILES = 3
"""So many of them are compiled at most that are expected to fit."""

_GAIN = 0.02
"""One that is not expected to fit is compiled all the same if this share faster than what fits."""

_FASTER = 0.005
"""Another curve is searched if its best is predicted to be faster by this share than what fits of those before."""

_UNSURE_COMPILES = 2
"""So many of those are compiled at most."""

_NEARLY = 1.25
"""Where nothing fits, the fastest schedule predicted up to this much above the least peak is compiled as well: what is
run again inside what is run again may come out larger than predicted."""

_SAME_PEAK = 1e-3
"""Peaks that differ by no more than this share are the same where the least is looked for. Of a ResNet-50 on a TPU the
least by a millionth recomputes twice as much as the others, and the compiler needs 13 per cent more for it."""

_AS_SMALL, _MOST_AS_SMALL = 1.03, 8
"""So are those predicted up to this much above it, so many at most: predictions are not that exact. Of a U-Net what is
predicted to need 1.4 per cent more than the least needs 3.5 per cent less."""


def find(measure: Measure, candidates: Candidates, budget_bytes: int, request: Request) -> Outcome:
    """Find the schedule with the least recomputation whose peak is within the budget, or else the least peak.

    Raises:
        BudgetError: nothing is computed, so nothing can be recomputed.
    """
    program = measure.judge.program
    if not program.graph.ops:
        raise nothing_to_do(program.graph, measure.peak(program.plain), budget_bytes)
    if (named := candidates.named(request)) is not None:
        return fastest_within(measure, candidates, named, budget_bytes, request)
    if isinstance(measure, Compiled):
        return find_compiled(measure, candidates, budget_bytes, request)
    return find_predicted(measure.judge, candidates, budget_bytes, request)


def fastest_within(
    measure: Measure, candidates: Candidates, named: Found, budget_bytes: int, request: Request
) -> Outcome:
    """Of a strategy's schedules the one with the fewest recomputed seconds that fits, or else the least peak.

    All are judged by the evaluator, then searched as on any curve. A strategy with one schedule has that one checked.
    """
    if len(named.schedules) == 1:
        (schedule,) = named.schedules
        return Outcome(schedule, measure.peak(schedule))
    family = rank(named.schedules, measure.judge)
    room = budget_bytes - measure.judge.owned_bytes
    start = max((p for p, limit in enumerate(family.limits) if limit <= room), default=0)
    found = search_curve(family, measure, budget_bytes, start)
    if found.point is None:
        return _closest(measure, candidates, request, [(family, found)])
    return Outcome(family.schedules[found.point], dict(found.measured)[found.point])


def find_predicted(judge: Judge, candidates: Candidates, budget_bytes: int, request: Request) -> Outcome:
    """``find`` among the planner's schedules, by predictions alone.

    Where refining starts and ends depends on the budget. So in a short program what fits is held against what is found
    within its own peak, within a byte less, and within a few budgets that are the same whatever is asked: a smaller
    budget would find that.
    """
    found = _predicted_within(judge, candidates, budget_bytes, request)
    is_short = len(judge.program.graph.ops) <= _SHORT_OPS
    overhead = judge.overhead(found.schedule)
    is_free = overhead == 0.0 or (overhead < 0.0 and not counts_gains(judge.hardware))
    if not is_short or found.peak_bytes > budget_bytes or is_free:
        return found
    rungs = candidates.rungs(request, lambda: _rungs(judge, candidates, request))
    below = [_predicted_within(judge, candidates, found.peak_bytes - less, request).schedule for less in (0, 1)]
    best = next(iter(faster_ones(judge, [*below, *rungs], budget_bytes, judge.price(found.schedule))), found.schedule)
    return Predicted(judge).ask(best)


def _rungs(judge: Judge, candidates: Candidates, request: Request) -> tuple[Schedule, ...]:
    """What is found within budgets from the least peak up, equally far apart, below the plain one."""
    low = _predicted_within(judge, candidates, 0, request).peak_bytes
    high = judge.predicted_bytes(judge.unplanned)
    budgets = [low + (high - low) * step // _RUNGS for step in range(_RUNGS)] if low < high else []
    return tuple([_predicted_within(judge, candidates, budget, request).schedule for budget in budgets])


def _predicted_within(judge: Judge, candidates: Candidates, budget_bytes: int, request: Request) -> Outcome:
    """The fastest schedule that is predicted to fit, refined from those at hand; or else the least peak."""
    measure = Predicted(judge)
    starts = _starts(judge, candidates, budget_bytes, request)
    fitting = [curve.schedule(point) for curve, _, point in starts if point is not None]
    others = (*candidates.uniform(request), *candidates.improved(request, judge.cost, judge.identity))
    ops = judge.program.graph.ops
    is_short = len(ops) <= _SHORT_OPS
    if not fitting or is_short:
        others += (*candidates.lean(request), *candidates.spread(request))
    if faster := faster_ones(judge, [*fitting, *others], budget_bytes, inf):
        if len(ops) > _REFINED_OPS and not any(map(is_loop, ops)):
            return measure.ask(faster[0])  # points of a curve are near each other there, and predictions take long
        known = _beside_curves(judge, candidates, request, others)
        curves = [curve for curve, _, _ in starts]
        if not is_short:
            return measure.ask(refined(measure, faster[0], curves, known, budget_bytes, ROUGHLY))
        found = [refined(measure, start, curves, known, budget_bytes, 0.0) for start in faster[:_STARTS]]
        return measure.ask(min(found, key=judge.price))
    return _closest(measure, candidates, request, [(curve, found) for curve, found, _ in starts], others)


def _starts(
    judge: Judge, candidates: Candidates, budget_bytes: int, request: Request
) -> list[tuple[Curve, Searched, int | None]]:
    """Each of the planner's curves, what is predicted along it, and its point for a budget; None if none fits."""
    rows = []
    for curve in candidates.curves(budget_bytes - judge.owned_bytes, request):
        found = search_curve(curve, Predicted(judge), budget_bytes)
        point = None if found.point is None else look_around(judge, curve, found.point, budget_bytes)
        rows.append((curve, found, point))
    return rows


def find_compiled(measure: Compiled, candidates: Candidates, budget_bytes: int, request: Request) -> Outcome:
    """``find`` among the planner's schedules, with the compiler's word."""
    judge = measure.judge
    chosen, tried = _search_curves(measure, candidates, budget_bytes, request)
    judged = (*candidates.uniform(request), *candidates.improved(request, judge.cost, judge.identity))
    if chosen is None:
        judged += candidates.lean(request)
        others = [*_worth_a_compile(measure, judged, budget_bytes, inf), *_smallest(judge, judged)]
    else:
        others = _worth_a_compile(measure, judged, budget_bytes, judge.price(chosen))
    fitting = (other for other in others if measure.ask(other, budget_bytes).peak_bytes <= budget_bytes)
    chosen = next(fitting, chosen)
    if chosen is None:
        return _closest(measure, candidates, request, tried, judged)
    known = _beside_curves(judge, candidates, request, judged)
    better = refined(measure, chosen, [curve for curve, _ in tried], known, budget_bytes)
    return measure.ask(better, budget_bytes)


def _beside_curves(
    judge: Judge, candidates: Candidates, request: Request, others: Sequence[Schedule]
) -> list[Schedule]:
    """What is refined towards beside the curves: other schedules, and the plain one where it is allowed."""
    return [*others, *([judge.program.plain] if candidates.may_stay_plain(request) else [])]


def _search_curves(
    measure: Compiled, candidates: Candidates, budget_bytes: int, request: Request
) -> tuple[Schedule | None, list[tuple[Curve, Searched]]]:
    """The best schedule of the curves that were searched, and what was found on each of them.

    The curve comes first whose best schedule is predicted to be fastest. Another is searched where nothing fits yet, or
    where its best is predicted to be faster than what came to fit: predictions of the first may have been off.
    """
    judge = measure.judge

    def price(row: tuple[Curve, Searched, int | None]) -> float:
        return inf if row[2] is None else judge.price(row[0].schedule(row[2]))

    best: Schedule | None = None
    tried = []
    for row in sorted(_starts(judge, candidates, budget_bytes, request), key=price):
        if best is not None and price(row) >= (1 - _FASTER) * judge.price(best):
            break
        curve, _, start = row
        found = search_curve(curve, measure, budget_bytes, start)
        tried.append((curve, found))
        if found.point is not None:
            fitting = _best_near(measure, curve, found, budget_bytes)
            best = fitting if best is None else min(best, fitting, key=judge.price)
    return best, tried


def _best_near(measure: Compiled, curve: Curve, found: Searched, budget_bytes: int) -> Schedule:
    """The fastest of a curve's schedules that fit, or of those near it that fit if they are off as much as it is."""
    judge = measure.judge
    fitting = {p: peak for p, peak in found.measured if peak <= budget_bytes}
    best = min(fitting, key=lambda p: judge.price(curve.schedule(p)))
    predicted = judge.predicted_bytes(curve.schedule(best))
    near = look_around(judge, curve, best, int(predicted * budget_bytes / fitting[best]))
    if near != best and measure.ask(curve.schedule(near), budget_bytes).peak_bytes <= budget_bytes:
        best = near
    return curve.schedule(best)


def _worth_a_compile(measure: Compiled, judged: Sequence[Schedule], budget_bytes: int, price: float) -> list[Schedule]:
    """Of schedules that are predicted to be faster, those expected to fit, and the likeliest of the others.

    Programs of another shape may be off in their own way, so a real gain is worth a try; so is each of the fastest
    where nothing fits yet (``price`` is infinite). Predictions that compiling has shown to be too high by more than
    that count as the compiler had it.
    """
    judge = measure.judge
    reach = max(DOUBT, (1 + SLACK) / measure.least_off)
    faster = faster_ones(judge, judged, int(reach * budget_bytes), price)
    close = [s for s in faster if measure.expected_bytes(s) <= (1 + SLACK) * budget_bytes]
    sure = (close if price < inf else faster)[:_OTHER_COMPILES]
    gain = [s for s in faster if s not in sure and judge.price(s) < (1 - _GAIN) * price]
    likely = sorted(gain, key=judge.predicted_bytes)[:_UNSURE_COMPILES]
    return [s for s in faster if s in sure or s in likely]


def faster_ones(judge: Judge, schedules: Sequence[Schedule], budget_bytes: int, price: float) -> list[Schedule]:
    """Of some schedules those that are predicted to fit and have a lower price, the lowest first."""
    fitting = [s for s in schedules if judge.predicted_bytes(s) <= budget_bytes]
    return sorted((s for s in fitting if judge.price(s) < price), key=judge.price)


def _smallest(judge: Judge, schedules: Sequence[Schedule]) -> list[Schedule]:
    """Of some schedules those with the least peaks, by the evaluator, and the fastest that is nearly as small.

    They do not depend on the budget: a search for the least peak of a search that found nothing comes to them too.
    """
    if not schedules:
        return []
    ranked = sorted(schedules, key=judge.predicted_bytes)
    least = judge.predicted_bytes(ranked[0])
    small = [s for s in ranked if judge.predicted_bytes(s) <= _AS_SMALL * least][:_MOST_AS_SMALL]
    near = [s for s in ranked if judge.predicted_bytes(s) <= _NEARLY * least]
    return sorted(dict.fromkeys([*small, min(near, key=judge.price)]), key=judge.price)


def _closest(
    measure: Measure, candidates: Candidates, request: Request, tried: Tried, judged: Sequence[Schedule] = ()
) -> Outcome:
    """What comes closest of searches that found nothing, and of others that were judged."""
    return or_plain(measure, candidates, request, least(measure, tried, judged))


def or_plain(measure: Measure, candidates: Candidates, request: Request, found: Outcome) -> Outcome:
    """What came closest; or the schedule that recomputes nothing where that needs less and is allowed."""
    judge = measure.judge
    if not candidates.may_stay_plain(request) or measure.peak(judge.unplanned) >= found.peak_bytes:
        return found
    plain = judge.program.plain
    return min(found, Outcome(plain, measure.peak(plain)), key=lambda outcome: outcome.peak_bytes)


def least(measure: Measure, tried: Tried, judged: Sequence[Schedule] = ()) -> Outcome:
    """The schedule with the least peak of searches that found nothing, and of others that were judged.

    Where one instant sets the peak, much of a curve has nearly the same; of that it is the one that recomputes least.
    """
    judge = measure.judge
    low = (1 + _SAME_PEAK) * min(found.least[1] for _, found in tried)
    ends = [(curve, found.least[0]) for curve, found in tried if found.least[1] <= low]
    schedules = [curve.schedule(p) for curve, end in ends for p in (end, _end_of_plateau(judge, curve, end))]
    found = [measure.ask(s) for s in dict.fromkeys([*schedules, *_smallest(judge, judged)])]
    most = (1 + _SAME_PEAK) * min(outcome.peak_bytes for outcome in found)
    return min((o for o in found if o.peak_bytes <= most), key=lambda o: (judge.price(o.schedule), o.peak_bytes))


def _end_of_plateau(judge: Judge, curve: Curve | Family, point: int) -> int:
    """The last of the points above one that are predicted to need as much as it and to recompute less and less."""
    limit = int((1 + _SAME_PEAK) * judge.predicted_bytes(curve.schedule(point)))
    while (further := look_around(judge, curve, point, limit)) > point:
        point = further
    return point
