"""Between one schedule that fits and the next that is faster.

In: a schedule that is predicted to fit, those that are known beside it, a ``Judge``, a budget. Out: the fastest
schedule found that is predicted to fit.

Neighbours on a curve can lie far apart where layers are scanned: every step saves a value, or none does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from remat_plan.graph.schedule import Schedule
from remat_plan.planning.blend import paths
from remat_plan.planning.planner import Curve
from remat_plan.search.judge import Judge

CLOSE = 0.005
"""A schedule this close to the budget, as a share of it, is not refined."""

ROUGHLY = 0.02
"""Nor one this close in a program that is not short: predictions are not that exact, and take time too."""

_WORTH = 0.003
"""Another one is taken for so much less seconds or FLOPs, as a share of them."""

_REFINEMENTS = 2
"""So often a schedule between a fitting one and a faster one takes its place."""

_WAYS_OPS = 8000
"""So many operations, over those of the program, is how many ways from a schedule to another are looked at, or one for
each family: some twenty schedules are predicted along each, and a prediction takes as long as the program is."""

_EQUAL, _EQUALS = 1e-3, 3
"""Prices that differ by no more than this share are the same; so many schedules of the same price are started from."""

_NEAR = 2
"""So many schedules on both sides of the border between fitting and not are judged: peaks do not quite rise."""

_SAMPLES = 8
"""So many stretches of a path are told apart where the border is looked for: it may be crossed more than once."""

_CURVE_POINTS = 24
"""So many points of a curve, equally far apart, are looked at for a faster neighbour."""


def refined(
    judge: Judge,
    chosen: Schedule,
    curves: Sequence[Curve],
    judged: Sequence[Schedule],
    budget_bytes: int,
    close: float = CLOSE,
) -> Schedule:
    """Of the schedules between one that fits and the next that is faster, the fastest that fits.

    Args:
        judge: predicts what fits.
        chosen: fits.
        curves: of the planner; towards each of them.
        judged: other schedules to go towards.
        budget_bytes: what has to be met.
        close: a share of the budget; a schedule that leaves no more free stays as it is.
    """
    families = [*(curve.spread(_CURVE_POINTS) for curve in curves), judged]
    for _ in range(_REFINEMENTS):
        if judge.predicted_bytes(chosen) >= (1 - close) * budget_bytes:
            break
        better = _fastest_step(judge, chosen, families, budget_bytes * (1 - CLOSE / 4))
        if better is None or not _is_faster(judge, better, chosen):
            break
        chosen = better
    return chosen


def _is_faster(judge: Judge, better: Schedule, chosen: Schedule) -> bool:
    """Whether a schedule of a lower price takes so much less seconds or FLOPs that it is worth a look."""
    price, own = judge.price(better), judge.price(chosen)
    flops, own_flops = judge.timeline(better).flops, judge.timeline(chosen).flops
    return price < own and (price <= (1 - _WORTH) * own or flops <= (1 - _WORTH) * own_flops)


def _fastest_step(
    judge: Judge, chosen: Schedule, families: Sequence[Sequence[Schedule]], target_bytes: float
) -> Schedule | None:
    """The fastest step from a schedule, or one that costs the same, towards a neighbour in one of some families.

    Between schedules of different families, cut in different places, there may be little: each has its say.
    """
    found = [_faster_neighbours(judge, chosen, family, target_bytes) for family in families]
    neighbours = dict.fromkeys(near for rank in itertools.zip_longest(*found) for near in rank if near is not None)
    starts = [chosen, *_equals(judge, chosen, families, target_bytes)]
    most = max(_WAYS_OPS // len(judge.program.graph.ops), len(families))
    ways = itertools.islice(itertools.product(starts, neighbours), most)
    steps = [step_towards(judge, low, near, target_bytes) for low, near in ways]
    return min((s for s in steps if s is not None), key=judge.price, default=None)


def _equals(
    judge: Judge, chosen: Schedule, families: Sequence[Sequence[Schedule]], target_bytes: float
) -> list[Schedule]:
    """Schedules of a price as good as that of another one that are predicted to be within a target."""
    near = (1 + _EQUAL) * judge.price(chosen)
    others = [s for family in families for s in family if s != chosen and judge.price(s) <= near]
    return [s for s in dict.fromkeys(others) if judge.predicted_bytes(s) <= target_bytes][:_EQUALS]


def _faster_neighbours(
    judge: Judge, chosen: Schedule, family: Sequence[Schedule], target_bytes: float
) -> list[Schedule]:
    """Of the schedules predicted to be above a target and faster, the one with the least peak, and the one that gains
    most for its bytes: on the way to that there is more to have for the same bytes, where the way is long enough.
    """
    above = [s for s in family if judge.price(s) < judge.price(chosen) and judge.predicted_bytes(s) > target_bytes]
    above = [s for s in above if _is_faster(judge, s, chosen)]
    if not above:
        return []
    own_bytes, own_price = judge.predicted_bytes(chosen), judge.price(chosen)

    def gain_per_byte(s: Schedule) -> float:
        return (own_price - judge.price(s)) / max(judge.predicted_bytes(s) - own_bytes, 1)

    nearest = _extreme(min, above, lambda s: (judge.predicted_bytes(s), judge.price(s)))
    steepest = _extreme(max, above, gain_per_byte)
    return [nearest] if nearest == steepest else [nearest, steepest]


def _extreme(of: Callable[..., Any], schedules: Sequence[Schedule], key: Callable[[Schedule], Any]) -> Schedule:
    """The ``min`` or ``max`` of some schedules; where several are, by what they say: in any order the same."""
    keys = [key(s) for s in schedules]
    end = of(keys)
    ends = [s for s, k in zip(schedules, keys, strict=True) if k == end]
    return ends[0] if len(ends) == 1 else of(ends, key=repr)


def step_towards(judge: Judge, low: Schedule, high: Schedule, target_bytes: float) -> Schedule | None:
    """The fastest schedule between two that is predicted to be within a target; None if none beats the first."""
    near = [s for path in paths(judge.program.graph, low, high) for s in _near_border(judge, path, target_bytes)]
    fitting = [s for s in near if judge.predicted_bytes(s) <= target_bytes and judge.price(s) < judge.price(low)]
    return min(fitting, key=judge.price, default=None)


def _near_border(judge: Judge, path: Sequence[Schedule], target_bytes: float) -> Sequence[Schedule]:
    """The schedules of a path next to the last that is within a target.

    Predicted peaks mostly rise along the way; of a loop that keeps nothing at first they may fall. So the last of some
    equally far apart is looked for, and then the last before the next of these.
    """

    def fits(place: int) -> bool:
        return judge.predicted_bytes(path[place]) <= target_bytes

    if not path:
        return path
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
    return path[max(low_end - _NEAR, 0) : low_end + _NEAR]
