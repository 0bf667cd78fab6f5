"""The schedules of all marks of a step, for a budget of the step.

In: ``Mark``s (what is known of each program by itself), a function that compiles the step under schedules for them, a
budget. Out: ``Fitted``: schedules whose compiled step is within the budget, or those that are predicted to need least.
The step is a training step; or the gradient step of one program, where compiling takes minutes (``alone``).

Each mark is given the same *level*: bytes that its own gradient step may need, by the evaluator, beside its
arguments. Of its schedules the fastest is taken that is predicted to stay within. The step needs what it holds all the
time (arguments and results that are not donated, as the compiler counts them) and at its peak what the highest mark
needs there; how many bytes a predicted byte comes out at is learned from what was compiled. So few compiles are needed,
however large the step is: the one as written, and mostly two or three more. Where compiling takes long (TPUs that are
not attached) the first is made with little optimisation; those that count, with default options.

Limits: of marks that are alive at one time, such as two halves of one model, each has the same level, although an
unequal share of the bytes may cost less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from remat_plan.clock.turns import Ratio
from remat_plan.search.mark import Choice, Mark, flops, level_bytes, overhead, price, rate
from remat_plan.search.seconds import faster_by, no_more_work
from remat_plan.verify.compile import CompiledMemory

MOST_COMPILES = 5
"""The step as written is one of them. Only where none of these fits, a few more are made, and of the least."""

CLOSE = 0.03
"""A step that leaves no more than this share of the budget unused is improved only where that promises ``_WORTH``."""

_WORTH = 0.03
"""So much shorter it has to be then, as predicted: at the low end a few bytes can cost as much as all the others."""

_AIM = 0.005
"""The share of the budget that is left free after a step came out above it: predictions are not that exact. After two
four times as much is left, and so on."""

_MORE = 2
"""So many choices more are compiled where none fits: what is at the low end may cost far more than is needed."""

_FLOOR = (0.0, 0.0625, 0.125, 0.25)
"""Where choices near the low end lie: shares of the way from the least level to the plain one, by factors. The nearest
are close together: what is predicted to need least of a ResNet-50 on a v5e runs much inside what runs again, and comes
out a fifth larger with little optimisation; what is a little above comes out as predicted."""

_EVEN = 0.03
"""Fast compiles that are this close do not tell which choice needs less with default options: the faster is taken. What
a float32 GPT-2 was predicted to need least on a v5e came out half a per cent larger than what recomputes a quarter of
that, and two per cent smaller in a fast compile."""

_NEXT = 0.06
"""The next slower choice is compiled as well where its fast compile needs no more than this share more. What needed
4.8 per cent more in a fast compile of a bfloat16 ResNet-50 on a v5e needs 3 per cent less with default options."""

_NOTHING_TO_GAIN = 0.002
"""Nor is a step improved that recomputes this share of the plain seconds, or less."""

_CONFIRMED = 3
"""Where the first compile is fast, so many more are made with default options: each takes minutes for a TPU."""

_FAST_EXCESS = 1.15
"""A fast compile may need this much more than one with default options: of a ViT on a v5e 15 to 18 per cent."""


class CompiledStep(Protocol):
    """A step that is compiled under choices."""

    @property
    def fast(self) -> bool:
        """Whether compiling with default options takes so long that little optimisation says where to begin."""
        ...

    def compile(self, choice: Choice, fast: bool = False) -> CompiledMemory:
        """What the compiled step needs; ``fast`` with little optimisation."""
        ...


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a search came to.

    Attributes:
        choice: schedules, one for each mark; where none fits, those that are predicted to need least.
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
        compile: compiles the step under a choice; asked for each choice once.
        held_bytes: what the step holds from its beginning to its end.
        rate: compiled bytes that a predicted byte above the arguments comes out at; learned.
    """

    marks: Sequence[Mark]
    compile: Callable[[Choice], CompiledMemory]
    held_bytes: int
    rate: float = 1.0
    tried: dict[Choice, CompiledMemory] = field(default_factory=dict)

    def choice(self, level_bytes: int) -> Choice:
        """The fastest schedules within a level."""
        return tuple(mark.fastest(level_bytes) for mark in self.marks)

    def search(self, budget_bytes: int) -> Fitted:
        """Find the fastest choice whose compiled step is within the budget, or else the one that needs least."""
        self.explore(budget_bytes, MOST_COMPILES - 1, self.next)
        best = self.best(budget_bytes) or self.least()
        return self.found(best, budget_bytes)

    def found(self, choice: Choice, budget_bytes: int) -> Fitted:
        """A choice as what was come to."""
        memory = self.measure(choice)
        return Fitted(choice, memory, memory.total_bytes <= budget_bytes)

    def explore(self, budget_bytes: int, compiles: int, propose: Callable[[int], Choice | None]) -> None:
        """Compile so many choices, each where what is known says that the budget is met.

        Fewer if one is good enough, a few more if none fits.

        Args:
            budget_bytes: of the step.
            compiles: how many.
            propose: the next choice for a budget, None where there is none: ``next``, or ``between``.
        """
        most = len(self.tried) + compiles
        while (choice := propose(budget_bytes)) is not None:
            if len(self.tried) >= most + (0 if self.best(budget_bytes) else _MORE):
                break
            if self.is_done(budget_bytes, choice):
                break
            self.measure(choice)

    def least(self) -> Choice:
        """Of choices near the low end the one the compiler needs least for.

        Every search that found nothing ends with these, whatever its budget: their least peak can be met as one.
        """
        return min(self.floor(), key=lambda choice: self.measure(choice).total_bytes)

    def floor(self) -> list[Choice]:
        """Choices near the low end: what is predicted to need least is not always what the compiler needs least for.

        The first is the fastest of those that are predicted to need least to a thousandth; the last needs less than it.
        """
        plain = level_bytes(self.marks, tuple(mark.judge.program.plain for mark in self.marks))
        least = level_bytes(self.marks, self.choice(0))
        levels = [int(least * (plain / max(least, 1)) ** share) for share in _FLOOR]
        return list(dict.fromkeys(map(self.choice, [*levels, least - 1])))

    def lowest(self) -> list[Choice]:
        """Choices near the low end that deserve a compile with default options, by those that were compiled fast.

        First the one that needs least there; then the next faster one, which may need less with default options; then
        the next slower one, if it needs next to no more.
        """
        floor = sorted(self.floor(), key=lambda choice: price(self.marks, choice))
        total = {choice: self.measure(choice).total_bytes for choice in floor}
        least = min(total.values())
        first = next(number for number, choice in enumerate(floor) if total[choice] <= (1 + _EVEN) * least)
        faster, slower = floor[max(first - 1, 0) : first], floor[first + 1 : first + 2]
        return [floor[first], *faster, *(choice for choice in slower if total[choice] <= (1 + _NEXT) * least)]

    def knows_floor(self) -> bool:
        """Whether the choices near the low end are compiled."""
        return all(choice in self.tried for choice in self.floor())

    def measure(self, choice: Choice) -> CompiledMemory:
        """Compile a choice, and learn from it what predicted bytes come out at."""
        if choice not in self.tried:
            self.tried[choice] = self.compile(choice)
        memory = self.tried[choice]
        self.rate = rate(self.marks, choice, memory.total_bytes - self.held_bytes)
        return memory

    def best(self, budget_bytes: int) -> Choice | None:
        """The fastest choice that was compiled and fits: as predicted, unless the compiler knows better."""
        fitting = [c for c, memory in self.tried.items() if memory.total_bytes <= budget_bytes]
        best = min(fitting, key=lambda choice: price(self.marks, choice), default=None)
        if best is None:
            return None
        return faster_by(self._seconds, best, no_more_work(lambda c: flops(self.marks, c), best, fitting))

    def _seconds(self, choices: Sequence[Choice]) -> list[Ratio | None]:
        """Seconds of the compiled step under choices; None where its module does not tell."""
        found = [self.tried[choice].seconds for choice in choices]
        return [None if seconds is None else Ratio.exactly(seconds) for seconds in found]

    def is_done(self, budget_bytes: int, following: Choice) -> bool:
        """Whether what fits is good enough for the following choice not to be compiled."""
        best = self.best(budget_bytes)
        if best is None or self.recomputes_nothing(budget_bytes):
            return best is not None
        is_close = self.tried[best].total_bytes >= (1 - CLOSE) * budget_bytes
        return is_close and price(self.marks, following) > (1 - _WORTH) * price(self.marks, best)

    def recomputes_nothing(self, budget_bytes: int) -> bool:
        """Whether what fits has next to no overhead."""
        best = self.best(budget_bytes)
        return best is not None and overhead(self.marks, best) <= _NOTHING_TO_GAIN

    def next(self, budget_bytes: int) -> Choice | None:
        """The choice to compile next; None where none is left.

        Where nothing fits and nothing less is predicted, choices near the low end are left, one after another.
        """
        found = self.between(budget_bytes)
        if found is None and self.best(budget_bytes) is None:
            return next((choice for choice in self.floor() if choice not in self.tried), None)
        return found

    def between(self, budget_bytes: int) -> Choice | None:
        """The next choice between those that fit and those that do not; None where none is left there."""
        levels = {c: level_bytes(self.marks, c) for c in self.tried}
        under = [levels[c] for c, memory in self.tried.items() if memory.total_bytes <= budget_bytes]
        if under and (choice := self.interpolated(budget_bytes, levels)) is not None:
            return choice
        low = max(under, default=0)
        over = {levels[c]: memory.total_bytes for c, memory in self.tried.items() if memory.total_bytes > budget_bytes}
        high = min((level for level in over if level > low), default=None)
        level = self.aim(budget_bytes, {} if under else over, len(over))
        proposed = [level] if high is None or low < level < high else []
        if high is not None:
            proposed += [(low + high) // 2, high - 1]
        return next((choice for choice in map(self.choice, proposed) if choice not in self.tried), None)

    def interpolated(self, budget_bytes: int, levels: Mapping[Choice, int]) -> Choice | None:
        """The fastest new choice between the largest that fits and the least above it.

        Its level is that of the line through the two, or in the middle if that is lower: peaks do not rise evenly.
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
        level = levels[low] + int(min(share, 0.5) * (levels[high] - levels[low]))
        ways = zip(self.marks, low, high, strict=True)
        found = [tuple(mark.towards(one, other, level) for mark, one, other in ways), self.choice(level)]
        new = [choice for choice in found if choice not in self.tried]
        return min(new, key=lambda choice: price(self.marks, choice), default=None)

    def aim(self, budget_bytes: int, over: Mapping[int, int], misses: int) -> int:
        """The level that is expected to come out at a budget, a little below after misses.

        What predicted bytes come out at changes from one choice to the next, so it may lie beyond what is known to fit,
        or not to. Part of what a step needs is the same at every level, so after two choices that do not fit, their
        levels and peaks (``over``) tell more than the ratio of one: the line through the lowest two is followed.
        """
        goal = (1 - _AIM * misses**2) * budget_bytes
        lowest = sorted(over.items())[:2]
        if len(lowest) == 2:
            (low, least), (high, most) = lowest
            if least < most:
                return max(int(low - (least - goal) * (high - low) / (most - least)), 0)
        return int((goal - self.held_bytes) / self.rate)


def confirmed(step: CompiledStep, levels: Levels, budget_bytes: int) -> Fitted:
    """Search, with default options of the compiler having the last word.

    What is compiled fast says where to look; ``levels.tried`` has the last word of each choice after this.
    """
    if not step.fast:
        return levels.search(budget_bytes)
    first = _first(levels, budget_bytes)
    final = Levels(levels.marks, step.compile, levels.held_bytes, levels.rate)

    def propose(budget_bytes: int) -> Choice | None:
        choice = final.between(budget_bytes)
        if final.best(budget_bytes) is None and (choice in (None, levels.choice(0)) or levels.knows_floor()):
            # what is predicted to need less may run much again twice, and need more
            choice = next((lowest for lowest in levels.lowest() if lowest not in final.tried), None)
        return None if choice in final.tried else choice

    final.measure(first)
    final.explore(budget_bytes, _CONFIRMED - 1, propose)
    best = final.best(budget_bytes) or min(levels.lowest(), key=lambda choice: final.measure(choice).total_bytes)
    found = final.found(best, budget_bytes)
    levels.tried.update(final.tried)
    return found


def _first(levels: Levels, budget_bytes: int) -> Choice:
    """The choice to begin with: the one that is expected at the budget, or another where a fast compile is far off.

    Where that needs far more and nothing less is predicted, the one that fast compiles need least for.
    """
    choice = levels.choice(levels.aim(budget_bytes, {}, 0))
    memory = levels.measure(choice)
    close = (1 - CLOSE) * budget_bytes <= memory.total_bytes <= _FAST_EXCESS * budget_bytes
    if close or levels.recomputes_nothing(budget_bytes):
        return choice
    if (other := levels.between(budget_bytes)) not in (None, levels.choice(0)):
        return other
    return choice if memory.total_bytes <= budget_bytes else levels.lowest()[0]
