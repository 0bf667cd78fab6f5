"""The schedules of all marks of a step, for a budget of the step.

In: ``Mark``s (what is known of each program by itself), a function that compiles the step under schedules for them, a
budget. Out: ``Fitted``: schedules whose compiled step is within the budget, or those that need least of all compiled.
The step is a training step; or the gradient step of one program, which is a step with one mark (``alone``).

Each mark is given the same *level*: bytes that its own gradient step may need, by the evaluator, beside its
arguments. Of its schedules the fastest is taken that is predicted to stay within. The step needs what it holds all the
time (arguments and results that are not donated, as the compiler counts them) and at its peak what the highest mark
needs there; how many bytes a predicted byte comes out at is learned from what was compiled. So few compiles are needed,
however large the step is: the one as written, and mostly two or three more; never more than ``MOST_COMPILES``. What was
compiled for another budget is known from the start, and compiled again where it is chosen.

Limits: of marks that are alive at one time, such as two halves of one model, each has the same level, although an
unequal share of the bytes may cost less.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from remat_plan.clock.turns import Ratio
from remat_plan.search.mark import Choice, Mark, flops, level_bytes, overhead, price
from remat_plan.search.seconds import faster_by, no_more_work
from remat_plan.verify.compile import CompiledMemory

MOST_COMPILES = 8
"""So often a program is compiled for one budget at most: as it is written, plain, and under the choices of a search."""

CLOSE, _UNUSED = 0.01, 0.03
"""A step that leaves no more than these shares of the budget unused is improved only where that promises ``_MUCH``, and
``_WORTH``; one that leaves more, where that promises anything."""

_MUCH, _WORTH = 0.02, 0.003
"""So much shorter it has to be then, as predicted: at the low end a few bytes can cost as much as all the others."""

_AIM = 0.005
"""The share of the budget that is left free after a step came out above it: predictions are not that exact. After two
four times as much is left, and so on."""

_SLOPES = 0.5, 2.0
"""Between two choices a predicted byte comes out at no less and no more than these multiples of what it does in the
plain step: what is off by other bytes tells nothing of those between."""

_BISECTIONS = 5
"""So many levels are looked at between one that fits and one that does not, where the one that is expected has nothing
new."""

_BEYOND, _GAIN = (1.05, 1.1), 0.02
"""Beside what is expected to fit, choices that are expected so far above the budget are compiled where they are so much
shorter: schedules cut elsewhere may be off in another way, and a search for a larger budget would find them."""

_DOUBTFUL = 3
"""So many of them are compiled."""

_FLOOR = (0.0, 0.0625, 0.125, 0.25)
"""Where choices near the low end lie: shares of the way from the least level to the plain one, by factors. The nearest
are close together: what is predicted to need least of a ResNet-50 on a v5e runs much inside what runs again, and comes
out a fifth larger with little optimisation; what is a little above comes out as predicted."""

_RESERVED = 4
"""So many compiles are left for choices near the low end, as long as nothing fits."""

_NOTHING_TO_GAIN = 0.002
"""Nor is a step improved that takes this share more than the plain seconds and FLOPs, or less."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a search came to.

    Attributes:
        choice: schedules, one for each mark; where none fits, those that need least.
        memory: of the compiled step.
        fits: whether it is within the budget.
    """

    choice: Choice
    memory: CompiledMemory
    fits: bool


@dataclass
class Levels:
    """A search for one step and one budget.

    Attributes:
        marks: the marked programs.
        compile: compiles the step under a choice.
        held_bytes: what the step holds from its beginning to its end.
        rate: compiled bytes that a predicted byte above the arguments comes out at in the plain step.
        tried: what is known of choices; of some from another search.
        sure: those of them that were compiled for this one.
        left: so many more may be compiled.
        doubtful: so many of them although they are expected above the budget.
    """

    marks: Sequence[Mark]
    compile: Callable[[Choice], CompiledMemory]
    held_bytes: int
    rate: float = 1.0
    tried: dict[Choice, CompiledMemory] = field(default_factory=dict)
    sure: set[Choice] = field(default_factory=set)
    left: int = MOST_COMPILES - 1
    doubtful: int = _DOUBTFUL
    _choices: dict[int, Choice] = field(default_factory=dict)

    def choice(self, level_bytes: int) -> Choice:
        """The fastest schedules within a level."""
        if level_bytes not in self._choices:
            self._choices[level_bytes] = tuple(mark.fastest(level_bytes) for mark in self.marks)
        return self._choices[level_bytes]

    @property
    def plain_level(self) -> int:
        """The level at which nothing is recomputed."""
        return level_bytes(self.marks, tuple(mark.judge.program.plain for mark in self.marks))

    def search(self, budget_bytes: int) -> Fitted:
        """Find the fastest choice whose compiled step is within the budget, or else the one that needs least."""
        self.explore(budget_bytes, self.next)
        return self.found(self.best(budget_bytes) or self.least(), budget_bytes)

    def found(self, choice: Choice, budget_bytes: int) -> Fitted:
        """A choice as what was come to."""
        memory = self.tried[choice]
        return Fitted(choice, memory, memory.total_bytes <= budget_bytes)

    def explore(self, budget_bytes: int, propose: Callable[[int], Choice | None]) -> None:
        """Compile one choice after another, each where what is known says that the budget is met.

        What is taken in the end was compiled for this search: of what is known from another, the best is compiled
        again.

        Args:
            budget_bytes: of the step.
            propose: the next choice for a budget, None where there is none.
        """
        while self.left:
            best = self.best(budget_bytes, known=True)
            unsure = best if best is not None and best not in self.sure else None
            choice = (propose(budget_bytes) if self.left > 1 or unsure is None else None) or unsure
            if choice is None:
                break
            self.measure(choice)

    def measure(self, choice: Choice) -> CompiledMemory:
        """Compile a choice."""
        if choice not in self.sure:
            self.tried[choice] = self.compile(choice)
            self.sure.add(choice)
            self.left -= 1
        return self.tried[choice]

    def alike(self, choice: Choice) -> list[Choice]:
        """What was tried of a choice's level and of much the same price: mostly the same program but for a border."""
        level, own = level_bytes(self.marks, choice), price(self.marks, choice)
        same = (c for c in self.tried if level_bytes(self.marks, c) == level)
        return [c for c in same if abs(price(self.marks, c) - own) <= _WORTH * own]

    def is_new(self, choice: Choice) -> bool:
        """Whether nothing is known of a choice, nor of one like it."""
        return not self.alike(choice)

    def least(self) -> Choice:
        """Of all choices that are known the one that needs least."""
        return min(self.tried, key=lambda choice: (self.tried[choice].total_bytes, price(self.marks, choice)))

    def floor(self) -> list[Choice]:
        """Choices near the low end: what is predicted to need least is not always what the compiler needs least for.

        They do not depend on the budget. The first is the fastest of those that are predicted to need least to a
        thousandth; the last needs less than it.
        """
        first = self.choice(0)
        least = level_bytes(self.marks, first)
        levels = [int(least * (self.plain_level / max(least, 1)) ** share) for share in _FLOOR[1:]]
        uniform = zip(*(mark.uniform() for mark in self.marks), strict=True)  # off in another way
        return list(dict.fromkeys([first, *uniform, *map(self.choice, [*levels, least - 1])]))

    def knows_floor(self) -> bool:
        """Whether the choices near the low end are compiled."""
        return not any(map(self.is_new, self.floor()))

    def best(self, budget_bytes: int, known: bool = False) -> Choice | None:
        """The fastest choice that was compiled and fits: as predicted, unless the compiler knows better.

        Args:
            budget_bytes: of the step.
            known: whether it may be known from another search.
        """
        fits = [c for c, memory in self.tried.items() if memory.total_bytes <= budget_bytes]
        fitting = [c for c in fits if known or c in self.sure]
        best = min(fitting, key=lambda choice: price(self.marks, choice), default=None)
        if best is None:
            return None
        return faster_by(self._seconds, best, no_more_work(lambda c: flops(self.marks, c), best, fitting))

    def _seconds(self, choices: Sequence[Choice]) -> list[Ratio | None]:
        """Seconds of the compiled step under choices; None where its module does not tell."""
        found = [self.tried[choice].seconds for choice in choices]
        return [None if seconds is None else Ratio.exactly(seconds) for seconds in found]

    def is_worth(self, budget_bytes: int, following: Choice) -> bool:
        """Whether what fits is not good enough for the following choice to be left out."""
        best = self.best(budget_bytes, known=True)
        if best is None:
            return True
        unused = 1 - self.tried[best].total_bytes / budget_bytes
        gain = _MUCH if unused <= CLOSE else _WORTH if unused <= _UNUSED else 0.0
        shorter = 1 - price(self.marks, following) / price(self.marks, best)
        if shorter > gain:
            return True
        less = 1 - flops(self.marks, following) / max(flops(self.marks, best), 1)
        return unused > CLOSE and shorter >= 0 and less > _WORTH

    def recomputes_nothing(self, budget_bytes: int) -> bool:
        """Whether what fits takes next to no more seconds and FLOPs than the plain step."""
        best = self.best(budget_bytes, known=True)
        if best is None or overhead(self.marks, best) > _NOTHING_TO_GAIN:
            return False
        plain = tuple(mark.judge.program.plain for mark in self.marks)
        return flops(self.marks, best) <= (1 + _NOTHING_TO_GAIN) * flops(self.marks, plain)

    def next(self, budget_bytes: int) -> Choice | None:
        """The choice to compile next; None where none is left that is worth it.

        Where nothing fits, compiles are left for the choices near the low end.
        """
        if self.recomputes_nothing(budget_bytes):
            return None
        if self.best(budget_bytes, known=True) is None:
            waiting = [choice for choice in self.floor() if self.is_new(choice)]
            found = self.between(budget_bytes) if self.left > min(len(waiting), _RESERVED) else None
            return found or next(iter(waiting), None)
        found = self.between(budget_bytes)
        return found if found is not None and self.is_worth(budget_bytes, found) else self.beyond(budget_bytes)

    def beyond(self, budget_bytes: int) -> Choice | None:
        """The next choice that is much faster than what fits, and may fit although that is not expected; few are tried.

        First those beside the levels, if they may be off as little as any that was tried; then a larger budget's.
        """
        best = self.best(budget_bytes, known=True)
        if best is None or not self.doubtful:
            return None
        most = (1 - _GAIN) * price(self.marks, best)
        offsets = (total - self.rate * level for level, total in self.points(plain=True))
        arguments = min(memory.argument_bytes for memory in self.tried.values())  # results may be in what is predicted
        room = (_BEYOND[1] * budget_bytes - min([arguments, *offsets])) / self.rate
        largest, *others = self.marks
        beside = [s for s in largest.beside() if largest.above_arguments(s) <= room]
        beside = [(s, *(mark.fastest(largest.above_arguments(s)) for mark in others)) for s in beside]
        larger = (self.choice(self.aim(factor * budget_bytes)) for factor in _BEYOND)
        # Of what a hand may have written a little fewer FLOPs are enough, however little of the budget is left. What is
        # predicted alike may be compiled otherwise.
        hands = (c for c in beside if c not in self.tried and self._computes_less(c, best, budget_bytes))
        found = (c for c in itertools.chain(beside, larger) if price(self.marks, c) <= most and self.is_new(c))
        choice = next(itertools.chain(hands, (c for c in found if self.is_worth(budget_bytes, c))), None)
        self.doubtful -= choice is not None
        return choice

    def _computes_less(self, choice: Choice, best: Choice, budget_bytes: int) -> bool:
        """Whether a choice has fewer FLOPs than the best, takes no more seconds, and is expected near the budget."""
        less = flops(self.marks, choice) <= (1 - _WORTH) * flops(self.marks, best)
        known = [self.tried[c].total_bytes for c in self.alike(choice)]
        near = min(known, default=self.expected(level_bytes(self.marks, choice))) <= _BEYOND[1] * budget_bytes
        return less and near and price(self.marks, choice) <= price(self.marks, best)

    def between(self, budget_bytes: int) -> Choice | None:
        """The next choice between those that fit and those that do not; None where none is left there."""
        levels = {c: level_bytes(self.marks, c) for c in self.tried}
        under = [levels[c] for c, memory in self.tried.items() if memory.total_bytes <= budget_bytes]
        if under and (choice := self.interpolated(budget_bytes, levels)) is not None:
            return choice
        low = max(under, default=0)
        over = {levels[c] for c, memory in self.tried.items() if memory.total_bytes > budget_bytes}
        high = min((level for level in over if level > low), default=None)
        # Where nothing new leaves that much free, what is expected to fit exactly: a budget may be the peak of a hand.
        aims = [self.aim((1 - _AIM * len(over) ** 2) * budget_bytes), self.aim(budget_bytes)]
        proposed = [level for level in aims if high is None or low < level < high]
        if high is not None:
            inside = [high - 1, *(low + (high - low) // 2**power for power in range(1, _BISECTIONS))]
            proposed += [level for level in inside if self.expected(level) <= _BEYOND[0] * budget_bytes]
        return next(filter(self.is_new, map(self.choice, proposed)), None)

    def interpolated(self, budget_bytes: int, levels: Mapping[Choice, int]) -> Choice | None:
        """The fastest new choice between the largest that fits and the least above it.

        Its level is that of the line through the two; where they are far apart in the middle, if that is lower: peaks
        do not rise evenly.
        Candidates are what is fastest within that level, and what is on the way from the one to the other: schedules
        that are cut elsewhere may be off in another way.
        """
        total = {choice: memory.total_bytes for choice, memory in self.tried.items()}
        low = max((c for c in total if total[c] <= budget_bytes), key=total.__getitem__)
        above = [c for c in total if total[c] > budget_bytes and levels[c] > levels[low]]
        if not above:
            return None
        high = min(above, key=total.__getitem__)
        share = ((1 - _AIM) * budget_bytes - total[low]) / (total[high] - total[low])
        if share <= 0:
            return None
        share = share if total[high] <= _BEYOND[1] * budget_bytes else min(share, 0.5)
        level = levels[low] + int(share * (levels[high] - levels[low]))
        ways = zip(self.marks, low, high, strict=True)
        found = [tuple(mark.towards(one, other, level) for mark, one, other in ways), self.choice(level)]
        return min(filter(self.is_new, found), key=lambda choice: price(self.marks, choice), default=None)

    def points(self, plain: bool = False) -> list[tuple[int, int]]:
        """Levels and peaks of what was tried; without what recomputes nothing, of which the compiler makes copies."""
        found = ((level_bytes(self.marks, c), memory.total_bytes) for c, memory in self.tried.items())
        return [(level, total) for level, total in found if plain or level < self.plain_level]

    def expected(self, level_bytes: int) -> float:
        """The bytes that a level is expected to come out at, by the nearest that was tried."""
        near = min(self.points(), key=lambda point: abs(point[0] - level_bytes), default=(0, self.held_bytes))
        return near[1] + self.rate * (level_bytes - near[0])

    def aim(self, goal_bytes: float) -> int:
        """The level that is expected to come out at a number of bytes.

        Part of what a step needs is the same at every level, and predictions are off by much the same bytes at levels
        that are near each other. So what was tried and came out nearest is where the line begins that is followed, and
        the next nearest, if it is near, says how steep it is.
        """
        near = sorted(self.points(), key=lambda point: abs(point[1] - goal_bytes))
        if not near:
            return int((goal_bytes - self.held_bytes) / self.rate)
        level, total = near[0]
        other = next((point for point in near if point[0] != level), near[0])
        own = (total - self.held_bytes) / max(level, 1)
        slope = (total - other[1]) / (level - other[0]) if other[0] != level else min(own, self.rate)
        slope = min(max(slope, _SLOPES[0] * self.rate), _SLOPES[1] * self.rate)
        return max(int(level + (goal_bytes - total) / slope), 0)
