"""The schedules of all marks of a step, for a budget of the step.

In: ``Mark``s (what is known of each program by itself), a function that compiles the step under schedules for them, a
budget. Out: ``Fitted``: schedules whose compiled step is within the budget, or those that need least of all compiled.
The step is a training step; or the gradient step of one program, which is a step with one mark (``confirm``).

Each mark is given the same *level*: bytes that its own gradient step may need, by the evaluator, beside its arguments.
Of its schedules the fastest is taken that is predicted to stay within. What a level comes out at is learned: before
anything is known but the plain step, by what a predicted byte comes out at there; then from what was compiled near it,
and between two that were compiled on the line through both. A choice is compiled where it is expected to be within the
budget and promises enough; where nothing is within it, those near the low end follow. What was compiled for another
budget is known from the start, and compiled again where it is chosen.

Limits: of marks that are alive at one time, such as two halves of one model, each has the same level, although an
unequal share of the bytes may cost less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from remat_plan.clock.turns import Ratio
from remat_plan.search.mark import Choice, Mark, flops, host_bytes, level_bytes, price
from remat_plan.search.seconds import faster_by, no_more_work
from remat_plan.verify.compile import CompiledMemory
from remat_plan.verify.targets import Target

MOST_COMPILES = 8
"""So often a program is compiled for one budget at most: as it is written, plain, and under the choices of a search;
half as often where a compile takes minutes (TPUs that are not attached); a step as written that is refused there, which
takes seconds, does not count, nor does the least that is possible where nothing else fits."""

MARGIN = 0.0075
"""The share of the budget that is left free by what is compiled next, for each that came out above it and one more:
predictions are not that exact."""

CLOSE = 0.03
"""A step that leaves no more than this share of the budget unused is improved only where that promises ``WORTH``; one
that leaves more, where that promises anything."""

WORTH = 0.005
"""So much shorter a step has to be, as predicted, to be worth a compile."""

DOUBT = 0.12
"""So far predictions are off at most where nothing alike was compiled, as a share. Choices are compiled that are
expected so far above the budget: one that a person may have written, and those that are half of it faster."""


def most_compiles(target: Target) -> int:
    """So often a program is compiled for one budget and a target at most."""
    return MOST_COMPILES // 2 if target.compiles_slowly else MOST_COMPILES


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a search came to: a schedule for each mark, those that need least where none fits; the compiled step."""

    choice: Choice
    memory: CompiledMemory
    fits: bool


