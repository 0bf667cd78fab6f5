"""One training step on arguments of some shapes, fitted: what was searched, with plans and a report.

In: a ``TrainingStep``, a budget, a target. Out: ``Found``, or ``BudgetError``. Only wiring.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from remat_plan.clock.steps import attached, check_arrays
from remat_plan.clock.turns import Run
from remat_plan.graph.schedule import WRITTEN, Schedule, is_written
from remat_plan.graph.structure import holds_structure
from remat_plan.planning.strategies.records import NO_SETTINGS
from remat_plan.planning.strategies.registry import lookup
from remat_plan.plans.one_program import describe
from remat_plan.results.measurement import Measurement, measure_runs
from remat_plan.results.places import effect_notes
from remat_plan.results.plan import Plan
from remat_plan.results.shortfall import below_minimum, own_budget
from remat_plan.results.steps import StepBytes, StepReport
from remat_plan.search.candidates import Candidates
from remat_plan.search.driver import Fitted
from remat_plan.search.judge import Judge
from remat_plan.search.mark import Mark, flops, held_bytes, level_bytes, overhead
from remat_plan.search.opaque import check_opaque, find_opaque
from remat_plan.small import garbage
from remat_plan.small.budget import Budget, BudgetError, format_bytes
from remat_plan.small.doors import integer
from remat_plan.small.progress import Progress
from remat_plan.small.wording import name_of
from remat_plan.traced.modules import Functional, by_position, holds_modules
from remat_plan.training.calls import StepCall
from remat_plan.training.on_host import Searched, hosted_bytes, search_with_state
from remat_plan.training.schedules import Measuring, search_step
from remat_plan.training.settings import Settings, in_position, parameter_names
from remat_plan.training.sites import Trial, find_sites
from remat_plan.training.step import TrainingStep
from remat_plan.training.trace import Arguments, donates_inside, largest_outside, no_mark, sort_arguments
from remat_plan.verify.compile import CompiledMemory
from remat_plan.verify.place import DEVICE, HOST, laid_out
from remat_plan.verify.targets import Target

_LOG = logging.getLogger("remat_plan")

_WORTH_SLICES = 0.1
"""Above this overhead gradient accumulation is told of, where it would need none."""

_MOST_SLICES = 16
"""Into more slices than that no batch is advised to be cut: small matrix products are slow."""

_SAME_PEAK = 0.02
"""Peaks that differ by no more than this share are at the same place: which small equation of a mark runs beside what
is large outside of it is the compiler's choice."""

_LARGER_MARKS = "marking the whole loss instead of parts of it (rp.mark(loss_fn)), "
_ADVICE = "gradient accumulation over smaller batches (rp.accumulate), "
_OUTSIDE_ADVICE = "doing that part in slices (jax.lax.map) or in a step of its own, "
_TRACED_ADVICE = (
    "fitting the step outside of jax.jit, with sharded arguments (a trace does not show shardings along automatic "
    "axes, so these bytes are totals of all devices), "
)


@dataclass(frozen=True)
class Found:
    """A fitted step, what runs its marks, and a plan for each mark, that of the largest first.

    Attributes:
        executable: the compiled step (``jax.stages.Compiled``), where the search compiled one that can be run.
    """

    step: TrainingStep
    trial: Trial
    report: StepReport
    plans: tuple[Plan, ...]
    executable: Any = None


def make_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], settings: Settings
) -> tuple[StepCall, Functional | None]:
    """A call of a user's step; with NNX modules among its arguments, one with their state, and the modules."""
    args, kwargs = in_position(fn, args, kwargs)
    count, by_name = len(args), tuple(sorted(kwargs))
    values = (*args, *(kwargs[name] for name in by_name))
    names = (*parameter_names(fn, count), *by_name)
    of_call, placed = settings.of_call(count, by_name), by_position(fn, count, by_name)
    if not holds_modules(values):
        return StepCall.of(placed, values, names, of_call), None
    function = Functional.of(placed, values)
    pure = functools.wraps(fn, updated=())(functools.partial(Functional.pure, function))
    return StepCall.of(pure, function.arguments(values), names, of_call, function.graph), function


