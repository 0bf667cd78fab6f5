"""The fastest schedule of a program within a budget, by predictions alone.

In: a ``Judge``, ``Candidates``, a budget, a ``Request``. Out: the fastest schedule found that is predicted to fit, or
the one that needs least. What the compiler says of them is asked by ``levels``.

Schedules come along *paths*, on which memory mostly rises and seconds mostly fall: the planner's curves, and the ways
from a schedule that fits to a faster one that does not (``planning.blend``). Of a path are judged its ends and its
middle, and schedules on both sides of the border of what fits. Beside the paths there are schedules by one rule for all
blocks, what a local search finds in a small program, or those of a strategy that was asked for by name.

Limits: of a path that crosses the budget more than once between two of its samples one border is found.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from remat_plan.graph.schedule import Schedule
from remat_plan.graph.structure import is_loop
from remat_plan.planning.blend import paths
from remat_plan.results.shortfall import nothing_to_do
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.judge import Judge

SAME_PEAK = 1e-3
"""Peaks that differ by no more than this share are the same where the least is looked for. Of a ResNet-50 on a TPU the
least by a millionth recomputes twice as much as the others, and the compiler needs 13 per cent more for it."""

SAME_PRICE = 1e-4
"""Prices that differ by no more than this share are the same. Of such schedules the one with the fewest segments is
taken: at each border the compiler may hold more than is predicted. Of three convolutions it needs 42.9 MB for four
segments, 34.5 for three, where both are predicted at 33.7."""

_WORTH = 0.003
"""A schedule that is next to another is gone towards for so much less seconds or FLOPs, as a share of them."""

_STARTS = 4
"""From so many of the fastest schedules that fit the next faster ones are gone towards: what is made of one with less
memory may beat what comes of the fastest, and a smaller budget would find it."""

_WAYS_STEPS = 8000
"""So many steps of the compiled program, over those of one prediction, are how many ways are gone: some twenty
schedules are predicted along each. Where layers are scanned it is one at least, since neighbours on a curve are far
apart there: every step saves a value, or none does."""

_SAMPLES = 2
"""So many stretches of a path are told apart where the border is looked for: it may be crossed more than once."""

_AROUND = (-1, 0, 1, 2, 4, 8, 12)
"""How far from the first that does not fit others are judged: peaks do not quite rise along a path. Of a ResNet-50 at
20 per cent what lies up to a dozen further takes 8 per cent more than the plain step, what is next to the border 12."""


def find(judge: Judge, candidates: Candidates, budget_bytes: int, request: Request) -> Schedule:
    """Find the schedule with the least recomputation that is predicted to fit, or else the least predicted peak.

    A strategy with one schedule has that one checked.

    Raises:
        BudgetError: nothing is computed, so nothing can be recomputed.
    """
    if not judge.program.graph.ops:
        plain_bytes = judge.predicted_bytes(judge.program.plain)
        raise nothing_to_do(judge.program.graph, plain_bytes, budget_bytes)
    named = candidates.named(request)
    if named is not None and len(named.schedules) == 1:
        return named.schedules[0]
    known = _known(judge, candidates, budget_bytes, request)
    if not (fitting := fastest_first(judge, itertools.chain(*known), budget_bytes)):
        known.append(list(candidates.lean(request)))
        least = min(map(judge.predicted_bytes, itertools.chain(*known)))
        budget_bytes = max(budget_bytes, int((1 + SAME_PEAK) * least))
        known += _known(judge, candidates, budget_bytes, request)
        fitting = fastest_first(judge, itertools.chain(*known), budget_bytes)
    best = fitting[0] if named is not None else _refined(judge, fitting[:_STARTS], known, budget_bytes)
    alike = [s for s in fitting if judge.price(s) <= (1 + SAME_PRICE) * judge.price(best)]
    return min([best, *alike], key=_segments)


def _segments(schedule: Schedule) -> int:
    """How many segments are in a schedule, those inside others too."""
    return sum(1 + _segments(segment.children) for segment in schedule)


def fastest_first(judge: Judge, schedules: Iterable[Schedule], budget_bytes: int) -> list[Schedule]:
    """Of some schedules those that are predicted to fit, by their price; of one price the one that needs least."""
    fitting = (s for s in dict.fromkeys(schedules) if judge.predicted_bytes(s) <= budget_bytes)
    return sorted(fitting, key=lambda s: (judge.price(s), judge.predicted_bytes(s)))


def towards(judge: Judge, low: Schedule, high: Schedule, budget_bytes: int) -> Schedule:
    """The fastest schedule on the way from one that fits to another that is predicted to fit, or the first."""
    ways = paths(judge.program.graph, low, high)
    along = [s for way in ways for s in _along(judge, way, budget_bytes)]
    return fastest_first(judge, [low, *along], budget_bytes)[0]


def _known(judge: Judge, candidates: Candidates, budget_bytes: int, request: Request) -> list[list[Schedule]]:
    """What is judged for a budget: of each curve, and beside them."""
    plain = [judge.program.plain] if candidates.may_stay_plain(request) else []
    if (named := candidates.named(request)) is not None:
        return [[*named.schedules, *plain]]
    curves = candidates.planner(request.constraints).curves
    beside = [*candidates.uniform(request), *candidates.improved(request, judge.cost, judge.identity), *plain]
    return [*(_along(judge, curve, budget_bytes) for curve in curves), beside]


def _along(judge: Judge, path: Sequence[Schedule], budget_bytes: int) -> list[Schedule]:
    """The schedules of a path that are judged: samples, and those next to the last that is within a budget.

    Predicted peaks mostly rise along the way; of a loop that keeps nothing at first they may fall. So the last of the
    samples is looked for, and then the last before the next of these.
    """

    def fits(place: int) -> bool:
        return judge.predicted_bytes(path[place]) <= budget_bytes

    if not path:
        return []
    samples = sorted({(len(path) - 1) * i // _SAMPLES for i in range(_SAMPLES + 1)})
    last = next((i for i in reversed(range(len(samples))) if fits(samples[i])), None)
    low_end = 0 if last is None else samples[last] + 1
    high_end = samples[0] if last is None else samples[last + 1] if last + 1 < len(samples) else len(path)
    while low_end < high_end:
        middle = (low_end + high_end) // 2
        if fits(middle):
            low_end = middle + 1
        else:
            high_end = middle
    near = {low_end + step for step in _AROUND} & {*range(len(path))}
    return [path[place] for place in sorted({*samples, *near})]


def _refined(
    judge: Judge, starts: Sequence[Schedule], families: Sequence[Sequence[Schedule]], budget_bytes: int
) -> Schedule:
    """Of schedules that fit and what is between them and faster ones that do not, the fastest that fits."""
    steps = max(len(judge.timeline(judge.program.plain).live_bytes), 1)
    most = max(_WAYS_STEPS // steps, int(any(map(is_loop, judge.program.graph.ops))))
    ways = _ways(judge, starts, families, budget_bytes, most)
    return min([starts[0], *(towards(judge, low, high, budget_bytes) for low, high in ways)], key=judge.price)


def _ways(
    judge: Judge, starts: Sequence[Schedule], families: Sequence[Sequence[Schedule]], budget_bytes: int, most: int
) -> list[tuple[Schedule, Schedule]]:
    """Pairs of a schedule that fits and a faster neighbour of the fastest of them that does not.

    Between schedules of different families, cut in different places, there may be little: each has its say.
    """
    found = [_faster_neighbours(judge, starts[0], family, budget_bytes) for family in families]
    neighbours = dict.fromkeys(near for rank in itertools.zip_longest(*found) for near in rank if near is not None)
    return list(itertools.islice(itertools.product(starts, neighbours), most))


def _is_faster(judge: Judge, better: Schedule, chosen: Schedule) -> bool:
    """Whether a schedule of a lower price takes so much less seconds or FLOPs that it is worth a look."""
    price, own = judge.price(better), judge.price(chosen)
    flops, own_flops = judge.timeline(better).flops, judge.timeline(chosen).flops
    return price < own and (price <= (1 - _WORTH) * own or flops <= (1 - _WORTH) * own_flops)


def _faster_neighbours(judge: Judge, chosen: Schedule, family: Sequence[Schedule], budget_bytes: int) -> list[Schedule]:
    """Of the schedules predicted to be above a budget and faster, the one with the least peak, and the one that gains
    most for its bytes: on the way to that there is more to have for the same bytes, where the way is long enough.
    """
    above = [s for s in family if judge.predicted_bytes(s) > budget_bytes and _is_faster(judge, s, chosen)]
    if not above:
        return []
    own_bytes, own_price = judge.cost(chosen)

    def gain_per_byte(s: Schedule) -> float:
        return (own_price - judge.price(s)) / max(judge.predicted_bytes(s) - own_bytes, 1)

    return list(dict.fromkeys([min(above, key=judge.cost), max(above, key=gain_per_byte)]))