@dataclass
class Driver:
    """A search for one step and one budget.

    Attributes:
        marks: the marked programs.
        compile: compiles the step under a choice.
        held_bytes: what the step holds from its beginning to its end.
        rate: compiled bytes that a predicted byte above the arguments comes out at in the plain step.
        tried: what is known of choices; of some from another search.
        sure: those of them that were compiled for this one.
        left: so many more may be compiled.
    """

    marks: Sequence[Mark]
    compile: Callable[[Choice], CompiledMemory]
    held_bytes: int
    rate: float = 1.0
    tried: dict[Choice, CompiledMemory] = field(default_factory=dict)
    sure: set[Choice] = field(default_factory=set)
    left: int = MOST_COMPILES - 1
    _choices: dict[int, Choice] = field(default_factory=dict)
    _reserved: int = 0  # compiles that a search leaves for the low end as long as nothing fits

    def search(self, budget_bytes: int) -> Fitted:
        """Find the fastest choice whose compiled step is within the budget, or else the one that needs least.

        What is taken in the end was compiled for this search: of what is known from another, the best is compiled
        again.
        """
        self._reserved = self.left // 2
        while self.left:
            best = self.best(budget_bytes, known=True)
            unsure = best if best is not None and best not in self.sure else None
            choice = (self.next(budget_bytes) if self.left > 1 or unsure is None else None) or unsure
            if choice is None or choice in self.sure:  # nothing new is left
                break
            self.measure(choice)
        if self.best(budget_bytes) is None:  # however much was compiled, no budget is refused without the low end
            self.measure(self.choice(0))
        choice = self.best(budget_bytes) or self.least()
        return Fitted(choice, self.tried[choice], self.fits(choice, budget_bytes))

    def measure(self, choice: Choice) -> CompiledMemory:
        """Compile a choice."""
        if choice not in self.sure:
            self.tried[choice] = self.compile(choice)
            self.sure.add(choice)
            self.left -= 1
        return self.tried[choice]

    def choice(self, level_bytes: int) -> Choice:
        """The fastest schedules within a level; those of a higher level that need no more are."""
        if level_bytes not in self._choices:
            known = (c for level, c in sorted(self._choices.items()) if level > level_bytes >= self.level(c))
            self._choices[level_bytes] = next(known, None) or tuple(mark.fastest(level_bytes) for mark in self.marks)
        return self._choices[level_bytes]

    def level(self, choice: Choice) -> int:
        """The level of a choice."""
        return level_bytes(self.marks, choice)

    def price(self, choice: Choice) -> float:
        """What choices are compared by."""
        return price(self.marks, choice)

    def total(self, choice: Choice) -> int:
        """The compiled peak of a choice that was tried."""
        return self.tried[choice].total_bytes

    def fits(self, choice: Choice, budget_bytes: int) -> bool:
        """Whether a choice that was tried is within a budget, and what it is to keep on the host is there.

        Of what JAX is told to move XLA may move nothing, without a word; no more of it may be missing than ``CLOSE``.
        """
        moved = host_bytes(self.marks, choice)
        return self.total(choice) <= budget_bytes and self.tried[choice].host_temp_bytes >= (1 - CLOSE) * moved

    def is_new(self, choice: Choice) -> bool:
        """Whether nothing is known of a choice, nor of one of its level and much the same price: mostly the same
        program but for a border."""
        level, own = self.level(choice), self.price(choice)
        return not any(self.level(c) == level and abs(self.price(c) - own) <= MARGIN * own for c in self.tried)

    def least(self) -> Choice:
        """Of all choices that are known the one that needs least."""
        return min(self.tried, key=lambda choice: (self.total(choice), self.price(choice)))

    def best(self, budget_bytes: int, known: bool = False) -> Choice | None:
        """The fastest choice that was compiled, here or in another search whose word counts too, and fits.

        As predicted, unless the compiler knows better; what keeps values on the host has to be faster by its word too.
        """
        fitting = [c for c in self.tried if self.fits(c, budget_bytes) and (known or c in self.sure)]
        moving = [c for c in fitting if host_bytes(self.marks, c)]
        here = [c for c in fitting if c not in moving]
        found = [self._fastest(choices) for choices in (here, moving) if choices]
        return faster_by(self._seconds, found[0], found[1:]) if found else None

    def _fastest(self, choices: Sequence[Choice]) -> Choice:
        best = min(choices, key=self.price)
        return faster_by(self._seconds, best, no_more_work(lambda c: flops(self.marks, c), best, choices))

    def _seconds(self, choices: Sequence[Choice]) -> list[Ratio | None]:
        """Seconds of the compiled step under choices; None where its module does not tell."""
        found = [self.tried[choice].seconds for choice in choices]
        return [None if seconds is None else Ratio.exactly(seconds) for seconds in found]

    def next(self, budget_bytes: int) -> Choice | None:
        """The choice to compile next; None where none is left that is worth it.

        Where nothing fits, compiles are left for the choices near the low end; the last of all is of what is as good as
        sure to fit, if that is above the low end.
        """
        best = self.best(budget_bytes, known=True)
        if best is not None:
            sources = [self.alone, self.expected_best, self.by_hand, self.bold]
            if self.left <= 2:  # before the last compiles are used up between what fits and what does not
                sources = [self.by_hand, *sources]
            return next((c for source in sources if (c := source(budget_bytes, best)) is not None), None)
        if self.left > self._reserved or self.left > len(self.floor()):  # the low end takes long to find
            found = self.expected_best(budget_bytes)
        else:
            found = self.as_good_as_sure(budget_bytes) if self.left == 1 else None
        return found or next(iter(self.floor()), None)

    def expected_best(self, budget_bytes: int, best: Choice | None = None) -> Choice | None:
        """Of the new choices that are expected to fit, and promise enough beside what fits, the fastest.

        Unless another is much faster, the one that is expected to leave most bytes free. What was next to the budget
        has another beside it, which may be off in another way.
        """
        over = {self.level(c) for c in self.sure if self.total(c) > budget_bytes and self.level(c) < self.plain_level}
        safe = (1 - MARGIN * (1 + len(over))) * budget_bytes
        tiers = [[c for c in self._at(g) if self.expected(self.level(c)) <= g] for g in (safe, budget_bytes)]
        _, high = self._around(budget_bytes)
        if best is not None and high is not None and self.total(high) <= (1 + MARGIN) * budget_bytes:
            tiers.append([self.choice(self.level(high) - 1)])
        fastest = [min(new, key=self.price) for tier in tiers if (new := [*filter(self.is_new, tier)])]
        if not fastest:
            return None
        choice = fastest[0]
        for bolder in fastest[1:]:
            choice = bolder if self.price(bolder) < (1 - WORTH) * self.price(choice) else choice
        return choice if best is None or self.is_worth(budget_bytes, best, choice) else None

    def alone(self, budget_bytes: int, best: Choice) -> Choice | None:
        """Beside a choice that keeps values on the host the fastest that keeps none there, once.

        On an H100 a scanned GPT-2 that moves 925 MB is predicted to be faster, and compiles to 3 % more seconds.
        """
        here = [c for c in self.tried if not host_bytes(self.marks, c) and self.level(c) < self.plain_level]
        if here or not host_bytes(self.marks, best):
            return None
        level = self.aim((1 - MARGIN) * budget_bytes)
        choice = tuple(mark.on_device().fastest(level) for mark in self.marks)
        return choice if self.is_new(choice) and not host_bytes(self.marks, choice) else None

    def as_good_as_sure(self, budget_bytes: int) -> Choice | None:
        """The fastest new choice within the budget even if it is as far off as the worst so far, and by ``DOUBT`` more.

        None if the least has been compiled, or would be that choice.
        """
        least = self.choice(0)
        if least in self.tried:
            return None
        recompute = [c for c in self.sure if self.level(c) < self.plain_level]
        worst = max((self.total(c) / self.expected(self.level(c), []) for c in recompute), default=1.0)
        choice = self.choice(self._unlearned((1 - DOUBT) * budget_bytes / max(worst, 1.0) - self.held_bytes))
        return choice if self.level(choice) > self.level(least) and self.is_new(choice) else None

    def is_worth(self, budget_bytes: int, best: Choice, following: Choice) -> bool:
        """Whether what fits is not good enough for the following choice to be left out."""
        is_close = self.total(best) >= (1 - CLOSE) * budget_bytes
        shorter = 1 - self.price(following) / self.price(best)
        less = 1 - flops(self.marks, following) / max(flops(self.marks, best), 1)
        return shorter > (WORTH if is_close else 0) or (shorter >= 0 and less > WORTH and not is_close)

    def _at(self, goal_bytes: float) -> list[Choice]:
        """Choices that are expected to come out at a number of bytes: the fastest within a level, and what is on the
        way between two that were compiled, which may be off in another way."""
        low, high = self._around(goal_bytes)
        level = self.aim(goal_bytes)
        end = high or self.choice(int((1 + DOUBT) * level))  # first: it may be within the level too
        start, found = low or self.choice(level), [self.choice(level)]
        if self.level(end) > self.level(start) and (low or self.level(start) < (1 - CLOSE) * level):
            ways = zip(self.marks, start, end, strict=True)
            found.append(tuple(mark.towards(one, other, level) for mark, one, other in ways))
        return found

    def _around(self, goal_bytes: float) -> tuple[Choice | None, Choice | None]:
        """Of what was tried the highest level that is within a number of bytes, and the least above it of a higher one.

        Without what recomputes nothing, of which the compiler makes copies.
        """
        tried = [c for c in self.tried if self.level(c) < self.plain_level]
        low = max((c for c in tried if self.total(c) <= goal_bytes), key=self.level, default=None)
        least = -1 if low is None else self.level(low)
        above = [c for c in tried if self.total(c) > goal_bytes and self.level(c) > least]
        return low, min(above, key=self.total, default=None)

    def aim(self, goal_bytes: float) -> int:
        """The level that is expected to come out at a number of bytes."""
        low, high = self._around(goal_bytes)
        if low is not None and high is not None:
            slope = (self.total(high) - self.total(low)) / (self.level(high) - self.level(low))
        else:
            slope = self.rate
        near = low or high
        if near is None:
            return self._unlearned(goal_bytes - self.held_bytes)
        return max(int(self.level(near) + (goal_bytes - self.total(near)) / slope), 0)

    def _unlearned(self, above_bytes: float) -> int:
        """The level that comes out at so many bytes above what is held, by what is known of the plain step.

        Above 1 its rate is of copies of what it keeps, of which others keep less: they are in proportion to the level.
        """
        if self.rate <= 1 or above_bytes <= 0:
            return max(int(above_bytes / self.rate), 0)
        copies = (self.rate - 1) / self.plain_level
        return int((math.sqrt(1 + 4 * copies * above_bytes) - 1) / (2 * copies))

    def expected(self, level_bytes: int, among: Sequence[Choice] | None = None) -> float:
        """The bytes that a level is expected to come out at, by what was tried; or by some of it, or by none."""
        known = self.tried if among is None else among
        tried = {self.level(c): self.total(c) for c in known if self.level(c) < self.plain_level}
        low = max((level for level in tried if level <= level_bytes), default=None)
        high = min((level for level in tried if level > level_bytes), default=None)
        if low is None or high is None:
            near = high if low is None else low
            if near is None:
                share = level_bytes / max(self.plain_level, 1) if self.rate > 1 else 1
                return self.held_bytes + level_bytes * (1 + (self.rate - 1) * share)
            return tried[near] + self.rate * (level_bytes - near)
        return tried[low] + (tried[high] - tried[low]) * (level_bytes - low) / (high - low)

    @property
    def plain_level(self) -> int:
        """The level at which nothing is recomputed."""
        return self.level(tuple(mark.judge.program.plain for mark in self.marks))

    def floor(self) -> list[Choice]:
        """New choices near the low end: what is predicted to need least is not always what needs least.

        They do not depend on the budget. The first is the fastest of those that are predicted to need least to a
        thousandth; then two by one rule for blocks, which are off in another way, one that needs less than the first,
        and some that recompute less, unless these are expected far above the least.
        """
        first = self.choice(0)
        if first not in self.tried:
            return [first]
        least, most = self.level(first), (1 + DOUBT) * self.total(self.least())
        uniform = [*zip(*(mark.uniform() for mark in self.marks), strict=True)]
        levels = map(self.choice, [least - 1, *(int((1 + share * DOUBT) * least) for share in (0.5, 1, 1.5, 2))])
        found = [*uniform, *(c for c in levels if self.expected(self.level(c)) <= most)]
        return [c for c in dict.fromkeys(sorted(found, key=self.level)) if self.is_new(c)]

    def bold(self, budget_bytes: int, best: Choice) -> Choice | None:
        """The next choice that is expected a little above the budget and is so much faster that it is worth a compile:
        cut elsewhere, it may be off in another way, and a search for a larger budget would find it."""
        larger = (self.choice(self.aim((1 + share * DOUBT) * budget_bytes)) for share in (0.5, 1))
        return next((c for c in larger if self.price(c) <= (1 - DOUBT / 2) * self.price(best) and self.is_new(c)), None)

    def by_hand(self, budget_bytes: int, best: Choice) -> Choice | None:
        """The next choice that a person may have written, if it has fewer FLOPs than what fits and takes no longer. The
        first that keeps named values may take longer by ``CLOSE``, as predicted, where the compiled module tells.

        They are off in another way than what the search is made of, and two that are predicted alike from each other.
        So they may be expected above the budget by ``DOUBT``, by what is known of the plain step; after one above it by
        ``CLOSE``, by what was compiled, or else alike; after two none is tried. Of those that take as long the one with
        the fewest FLOPs is first: a Llama whose embedding runs again too compiles to 11 % more seconds on a v5e.
        """
        mark, *others = self.marks  # the largest first
        beside = {(s, *(m.fastest(mark.above_arguments(s)) for m in others)): own for s, own in mark.beside().items()}
        near = {c: own for c, own in beside.items() if self.expected(self.level(c), []) <= (1 + DOUBT) * budget_bytes}
        tried = [c for c in near if c in self.tried and self.level(c) < self.plain_level]
        over = [self.level(c) for c in tried if self.total(c) > budget_bytes]
        longer = CLOSE if self.tried[best].seconds and not any(map(near.get, tried)) else 0.0
        new = [c for c in near if c not in self.tried and self.price(c) <= (1 + longer * near[c]) * self.price(best)]
        less = [c for c in new if flops(self.marks, c) < flops(self.marks, best) and len(over) < 2]
        if over:
            close = [c for c in less if self.expected(self.level(c)) <= (1 + CLOSE) * budget_bytes]
            less = close or [c for c in less if abs(self.level(c) - over[0]) <= MARGIN * over[0]]
        dear = (1 + WORTH) * min(map(self.price, less), default=0.0)
        return min((c for c in less if self.price(c) <= dear), key=lambda c: flops(self.marks, c), default=None)