def find_marks(step: TrainingStep, target: Target, progress: Progress, cost: str) -> tuple[Measuring, Any]:
    """Find what is marked in a step; return it, the largest program first, and the trace with marks noted."""
    progress.say("tracing the step")
    try:
        sites, trace = find_sites(step.trace)
    except BudgetError as error:
        raise own_budget(error) from None
    if not sites:
        raise no_mark(step.fn, trace)
    pairs = []
    for site in sites:
        constraints = site.request.constraints.with_host_of(step.settings.host, len(sites))
        # inside a map over the devices all is on one
        spread, host_bytes = step.spans_devices and site.around is None, constraints.host_bytes
        judge = Judge(site.program(), target, progress, cost, spread=spread, host_bytes=host_bytes)
        request = replace(site.request, strategy=lookup("auto"), settings=NO_SETTINGS, constraints=constraints)
        pairs.append((Mark(judge, Candidates(judge.rules, progress), request), site))
    pairs.sort(key=lambda pair: -pair[0].above_arguments(pair[0].judge.program.plain))
    marks, sites = zip(*pairs, strict=True)
    return Measuring(step, marks, sites, target, progress), trace


_UNSHARED = 0.05
"""From this share of the step's FLOPs on it is told that more are compiled than are run again."""


@garbage.seldom_in
def fit_step(step: TrainingStep, budget: Budget, target: Target, progress: Progress, cost: str) -> Found:
    """Fit a step; see ``fitting.fit``."""
    measuring, trace = find_marks(step, target, progress, cost)
    opaque = [None if mark.judge.program.has_own_remat else find_opaque(mark.judge) for mark in measuring.marks]
    check_opaque(opaque, budget)
    written = measuring.as_written
    check_opaque(opaque, budget, written.total_bytes)
    budget_bytes = budget.resolve(written.total_bytes, target.device_memory_bytes)
    searched = search_with_state(
        measuring,
        search_step(measuring, budget_bytes),
        budget_bytes,
        lambda step: find_marks(step, target, progress, cost)[0],
    )
    measuring, found = searched.measuring, searched.found
    if not found.fits:
        raise _below(measuring, found, budget_bytes, written.total_bytes)
    report = _report(searched, written, trace, budget, budget_bytes)
    told = report.name, time.perf_counter() - progress.started, report.planned.peak_bytes, budget_bytes, report.compiles
    _LOG.info("fitted step %s in %.1f s: %d bytes of %d, %d compiles", *told)
    pairs = zip(measuring.marks, found.choice, strict=True)
    plans = tuple(_plan(mark, mark.known(schedule), report, progress.started) for mark, schedule in pairs)
    return Found(measuring.step, measuring.trial(found.choice), report, plans, found.memory.executable)


def fit_again(known: Found, step: TrainingStep, call: StepCall, target: Target) -> Found | None:
    """A step under the schedules of another one, compiled once to be run; None where that is over the budget.

    Nor is there one where what is marked in it is not what is marked in the other, or no device to compile it for.
    Inside a trace it is not known where arrays lie that the other step has on several devices: nothing is compiled.
    ``known`` is the same user's step, fitted for arguments that differ in type or place.
    """
    step = replace(step, hosted=known.step.hosted)
    sites, _ = find_sites(step.trace)
    if not target.attached or not known.trial.runs(sites):
        return None
    if call.is_traced and known.step.spans_devices:
        return replace(known, step=step, executable=None)
    memory = step.compile_to_run(known.trial, step.structs if call.is_traced else call.arrays, target)
    if memory.total_bytes > known.report.budget_bytes:
        return None
    return replace(known, step=step, executable=memory.executable)


