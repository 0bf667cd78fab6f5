"""The fastest schedule of a program within a budget, by predictions alone.

In: a ``Judge``, ``Candidates``, a budget, a ``Request``. Out: the fastest schedule found that is predicted to fit, or
the one that needs least. What the compiler says of them is asked by ``driver``.

The planner's chains propose schedules for the budget and are taught by what is predicted of them
(``planning.taught``). Beside these there are what a local search finds in a small program and, around loops or where
nothing fits, schedules by one rule for all blocks; or those of a strategy that was asked for by name. In the end come
the schedules between one that fits and a faster one that does not (``planning.blend``), on which memory mostly rises
and seconds mostly fall.

Limits: of a way that crosses the budget more than once one border is found.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from remat_plan.graph.schedule import Schedule, emptied
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
"""A schedule that is next to another is gone towards for so much less seconds or FLOPs, as a share of them; what a
chain believes to take so much more than the best that it proposed is not judged."""

_SAME_SECONDS = 5e-4
"""What a chain believes to take as long as a schedule that fits, but for this share of the plain step's seconds, is not
judged. Of a GPT-2 at three quarters of its peak on a CPU two proposals are judged instead of sixteen, whose prices
differ by less than 0.1 %."""

_GAIN = 0.01
"""A schedule that keeps values on the host has to be faster by this share than one that does not: rates of links are
those of data sheets, and a link may be shared."""

_STARTS = 4
"""Of so many of those with the least peak it is seen what they need without what they save, where nothing fits; and
from so many of the fastest schedules that fit the next faster ones are gone towards: what is made of one with less
memory may beat what comes of the fastest, and a smaller budget would find it."""

_WAYS_STEPS = 20_000
"""So many steps of the compiled program, over those of one prediction, are how many schedules on ways are predicted,
those of one way at least. Where layers are scanned, neighbours on a curve are far apart: every step saves a value, or
none does. Of an unrolled ResNet-50 on a TPU the chains' sixteen cost twice as much, and recompute a third more."""

_PROPOSED = 16
"""So many schedules a chain proposes for a budget at most."""

_PROPOSED_ALONG = 4
"""So many for each of a row of budgets, where they are taught by those before."""


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
    found = _Front(judge, candidates, request)
    found.propose(budget_bytes)
    unmet = not found.fitting(budget_bytes)  # by slices it may be, in far more seconds than there is a need for
    found.slice(budget_bytes)
    if unmet:
        if named is None:
            found.lower()
        budget_bytes = max(budget_bytes, int((1 + SAME_PEAK) * found.least_bytes))
        found.propose(budget_bytes)
    found.descend(budget_bytes)
    if named is None:
        found.go(found.ways(budget_bytes), budget_bytes)
    fitting = found.fitting(budget_bytes)
    fitting = _worth_moving(judge, fitting)
    alike = [s for s in fitting if judge.price(s) <= (1 + SAME_PRICE) * judge.price(fitting[0])]
    return min(alike, key=lambda s: (judge.figures(s).host_bytes, _segments(s)))


def family(judge: Judge, candidates: Candidates, request: Request, points: int) -> list[Schedule]:
    """Return the schedules that are predicted to be best from little memory to that of the plain one.

    Each is the fastest known for one of ``points`` budgets, each larger than the one before by the same share. The
    chains are taught by all of them; no ways are gone, and the least peak may be lower than the first.
    """
    if not judge.program.graph.ops:
        return [judge.program.plain]
    found = _Front(judge, candidates, request)
    found.propose(0, _PROPOSED_ALONG)
    found.slice(0)
    least = found.least_bytes
    most = max(judge.predicted_bytes(judge.program.plain), least)
    goals = [int(least * (most / least) ** (number / (points - 1))) for number in range(1, points)]
    for number, goal in enumerate(goals):
        judge.progress.say("evaluating schedules", done=number, total=len(goals))
        found.propose(goal, _PROPOSED_ALONG)
        found.slice(goal)
    goals = sorted([*goals, int((1 + SAME_PEAK) * found.least_bytes)])
    return list(dict.fromkeys(found.fitting(goal)[0] for goal in goals))


