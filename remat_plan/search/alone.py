"""The schedule of one program for a budget, by few compiles.

In: ``Compiled``, ``Candidates``, a budget, a ``Request``. Out: ``Outcome``: the fastest schedule found that fits, or
the one with the least peak of those near the low end.

The gradient step of the program is a step with one mark, which is all of it: see ``levels``.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan.report.shortfall import nothing_to_do
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.choose import or_plain
from remat_plan.search.levels import Levels, confirmed
from remat_plan.search.mark import Choice, Mark, rate
from remat_plan.search.measure import Compiled, Outcome
from remat_plan.verify.compile import CompiledMemory


@dataclass(frozen=True)
class _Alone:
    """The gradient step of a program, compiled under schedules for it."""

    measure: Compiled

    @property
    def fast(self) -> bool:
        """Whether compiling takes so long that a compile with little optimisation says where to begin."""
        return self.measure.judge.fast

    def compile(self, choice: Choice, fast: bool = False) -> CompiledMemory:
        """What the step needs; with default options it is noted as the peak that counts."""
        (schedule,) = choice
        return self.measure.judge.compiled(schedule, True) if fast else self.measure.memory(schedule)


def find_by_levels(measure: Compiled, candidates: Candidates, budget_bytes: int, request: Request) -> Outcome:
    """Find the fastest schedule whose compiled peak is within the budget, or else the least peak.

    What a predicted byte comes out at is taken from the step that recomputes nothing, until others are compiled. Its
    results are in what is predicted, so it holds its arguments alone from beginning to end.

    Raises:
        BudgetError: nothing is computed, so nothing can be recomputed.
    """
    judge, step = measure.judge, _Alone(measure)
    plain = judge.program.plain
    if not judge.program.graph.ops:
        raise nothing_to_do(judge.program.graph, measure.peak(plain), budget_bytes)
    marks = (Mark(judge, candidates, request),)
    memory = judge.compiled(judge.unplanned)
    above_bytes = memory.total_bytes - memory.argument_bytes
    levels = Levels(marks, lambda choice: step.compile(choice, step.fast), memory.argument_bytes)
    levels.rate = min(1.0, rate(marks, (plain,), above_bytes))
    found = confirmed(step, levels, budget_bytes)
    outcome = Outcome(found.choice[0], found.memory.total_bytes)
    return outcome if found.fits else or_plain(measure, candidates, request, outcome)