def measure_step(found: Found, jitted: Any, values: Sequence[Any], rounds: int) -> Measurement:
    """Run the step as written and the fitted step in turns on arrays; see ``fitting.FittedStep.measure``."""
    rounds = integer("rounds", rounds)
    step, report = found.step, found.report
    target = attached(report.target, "this step")
    check_arrays(jax.tree.leaves(values), "step.measure")

    def arguments(memory: str) -> list[Any]:
        donated = step.settings.donate_argnums
        copies = [jax.tree.map(jnp.copy, v) if i in donated else v for i, v in enumerate(values)]
        return step.put(copies, target, memory)

    on_device = replace(step, hosted=frozenset())
    written = on_device.jitted(Trial(found.trial.sites, [WRITTEN] * len(found.trial.sites)))
    runs = Run(written, lambda: arguments(DEVICE)), Run(jitted, lambda: arguments(HOST))
    return measure_runs(f"step {report.name}", runs, target, rounds, report.overhead)


def _report(searched: Searched, written: CompiledMemory, trace: Any, budget: Budget, budget_bytes: int) -> StepReport:
    measuring, found = searched.measuring, searched.found
    marks, step = measuring.marks, measuring.step
    arguments = sort_arguments(trace, laid_out(step.structs, written.argument_shardings))
    notes = [] if searched.note is None else [searched.note]
    if donates_inside(trace) and not step.settings.donate_argnums:
        notes.append("arguments that the step itself donates (jax.jit) are kept: give rp.fit donate_argnums too")
    slices = _slices(written, arguments, budget_bytes)
    if slices and overhead(marks, found.choice) > _WORTH_SLICES:
        notes.append(
            f"gradient accumulation over {slices} slices of the batch, rp.accumulate(..., {slices}), is expected to "
            "fit without recomputing anything, if the loss is a mean over examples"
        )
    notes += _unshared_notes(measuring, found, written)
    if all(map(is_written, found.choice)) and not step.hosted:
        notes.append("the step as written is within the budget and stays unchanged")
    else:
        notes += dict.fromkeys(note for mark in marks for note in effect_notes(mark.judge.program.graph))
    if step.spans_devices:
        notes.append("predicted figures (activations, plans) are totals of all devices; all others are per device")
    return StepReport(
        name=name_of(step.fn),
        target=marks[0].judge.device,
        budget=budget.text,
        budget_bytes=budget_bytes,
        plain=_bytes(written, level_bytes(marks, measuring.plain)),
        planned=_bytes(found.memory, level_bytes(marks, found.choice)),
        **asdict(arguments),
        hosted_bytes=hosted_bytes(step),
        overhead=overhead(marks, found.choice),
        compiled_overhead=_compiled_overhead(written, found.memory),
        marks=len(marks),
        compiles=searched.compiles,
        notes=tuple(notes),
    )


def _unshared_notes(measuring: Measuring, found: Fitted, written: CompiledMemory) -> list[str]:
    """What is to be said where the compiled step computes more than its schedules run again.

    What is computed outside of a mark too, XLA merges with the mark as written; in a segment that saves values, or lies
    in another one, they are others to it. Of loops it counts one step, so nothing is known.
    """
    marks, before, after = measuring.marks, written.flops, found.memory.flops
    if not before or after is None or any(holds_structure(mark.judge.program.graph) for mark in marks):
        return []
    beyond = (after - before - flops(marks, found.choice) + flops(marks, measuring.plain)) / before
    if beyond < _UNSHARED:
        return []
    return [
        f"the compiled step has {beyond:.0%} more FLOPs than its plans say: if it computes something outside of the "
        "marks that is computed in them too (a forward pass for metrics), return that from the marked function "
        "(has_aux=True)"
    ]


def _compiled_overhead(written: CompiledMemory, planned: CompiledMemory) -> float | None:
    """Seconds of the fitted step over those of the step as written, less one; None where a module does not tell."""
    if not written.seconds or planned.seconds is None:
        return None
    return planned.seconds / written.seconds - 1.0