class _Front:
    """What is known of the schedules of a program while one of them is looked for."""

    def __init__(self, judge: Judge, candidates: Candidates, request: Request):
        self.judge, self._is_allowed = judge, partial(candidates.allows, request)
        self._steps = len(judge.timeline(judge.program.plain).live_bytes)
        named = candidates.named(request)
        self._chains = [] if named is not None else candidates.chains(request)
        self._low = partial(candidates.low, request)
        self._sliced = partial(candidates.sliced, request) if named is None else lambda: None
        beside = named.schedules if named is not None else candidates.beside(request, judge.cost, judge.identity)
        plain = [judge.program.plain] if candidates.may_stay_plain(request) else []
        self.known = dict.fromkeys([*beside, *plain])

    @property
    def least_bytes(self) -> int:
        """The least predicted peak."""
        return min(self.judge.predicted_bytes(s) for s in self.known if self.judge.fits(s, sys.maxsize))

    def fitting(self, budget_bytes: int) -> list[Schedule]:
        """What is predicted to fit, the fastest first."""
        return fastest_first(self.judge, self.known, budget_bytes)

    def propose(self, budget_bytes: int, most: int = _PROPOSED) -> None:
        """Have each chain propose schedules for a budget, while it has new ones."""
        plain = self.judge.figures(self.judge.program.plain)
        room, doubts = budget_bytes - self.judge.owned_bytes, (_WORTH * plain.seconds, _SAME_SECONDS * plain.seconds)
        for chain in self._chains:
            left = most
            while left:
                best = next(iter(self.fitting(budget_bytes)), None)
                schedule = chain.teach(self.judge.timeline, room, best, *doubts)
                if schedule is None:
                    break
                left -= schedule not in self.known
                self.known[schedule] = None

    def slice(self, budget_bytes: int) -> None:
        """Judge the whole program in two slices, then in as many as the budget seems to need, where that may gain, and
        in more as long as those take less: memory that is not touched costs nothing.

        Where so many do not fit, less is kept of a slice. What is not the same in any number is divided by it.
        """
        plain = self.judge.figures(self.judge.program.plain)
        fitting = self.fitting(budget_bytes)
        if fitting and self._is_as_plain(fitting[0]):
            return
        sliced, divided = self._sliced(), 0.0
        if sliced is None:
            return
        for slices in sliced.counts:
            seems = plain.peak_bytes - divided * (1 - 1 / slices)
            if divided and seems > budget_bytes and slices != sliced.counts[-1]:
                continue
            self.judge.progress.say(f"slicing the program in {slices}")
            best, schedules = self.fitting(budget_bytes)[:1], sliced.schedules(slices)
            if not schedules:
                return
            for schedule in schedules:
                self.known[schedule] = None
                if self.judge.predicted_bytes(schedule) <= budget_bytes:
                    break
            peak_bytes = self.judge.predicted_bytes(schedules[0])
            if peak_bytes <= budget_bytes and best == self.fitting(budget_bytes)[:1]:
                return
            divided = (plain.peak_bytes - peak_bytes) / (1 - 1 / slices)

    def descend(self, budget_bytes: int) -> None:
        """Where the fastest that fits takes less than the plain step, judge schedules for three quarters of its bytes,
        as long as that finds a faster one: where memory that is not touched saves time, the fastest may be far below a
        budget.
        """
        plain, best = self.judge.figures(self.judge.program.plain), self.fitting(budget_bytes)[0]
        if self.judge.figures(best).seconds >= (1 - _WORTH) * plain.seconds:
            return
        while (goal_bytes := 3 * self.judge.predicted_bytes(best) // 4) > self.judge.owned_bytes:
            self.propose(goal_bytes, _PROPOSED_ALONG)
            self.slice(goal_bytes)
            before, best = best, self.fitting(budget_bytes)[0]
            if best == before:
                return

    def _is_as_plain(self, schedule: Schedule) -> bool:
        """Whether a schedule takes the seconds and FLOPs of the plain step. Where it takes less, what it does not keep
        saves time, and slices may save more."""
        plain, made = self.judge.figures(self.judge.program.plain), self.judge.figures(schedule)
        return abs(made.seconds - plain.seconds) <= _WORTH * plain.seconds and made.flops <= (1 + _WORTH) * plain.flops

    def lower(self) -> None:
        """Judge what may need least of all; have the chains propose below it as long as that finds one.

        Those with the least are judged without what their segments save too, and with some of it: constants that the
        reader of a saved value needs at full size may be there from the start of the program, which no block knows.
        """
        self.known |= dict.fromkeys(self._low())
        least = None
        while least != self.least_bytes:
            least = self.least_bytes
            self.propose(int((1 - SAME_PEAK) * least))
            starts = sorted(self.known, key=self.judge.cost)[:_STARTS]
            lean = [(emptied(s), s) for s in starts if self._is_allowed(emptied(s))]
            self.known |= dict.fromkeys(s for s, _ in lean)
            self.go(lean, int((1 - SAME_PEAK) * self.least_bytes))

    def ways(self, budget_bytes: int) -> Iterator[tuple[Schedule, Schedule]]:
        """Yield what fits and a faster neighbour that does not, in pairs, each by what is known when it is its turn: a
        way may turn up a better neighbour than the chains proposed, which another schedule that fits goes towards. Two
        of one way have nothing new between them.
        """
        gone: list[set[Schedule]] = []
        while new := [pair for pair in self._pairs(budget_bytes) if not any(way.issuperset(pair) for way in gone)]:
            before = len(self.known)
            yield new[0]
            gone.append({*new[0], *list(self.known)[before:]})

    def _pairs(self, budget_bytes: int) -> Iterable[tuple[Schedule, Schedule]]:
        starts: list[Schedule] = []  # a slower one that needs as much leads nowhere else
        for own, schedule in ((self.judge.predicted_bytes(s), s) for s in self.fitting(budget_bytes)):
            if not starts or own < (1 - SAME_PEAK) * self.judge.predicted_bytes(starts[-1]):
                starts.append(schedule)
        near = _faster_neighbours(self.judge, starts[0], list(self.known), budget_bytes)
        return itertools.product(starts[:_STARTS], near)

    def go(self, ways: Iterable[tuple[Schedule, Schedule]], budget_bytes: int) -> None:
        """Judge what is between pairs of schedules, of as many as the length of the program leaves time for."""
        most = len(self.known) + _WAYS_STEPS // max(self._steps, 1)
        for low, high in ways:
            for way in paths(self.judge.program.graph, low, high):
                self.known |= dict.fromkeys(_last_fitting(self.judge, way, budget_bytes))
            if len(self.known) >= most:
                return


def _worth_moving(judge: Judge, fitting: Sequence[Schedule]) -> Sequence[Schedule]:
    """Of schedules, the fastest first, those with nothing on the host where another one is hardly faster."""
    most = (1 + _GAIN) * judge.price(fitting[0])
    here = [s for s in fitting if not judge.figures(s).host_bytes and judge.price(s) <= most]
    return here or fitting


def _segments(schedule: Schedule) -> int:
    """How many segments are in a schedule, those inside others too."""
    return sum(1 + _segments(segment.children) for segment in schedule)


def fastest_first(judge: Judge, schedules: Iterable[Schedule], budget_bytes: int) -> list[Schedule]:
    """Of some schedules those that are predicted to fit, by their price; of one price the one that needs least."""
    fitting = (s for s in dict.fromkeys(schedules) if judge.fits(s, budget_bytes))
    return sorted(fitting, key=lambda s: (judge.price(s), judge.predicted_bytes(s)))


def towards(judge: Judge, low: Schedule, high: Schedule, budget_bytes: int) -> Schedule:
    """The fastest schedule on the way from one that fits to another that is predicted to fit, or the first."""
    ways = paths(judge.program.graph, low, high)
    along = [s for way in ways for s in _last_fitting(judge, way, budget_bytes)]
    return fastest_first(judge, [low, *along], budget_bytes)[0]


def _last_fitting(judge: Judge, path: Sequence[Schedule], budget_bytes: int) -> list[Schedule]:
    """What is judged to find the last schedule of a path that fits, by halves."""
    judged: list[Schedule] = []
    start, end = 0, len(path)
    while start < end:
        middle = (start + end) // 2
        judged.append(path[middle])
        if judge.fits(path[middle], budget_bytes):
            start = middle + 1
        else:
            end = middle
    return judged


def _is_faster(judge: Judge, better: Schedule, chosen: Schedule) -> bool:
    """Whether a schedule of a lower price takes so much less seconds or FLOPs that it is worth a look."""
    price, own = judge.price(better), judge.price(chosen)
    flops, own_flops = judge.figures(better).flops, judge.figures(chosen).flops
    return price < own and (price <= (1 - _WORTH) * own or flops <= (1 - _WORTH) * own_flops)


def _faster_neighbours(judge: Judge, chosen: Schedule, family: Sequence[Schedule], budget_bytes: int) -> list[Schedule]:
    """Of the faster schedules that are predicted to be above a budget, and of those that the host has no room for, the
    one with the least bytes, the fastest, and the one that gains most for its bytes: on the way to these there is more
    to have, where the way is long enough.
    """
    above = [s for s in family if not judge.fits(s, budget_bytes) and _is_faster(judge, s, chosen)]
    here, there = [s for s in above if judge.fits_host(s)], [s for s in above if not judge.fits_host(s)]
    near = _nearest(judge, chosen, here, judge.predicted_bytes)
    return list(dict.fromkeys([*near, *_nearest(judge, chosen, there, lambda s: judge.figures(s).host_bytes)]))


def _nearest(
    judge: Judge, chosen: Schedule, above: Sequence[Schedule], size_bytes: Callable[[Schedule], int]
) -> list[Schedule]:
    own_bytes, own_price = size_bytes(chosen), judge.price(chosen)

    def gain_per_byte(s: Schedule) -> float:
        return (own_price - judge.price(s)) / max(size_bytes(s) - own_bytes, 1)

    if not above:
        return []
    least = min(above, key=lambda s: (size_bytes(s), judge.price(s)))
    return [least, min(above, key=judge.price), max(above, key=gain_per_byte)]
