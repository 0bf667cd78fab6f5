"""A plan for one program: what was searched, put together with the figures of the function as it is.

In: a ``Judge`` and the ``Candidates`` of a program, a budget or none, a ``Request``. Out: ``Plan``, or ``BudgetError``.

Every plan is set against the function as its author wrote it, with ``jax.checkpoint`` regions of its own or without.
Only wiring: ``search`` finds the schedule, ``results`` says what it is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Required, TypedDict, Unpack

from remat_plan.clock.turns import Ratio
from remat_plan.graph.schedule import Schedule, is_written
from remat_plan.planning.certificate import least_overhead
from remat_plan.planning.strategies.records import Task
from remat_plan.planning.strategies.registry import check_budget
from remat_plan.plans.notes import slow_notes, source_notes, spread_notes, unborne_notes, unmoved_notes
from remat_plan.report.plans import plan_status
from remat_plan.results.decisions import decide
from remat_plan.results.evidence import Search, Tried, reduce_timeline
from remat_plan.results.places import effect_notes
from remat_plan.results.plan import NO_BUDGET, Plan
from remat_plan.search.candidates import TIME, Candidates, Request, may_stay_written
from remat_plan.search.confirm import fastest, find_confirmed
from remat_plan.search.driver import most_compiles
from remat_plan.search.judge import Judge
from remat_plan.search.opaque import check_opaque, find_opaque
from remat_plan.search.seconds import by_clock, by_compiler, can_run, find_fastest
from remat_plan.small import garbage
from remat_plan.small.budget import Budget
from remat_plan.small.progress import Progress
from remat_plan.traced.programs import Program
from remat_plan.verify.targets import Target

_LOG = logging.getLogger("remat_plan")

_NOT_VERIFIED = (
    "not verified: inside a map over named axes (shard_map, pmap, vmap) the function cannot be compiled by itself, so "
    "peaks are predictions"
)
_LEFT_AS_WRITTEN = (
    "left as written, with its own jax.checkpoint regions: it fits, and nothing that fits is predicted to be faster"
)


def plan_program(
    program: Program,
    target: Target,
    budget: Budget | None,
    request: Request,
    cost: str,
    progress: bool | None,
    started: float,
) -> Plan:
    """Plan for a program as ``make_plan`` does, with progress shown and, in the end, what came out."""
    with Progress("remat_plan", progress) as shown:
        judge = Judge(program, target, shown, cost, host_bytes=request.constraints.host_bytes)
        plan = make_plan(judge, Candidates(judge.rules, shown), budget, request, started)
    shown.conclude(plan_status(plan, program.call.fn, judge.compiles))
    return plan


@garbage.seldom_in
def make_plan(judge: Judge, candidates: Candidates, budget: Budget | None, request: Request, started: float) -> Plan:
    """Plan for a budget, or without one; see ``api.plan``.

    ``started`` is when planning began (``time.perf_counter``).
    """
    if request.goal != TIME:
        check_budget(request.strategy, budget is not None)
    task = candidates.task(request)
    verify = request.verify and not judge.mapped
    peak = judge.compiled_bytes if verify else judge.predicted_bytes
    opaque = None if budget is None or judge.program.has_own_remat else find_opaque(judge)
    if budget is not None:
        check_opaque([opaque], budget)
    judge.progress.say("measuring the function as written")
    baseline, plain = peak(judge.baseline), peak(judge.unplanned)
    most = judge.compiles + most_compiles(judge.target) - len({judge.baseline, judge.unplanned})
    if budget is not None:
        check_opaque([opaque], budget, plain)
    budget_bytes = None if budget is None else budget.resolve(baseline, judge.target.device_memory_bytes)
    if request.goal == TIME:
        chosen = _fastest(judge, candidates, request)
    elif budget_bytes is None:
        chosen = _without_budget(judge, candidates, request)
    else:
        chosen = _choose(judge, candidates, budget_bytes, request, verify, most)
    schedule = chosen.schedule
    predicted, memory = judge.predicted_bytes(schedule), judge.compiled(schedule) if verify else None
    compiled = None if memory is None else memory.total_bytes
    unverified = [_NOT_VERIFIED] if request.verify and not verify else []
    promised = predicted < judge.predicted_bytes(judge.program.plain)
    unborne = unborne_notes(compiled, plain, predicted) if promised else []
    plan = describe(
        judge,
        task,
        request,
        schedule,
        [*unverified, *spread_notes(judge), *chosen.notes, *unborne],
        started,
        within_bytes=peak(schedule) if budget_bytes is None else budget_bytes,
        budget=budget.text if budget is not None else NO_BUDGET,
        budget_bytes=budget_bytes,
        written_peak_bytes=baseline,
        plain_peak_bytes=plain,
        predicted_peak_bytes=predicted,
        compiled_peak_bytes=compiled,
        compiled_overhead=judge.compiled_overhead(schedule) if verify else None,
        compiled_host_bytes=None if memory is None else memory.host_temp_bytes,
        search=chosen.log(judge, budget_bytes),
    )
    _LOG.info("planned program %s in %.2f s: %r", plan.fingerprint, plan.planning_seconds, plan)
    return plan


@dataclass(frozen=True, slots=True)
class Chosen:
    """The schedule that a search came to, and what is to be said about it.

    Attributes:
        peaks: compiled, of the schedules that were tried.
        clocked: of those that were run, their seconds over those of the plain step.
    """

    schedule: Schedule
    notes: Sequence[str]
    peaks: Mapping[Schedule, int] = field(default_factory=dict)
    clocked: Mapping[Schedule, Ratio | None] = field(default_factory=dict)

    def log(self, judge: Judge, budget_bytes: int | None) -> Search:
        """The schedules that were tried, by peak."""
        rows = []
        for schedule, peak in sorted(self.peaks.items(), key=lambda row: row[1]):
            clocked = self.clocked.get(schedule)
            rows.append(
                Tried(
                    what=_in_words(judge, schedule),
                    predicted_peak_bytes=judge.predicted_bytes(schedule),
                    compiled_peak_bytes=peak,
                    overhead=judge.overhead(schedule),
                    compiled_overhead=judge.compiled_overhead(schedule),
                    measured_overhead=None if clocked is None else clocked.value - 1,
                    fits=budget_bytes is None or peak <= budget_bytes,
                    chosen=schedule == self.schedule,
                )
            )
        return Search(tuple(rows))


def _in_words(judge: Judge, schedule: Schedule) -> str:
    """A schedule in a few words."""
    if is_written(schedule):
        return "as written"
    if schedule in (judge.unplanned, judge.program.plain):
        return "plain"
    again, split = sum(s.checkpointed for s in schedule), sum(bool(s.way.sliced) for s in schedule)
    done = [f"{n} of {len(schedule)} segments {word}" for n, word in ((again, "recomputed"), (split, "in slices")) if n]
    return ", ".join(done) or "structures planned inside"


class Figures(TypedDict, total=False):
    """Fields of a plan that are not found by its schedule alone; attributes as of ``Plan``."""

    budget: Required[str]
    budget_bytes: Required[int | None]
    written_peak_bytes: Required[int]
    plain_peak_bytes: Required[int]
    predicted_peak_bytes: Required[int]
    compiled_peak_bytes: Required[int | None]
    compiled_overhead: Required[float | None]
    compiled_host_bytes: int | None
    search: Search


def describe(
    judge: Judge,
    task: Task,
    request: Request,
    schedule: Schedule,
    notes: Sequence[str],
    started: float,
    within_bytes: int,
    **figures: Unpack[Figures],
) -> Plan:
    """Say what a schedule is, as a plan.

    ``task`` is what its strategy was given, ``within_bytes`` what the lower bound on overhead is for.
    """
    program = judge.program
    before, after = judge.timeline(program.plain), judge.timeline(schedule)
    overhead = judge.overhead(schedule)
    own = program.has_own_remat
    told = [*notes, *unmoved_notes(judge, task, request, schedule)]
    return Plan(
        strategy=request.strategy.name,
        target=judge.device,
        written_overhead=judge.overhead(program.written) if own else None,
        written_flops=judge.timeline(program.written).flops if own else None,
        overhead=overhead,
        lower_bound=min(least_overhead(judge.rules, task.cuts, before, within_bytes), overhead),
        program=program.fingerprint,
        schedule=schedule,
        decisions=decide(program.graph, schedule),
        plain_timeline=reduce_timeline(before),
        planned_timeline=reduce_timeline(after),
        step_flops=after.flops,
        plain_flops=before.flops,
        argnums=request.argnums,
        has_aux=request.has_aux,
        static_argnums=request.static_argnums,
        existing=request.existing,
        notes=tuple(told),
        host_bytes=after.host_bytes,
        planning_seconds=time.perf_counter() - started,
        **figures,
    )


def _choose(
    judge: Judge, candidates: Candidates, budget_bytes: int, request: Request, verify: bool, most: int
) -> Chosen:
    """The schedule for a budget; ``most`` is how often the judge may have compiled in the end."""
    program = judge.program
    peak = judge.compiled_bytes if verify else judge.predicted_bytes
    plain = [program.plain] if candidates.may_stay_plain(request) else []
    written = [program.written] if may_stay_written(program, request) else []
    met = "the budget is met without recomputing anything: "
    fits = bool(plain) and peak(judge.unplanned) <= budget_bytes
    if fits and peak(program.plain) <= budget_bytes:
        fitting = [*plain, *(s for s in written if peak(s) <= budget_bytes)]
        schedule = fastest(fitting, judge.price, program.written)
        own = "the function's own jax.checkpoint regions are removed"
        left = own if program.has_own_remat else "the function is left as it is"
        return Chosen(schedule, [_LEFT_AS_WRITTEN if is_written(schedule) else met + left])
    if fits and not program.has_own_remat:
        return Chosen(program.written, [met + "the function is left as it is"])  # equal equations merged need more
    begun = judge.compiles
    found = find_confirmed(judge, candidates, budget_bytes, request, most - begun if verify else None)
    schedule, compiled = found.schedule, judge.compiles - begun
    notes = [_LEFT_AS_WRITTEN] if is_written(schedule) else []
    if not notes and program.has_own_remat and peak(program.written) <= budget_bytes:
        gain = 1 - judge.timeline(schedule).seconds / judge.timeline(program.written).seconds
        text = f"the function as written is within the budget too; this plan is predicted to be {gain:.1%} faster"
        notes += [text] if gain > 0 else []
    counted = "1 schedule was" if compiled == 1 else f"{compiled} schedules were"
    notes += [f"{counted} compiled (print(plan.search))"] if compiled else []
    notes += slow_notes(judge, candidates, request, schedule)
    peaks = found.peaks if verify else {}
    return Chosen(schedule, [*notes, *source_notes(candidates, request), *effect_notes(program.graph)], peaks)


def _without_budget(judge: Judge, candidates: Candidates, request: Request) -> Chosen:
    """The preferred schedule of a strategy that can do without a budget."""
    named = candidates.named(request)
    assert named is not None, "a strategy that searches by itself needs a budget"
    notes = [*source_notes(candidates, request), *effect_notes(judge.program.graph)]
    return Chosen(min(named.schedules, key=judge.cost), notes)


def _fastest(judge: Judge, candidates: Candidates, request: Request) -> Chosen:
    """The fastest schedule: by the clock where the step can be run, else by the compiler."""
    clock = can_run(judge)
    source = by_clock(judge) if clock else by_compiler(judge)
    told: dict[Schedule, Ratio | None] = {}

    def seconds(schedules: Sequence[Schedule]) -> Sequence[Ratio | None]:
        told.update(zip(schedules, source(schedules), strict=True))
        return [told[s] for s in schedules]

    schedule = find_fastest(judge, candidates, request, seconds)
    known = {s: ratio for s, ratio in told.items() if ratio is not None}
    note = "the compiler does not tell the seconds of a step for this target, so the function is left unchanged"
    if (ratio := known.get(schedule)) is not None:
        whose = "the clock" if clock else "the compiler"
        note = f"the fastest of {len(known)} schedules by {whose}: {ratio.value:.3f} of the plain step's seconds"
        if schedule == next(iter(told)):  # which stays unless another is surely faster
            note = f"none of {len(known) - 1} other schedules by {whose} is clearly faster"
    return Chosen(schedule, [note], {s: judge.compiled_bytes(s) for s in told}, known if clock else {})
