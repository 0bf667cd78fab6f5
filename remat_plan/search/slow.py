"""A search where compiling may take minutes: little optimisation says where to look, default options what counts.

In: a step that can be compiled in both ways, ``Levels``, a budget. Out: ``Fitted``.
"""

from __future__ import annotations

from typing import Protocol

from remat_plan.search.known import Known
from remat_plan.search.levels import CLOSE, Fitted, Levels
from remat_plan.search.mark import Choice, price
from remat_plan.verify.compile import CompiledMemory

_EVEN = 0.03
"""Fast compiles that are this close do not tell which choice needs less with default options: the faster is taken. What
a float32 GPT-2 was predicted to need least on a v5e came out half a per cent larger than what recomputes a quarter of
that, and two per cent smaller in a fast compile."""

_NEXT = 0.06
"""The next slower choice is compiled as well where its fast compile needs no more than this share more. What needed
4.8 per cent more in a fast compile of a bfloat16 ResNet-50 on a v5e needs 3 per cent less with default options."""

_CONFIRMED = 3
"""Where compiling can be fast, so many compiles are left for default options: each takes minutes for a TPU."""

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


def confirmed(step: CompiledStep, levels: Levels, budget_bytes: int, known: Known) -> Fitted:
    """Search, with default options of the compiler having the last word.

    What is compiled fast says where to look; ``levels.tried`` has the last word of each choice after this.

    Args:
        step: is compiled.
        levels: of the step, of which nothing was tried.
        budget_bytes: of the step.
        known: what is known of choices from other searches, with default options.
    """
    if not step.fast:
        levels.tried.update(known)
        return levels.search(budget_bytes)
    final = Levels(levels.marks, step.compile, levels.held_bytes, levels.rate, dict(known), left=_CONFIRMED)
    levels.left = max(levels.left - _CONFIRMED, 1)
    first = _first(levels, budget_bytes)

    def propose(budget_bytes: int) -> Choice | None:
        choice = final.between(budget_bytes)
        if final.best(budget_bytes) is None and (choice in (None, levels.choice(0)) or levels.knows_floor()):
            # what is predicted to need less may run much again twice, and need more
            choice = next((lowest for lowest in _lowest(levels) if lowest not in final.tried), None)
        if choice is None or choice in final.tried or not final.is_worth(budget_bytes, choice):
            return None
        return choice

    final.measure(first)
    final.explore(budget_bytes, propose)
    found = final.found(final.best(budget_bytes) or final.least(), budget_bytes)
    levels.tried.update(final.tried)
    return found


def _first(levels: Levels, budget_bytes: int) -> Choice:
    """The choice to begin with: the one that is expected at the budget, or another where a fast compile is far off.

    Where that needs far more and nothing less is predicted, the one that fast compiles need least for.
    """
    choice = levels.choice(levels.aim(budget_bytes))
    memory = levels.measure(choice)
    close = (1 - CLOSE) * budget_bytes <= memory.total_bytes <= _FAST_EXCESS * budget_bytes
    if close or levels.recomputes_nothing(budget_bytes):
        return choice
    if (other := levels.between(budget_bytes)) not in (None, levels.choice(0)):
        return other
    return choice if memory.total_bytes <= budget_bytes else _lowest(levels)[0]


def _lowest(levels: Levels) -> list[Choice]:
    """Choices near the low end that deserve a compile with default options, by those that were compiled fast.

    First the one that needs least there; then the next faster one, which may need less with default options; then
    the next slower one, if it needs next to no more.
    """
    for choice in levels.floor():
        if levels.left and levels.is_new(choice):
            levels.measure(choice)
    floor = sorted((c for c in levels.floor() if c in levels.tried), key=lambda choice: price(levels.marks, choice))
    total = {choice: levels.tried[choice].total_bytes for choice in floor}
    least = min(total.values())
    first = next(number for number, choice in enumerate(floor) if total[choice] <= (1 + _EVEN) * least)
    faster, slower = floor[max(first - 1, 0) : first], floor[first + 1 : first + 2]
    return [floor[first], *faster, *(choice for choice in slower if total[choice] <= (1 + _NEXT) * least)]
