"""The schedule of one program for a budget, with the compiler's word.

In: a ``Judge``, ``Candidates``, a budget, a ``Request``. Out: ``Fitted``, and what was compiled on the way.

The gradient step of the program is a step with one mark, which is all of it: see ``levels``.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan.graph.schedule import Schedule
from remat_plan.planning.honours import honours
from remat_plan.report.shortfall import nothing_to_do
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.judge import Judge
from remat_plan.search.levels import Fitted, Levels
from remat_plan.search.mark import Choice, Mark, rate
from remat_plan.search.slow import confirmed
from remat_plan.verify.compile import CompiledMemory


@dataclass(frozen=True)
class _Alone:
    """The gradient step of a program, compiled under schedules for it."""

    judge: Judge

    @property
    def fast(self) -> bool:
        """Whether compiling takes so long that a compile with little optimisation says where to begin."""
        return self.judge.fast

    def compile(self, choice: Choice, fast: bool = False) -> CompiledMemory:
        """What the step needs."""
        (schedule,) = choice
        return self.judge.compiled(schedule, fast)


def find_by_levels(
    judge: Judge, candidates: Candidates, budget_bytes: int, request: Request, compiles: int
) -> tuple[Fitted, dict[Schedule, int]]:
    """Find the fastest schedule whose compiled peak is within the budget, or else the least peak.

    What a predicted byte comes out at is taken from the step that recomputes nothing, until others are compiled. Its
    results are in what is predicted, so it holds its arguments alone from beginning to end.

    Args:
        judge: of the program.
        candidates: where its schedules come from.
        budget_bytes: what has to be met.
        request: what was asked for.
        compiles: so often it may be compiled.

    Returns:
        What was found, and the peaks of what was compiled for it.

    Raises:
        BudgetError: nothing is computed, so nothing can be recomputed.
    """
    step = _Alone(judge)
    plain = judge.program.plain
    memory = judge.compiled(judge.unplanned)
    if not judge.program.graph.ops:
        raise nothing_to_do(judge.program.graph, memory.total_bytes, budget_bytes)
    marks = (Mark(judge, candidates, request),)
    levels = Levels(marks, lambda choice: step.compile(choice, step.fast), memory.argument_bytes, left=compiles)
    levels.rate = min(1.0, rate(marks, (plain,), memory.total_bytes - memory.argument_bytes))
    known = {(s,): m for s, m in judge.known.now().items() if _is_candidate(s, judge, candidates, request)}
    found = confirmed(step, levels, budget_bytes, known)
    return found, judge.compiled_peaks(schedule for (schedule,) in levels.tried)


def _is_candidate(schedule: Schedule, judge: Judge, candidates: Candidates, request: Request) -> bool:
    """Whether a schedule that was compiled for another request may be chosen for this one."""
    if (named := candidates.named(request)) is not None:
        return schedule in named.schedules
    return honours(judge.program.graph, candidates.task(request).cuts.limits, schedule)