def _slices(written: CompiledMemory, arguments: Arguments, budget_bytes: int) -> int:
    """Into how few slices the batch must be cut for the step to fit as it is; 0 for more than ``_MOST_SLICES``.

    Gradients are there twice then, of a slice and their sum, and the batch once more, in slices.
    """
    held = held_bytes(written) + arguments.batch_bytes
    gradients = arguments.gradient_bytes
    activations = max(written.total_bytes - held_bytes(written) - gradients, 0)
    counts = (2**power for power in range(1, _MOST_SLICES.bit_length()))
    return next((n for n in counts if held + 2 * gradients + activations / n <= budget_bytes), 0)


def _bytes(memory: CompiledMemory, level: int) -> StepBytes:
    return StepBytes(
        peak_bytes=memory.total_bytes,
        argument_bytes=memory.argument_bytes,
        result_bytes=memory.output_bytes - memory.alias_bytes,
        donated_bytes=memory.alias_bytes,
        temporary_bytes=memory.total_bytes - held_bytes(memory),
        activation_bytes=level,
        host_bytes=memory.host_bytes,
        collectives=memory.collectives,
        seconds=memory.seconds,
    )


def _plan(mark: Mark, schedule: Schedule, report: StepReport, started: float) -> Plan:
    """The plan of one mark; its peaks are of the whole step."""
    judge = mark.judge
    held = report.planned.argument_bytes + report.planned.result_bytes
    whole, part = ("peaks and budget", "overhead and FLOPs")
    if report.compiled_overhead is not None:
        whole, part = ("peaks, budget and overhead", "FLOPs")
    return describe(
        judge,
        mark.candidates.task(mark.request),
        mark.request,
        schedule,
        [f"{whole} refer to the whole step {report.name}, {part} to the marked function"],
        started,
        within_bytes=judge.predicted_bytes(schedule),
        budget=report.budget,
        budget_bytes=report.budget_bytes,
        written_peak_bytes=report.plain.peak_bytes,
        plain_peak_bytes=report.plain.peak_bytes,
        predicted_peak_bytes=held + mark.above_arguments(schedule),
        compiled_peak_bytes=report.planned.peak_bytes,
        compiled_overhead=report.compiled_overhead,
    )


def _below(measuring: Measuring, found: Fitted, budget_bytes: int, present: int) -> BudgetError:
    mark = measuring.marks[0]
    graph, timeline = mark.judge.program.graph, mark.judge.timeline(mark.known(found.choice[0]))
    held = f"The step holds {format_bytes(held_bytes(found.memory))} from beginning to end"
    if measuring.step.hosted:
        held += f", beside {format_bytes(hosted_bytes(measuring.step))} of its state in the host's memory"
    where = _outside(measuring, found)
    advice = _ADVICE if where is None else _OUTSIDE_ADVICE
    if not any(mark.is_loss for mark in measuring.marks):
        advice = _LARGER_MARKS + advice
    if measuring.step.is_traced and len(measuring.target.devices) > 1:
        advice = _TRACED_ADVICE + advice
    least = found.memory.total_bytes
    return below_minimum(graph, timeline, least, budget_bytes, present, True, mark.judge.device, advice, held, where)


def _outside(measuring: Measuring, found: Fitted) -> str | None:
    """Where the peak is, in words, if it is outside of the marks, so that none of their schedules changes it."""
    outside = largest_outside(measuring.step, measuring.trial(found.choice), measuring.hardware)
    peaks = measuring.peaks
    is_same = max(peaks) - min(peaks) <= _SAME_PEAK * max(peaks)
    if outside is None or not (is_same or outside[1] >= 1 - _SAME_PEAK):
        return None
    theirs = "all of their schedules have this peak" if is_same else "none of their schedules needs less"
    return f"{outside[0]}, outside of the marks ({theirs})"
