"""The schedule for a budget, or the error that says what is needed at least.

In: a ``Judge``, ``Candidates``, a budget, a ``Request``. Out: a schedule within the budget, or ``BudgetError``.

With the compiler's word the gradient step of the program is searched as a training step with one mark that is all of it
(``driver``); else what is predicted is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from remat_plan.graph.action import SAVE
from remat_plan.graph.schedule import Schedule, actions_in
from remat_plan.graph.structure import is_loop
from remat_plan.planning.honours import honours
from remat_plan.results.shortfall import UNSEEN_ADVICE, below_minimum, nothing_to_do
from remat_plan.search.candidates import Candidates, Request, may_stay_written
from remat_plan.search.driver import DOUBT, WORTH, Driver, Fitted
from remat_plan.search.front import fastest_first, find
from remat_plan.search.judge import Judge, may_be_spread
from remat_plan.search.mark import Mark, rate

T = TypeVar("T")

_ADVICE = "another strategy ('auto' searches for one that fits), "
_COLLECTIVES_ADVICE = "never_recompute=() (which allows repeating collectives), "
_SLICES_ADVICE = "never_split=() (which allows slices), "
_HOST_ADVICE = "offload=True (which allows the host's memory), "


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What a search came to.

    Attributes:
        schedule: within the budget.
        peaks: of what was compiled on the way.
    """

    schedule: Schedule
    peaks: Mapping[Schedule, int]


def find_confirmed(
    judge: Judge,
    candidates: Candidates,
    budget_bytes: int,
    request: Request,
    compiles: int | None,
    advise: Callable[[Schedule], str] = lambda least: "",
) -> Confirmed:
    """The fastest schedule found whose peak is within a budget.

    The function as written is a candidate like any other, whose peak is known.

    Args:
        judge: of the program.
        candidates: where its schedules come from.
        budget_bytes: what has to be met.
        request: what was asked for.
        compiles: so often the program may be compiled; None where predicted peaks count.
        advise: what else to try, for the schedule that needs least.

    Raises:
        BudgetError: nothing fits.
    """
    peak = judge.predicted_bytes if compiles is None else judge.compiled_bytes
    program, written = judge.program, judge.program.written
    peaks: dict[Schedule, int] = {written: peak(written)} if may_stay_written(program, request) else {}
    if peaks and peaks[written] <= budget_bytes and not _may_be_beaten(judge, candidates, budget_bytes, request):
        return Confirmed(written, peaks)
    named = candidates.named(request)
    checked = named is not None and len(named.schedules) == 1
    if compiles is None or checked:
        schedule = find(judge, candidates, budget_bytes, request)
        peaks[schedule] = peak(schedule)
    else:
        found, compiled = _find_compiled(judge, candidates, budget_bytes, request, compiles)
        schedule = found.choice[0]
        peaks |= {**compiled, schedule: found.memory.total_bytes}
    fitting = [s for s in (schedule, written) if s in peaks and peaks[s] <= budget_bytes]
    if fitting:
        return Confirmed(fastest(fitting, judge.price, written), peaks)
    if candidates.may_stay_plain(request):  # as JAX has it, where planning merges equal equations
        plain = peak(judge.unplanned)
        peaks[program.plain] = min(peaks.get(program.plain, plain), plain)
    least = min(peaks, key=peaks.__getitem__)
    graph, timeline = program.graph, judge.timeline(least)
    advice = advise(least) + (_ADVICE if checked else "")
    advice += _COLLECTIVES_ADVICE if candidates.keeps_collectives(request) else ""
    advice += _SLICES_ADVICE if request.constraints.never_split else ""
    advice += _HOST_ADVICE if _could_offload(judge, request) else ""
    advice += UNSEEN_ADVICE if may_be_spread(program.call.leaves, judge.target) and not judge.mapped else ""
    present, verified = peak(judge.baseline), compiles is not None
    raise below_minimum(graph, timeline, peaks[least], budget_bytes, present, verified, judge.device, advice)


def _could_offload(judge: Judge, request: Request) -> bool:
    """Whether nobody allowed the host's memory, there is one, and there are loops whose steps could move something."""
    asked = bool(request.constraints.may_offload) or not request.strategy.sources
    return not asked and judge.hardware.link_bytes_per_second > 0 and any(map(is_loop, judge.program.graph.ops))


def fastest(fitting: Sequence[T], price: Callable[[T], float], written: T) -> T:
    """Of what fits the fastest predicted; the function or step as written unless another is clearly faster.

    Seconds of what is written, which JAX traces, differ a little from those of a schedule put together here.
    """
    best = min(fitting, key=price)
    return written if written in fitting and price(best) > (1 - WORTH) * price(written) else best


def _may_be_beaten(judge: Judge, candidates: Candidates, budget_bytes: int, request: Request) -> bool:
    """Whether any schedule that may fit is predicted to be faster than the function as written."""
    limit = int((1 + DOUBT) * budget_bytes)
    found = find(judge, candidates, limit, request)
    first = fastest_first(judge, [found, *candidates.uniform(request)], limit)[:1]
    return any(judge.price(s) < (1 - WORTH) * judge.price(judge.program.written) for s in first)


def _find_compiled(
    judge: Judge, candidates: Candidates, budget_bytes: int, request: Request, compiles: int
) -> tuple[Fitted, dict[Schedule, int]]:
    """Find the fastest schedule whose compiled peak is within the budget, or else the least peak.

    What a predicted byte comes out at is taken from the step that recomputes nothing, until others are compiled; where
    few may be, no less than is predicted: of 36 schedules for a TPU whose plain step needs less, 23 need more than that
    promises, and 15 more than is predicted. Its results are in what is predicted, so it holds its arguments alone from
    beginning to end.

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
    memory = judge.compiled(judge.unplanned)
    if not judge.program.graph.ops:
        raise nothing_to_do(judge.program.graph, memory.total_bytes, budget_bytes)
    marks, held = (Mark(judge, candidates, request),), memory.argument_bytes
    known = {(s,): m for s, m in judge.known.now().items() if _is_candidate(s, judge, candidates, request)}
    learned = rate(marks, (judge.program.plain,), memory.total_bytes - held)
    learned = max(learned, 1.0) if judge.target.compiles_slowly else learned
    driver = Driver(marks, lambda choice: judge.compiled(choice[0]), held, learned, known, left=compiles)
    found = driver.search(budget_bytes)
    return found, judge.compiled_peaks(schedule for (schedule,) in driver.tried)


def _is_candidate(schedule: Schedule, judge: Judge, candidates: Candidates, request: Request) -> bool:
    """Whether a schedule that was compiled for another request may be chosen for this one."""
    if (named := candidates.named(request)) is not None:
        return schedule in named.schedules
    limits = candidates.task(request).cuts.limits
    honoured = honours(judge.program.graph, limits, schedule) and judge.fits_host(schedule)
    return honoured and actions_in(schedule) <= {SAVE, *limits.actions}
