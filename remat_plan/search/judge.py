"""What a schedule of one program costs on one target: predicted, traced, compiled.

In: ``Program``, ``Target``, schedules. Out: ``Timeline`` by the evaluator, peak bytes and seconds by XLA; each is found
once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from remat_plan import _compat
from remat_plan.clock.store import hardware_of
from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import Timeline, evaluate
from remat_plan.cost.platforms import backend_for
from remat_plan.cost.price import price
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.action import registered_actions
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Schedule, as_is, is_written
from remat_plan.graph.structure import registered_structures
from remat_plan.search.known import KnownProgram
from remat_plan.small.progress import Progress
from remat_plan.small.recent import Recent, key_of
from remat_plan.small.remembered import remembered
from remat_plan.traced.programs import Program, make_runner, run_plain
from remat_plan.verify.compile import CompiledMemory, compile_memory
from remat_plan.verify.step import GradientStep, PullbackStep
from remat_plan.verify.targets import Target

_LOG = logging.getLogger("remat_plan")

_MOST_TIMELINES = 1024
"""Of so many schedules of a program timelines are remembered, more than a local search judges."""


class Figures(NamedTuple):
    """What schedules are compared by: of a ``Timeline`` the peak, bytes on the host, FLOPs and seconds."""

    peak_bytes: int
    host_bytes: int
    flops: float
    seconds: float


def is_mapped(graph: Graph) -> bool:
    """Tell whether a program only has a meaning inside a map over named axes (collectives, varying values)."""
    return any(_compat.named_axes(op.eqn) for op in graph.ops) or any(_compat.varies(v.aval) for v in graph.values)


def is_spread(structs: Sequence[Any]) -> bool:
    """Tell whether arguments lie on several devices along axes that are no part of their types (automatic ones)."""
    shardings = [getattr(x, "sharding", None) for x in structs]
    automatic = [s for s in shardings if s is not None and not _compat.has_explicit_axes(s)]
    return any(s.num_devices > 1 for s in automatic)


def may_be_spread(leaves: Sequence[Any], target: Target) -> bool:
    """Tell whether traced arguments may lie on several devices along automatic axes, which a trace does not show."""
    unseen = [x for x in leaves if _compat.is_tracer(x) and _compat.concrete(x) is None]
    typed = any(_compat.has_explicit_axes(getattr(jax.typeof(x), "sharding", None)) for x in unseen)
    return bool(unseen) and not typed and (len(target.devices) > 1 or _compat.under_automatic_axes())


class Judge:
    """Judges the schedules of one program; keeps what was traced and compiled on the way.

    Args:
        program: what is judged.
        target: the device.
        progress: told what is going on.
        cost: whose seconds: ``"table"`` or ``"measured"`` (see ``clock.store``).
        spread: whether its arguments lie on several devices, though it does not show in them.
        host_bytes: so much may be kept on the host; None for any number.

    Attributes:
        asked: what the compiler was asked for, known or not.
        compile_seconds: how long each of them took when it was compiled.
        compiles: how often something was compiled.
        known: what was compiled in this process of programs that are told to be the same.
        unplanned: the function without recomputation, as JAX has it: the plain schedule of all of its equations, those
            that planning merges with others too. For the evaluator it is the plain one.
    """

    def __init__(
        self,
        program: Program,
        target: Target,
        progress: Progress,
        cost: str = "table",
        spread: bool = False,
        host_bytes: float | None = None,
    ):
        self.program, self.target, self.progress = program, target, progress
        self.host_bytes = math.inf if host_bytes is None else host_bytes
        self.device = target.platform if target.name == "default" else target.name
        self.hardware: Hardware = hardware_of(target, cost, progress.say)
        spread |= is_spread(program.call.structs) or may_be_spread(program.call.leaves, target)
        self.rules = Rules(program.graph, self.hardware, spread=spread, identity=(*self.identity, spread))
        lines = tuple([_compat.source_line(op.eqn) for op in program.graph.ops])  # of which timelines tell
        known: Recent[Schedule, Timeline] = Recent(_MOST_TIMELINES)
        self._timelines = remembered(self.rules.identity, ("timelines", lines), lambda: known)
        self._traced: dict[Schedule, Timeline] = {}
        self._figures: dict[Schedule, Figures] = {}
        self._compiled: dict[Schedule, CompiledMemory] = {}
        self.compiles = 0
        self._plain_seconds: float | None = None
        self.asked: list[Schedule] = []
        self.compile_seconds: dict[Schedule, float] = {}
        constants = [c for _, c in program.graph.constants]
        self.kind = GradientStep if program.is_loss else PullbackStep
        self.promoted = any(map(_compat.is_tracer, constants))
        self.extra = [_compat.struct(jax.typeof(c)) for c in constants] if self.promoted else []
        merged = 0 if self.promoted else program.graph.merged
        self.unplanned: Schedule = (as_is(0, len(program.graph.ops) + merged),)
        self.mapped = is_mapped(program.graph)
        self.known = KnownProgram((self.identity, self.kind, self.structs, target.name, target.platform))

    def step(self, schedule: Schedule) -> GradientStep | PullbackStep:
        """The gradient step under a schedule; tracers that the function closed over become arguments."""
        if self._is_unmerged(schedule):
            return self.kind(lambda *values: run_plain(self.program, values), self.program.call.differentiated)
        run = make_runner(self.program, schedule)
        n = len(self.program.call.leaves)
        if not self.promoted:
            return self.kind(lambda *values: run(values), self.program.call.differentiated)
        moving = (*self.program.call.differentiated, *(False for _ in self.extra))
        return self.kind(lambda *values: run(values[:n], values[n:]), moving)

    @property
    def structs(self) -> tuple[Any, ...]:
        """Shapes of the step's arguments."""
        return (*self.program.call.structs, *self.extra, *self.program.cotangents)

    def timeline(self, schedule: Schedule) -> Timeline:
        """The evaluator's view of a schedule: of the program that JAX would make of it, put together here.

        Of the function as written it is of JAX's own, since only JAX knows what its policies keep.
        """
        if (known := self._timelines.get(schedule)) is not None:
            return known
        if is_written(schedule):
            return self.traced(schedule)
        if self._is_unmerged(schedule):
            return self.timeline(self.program.plain)
        step = StepProgram(self.rules)
        made = step.loss_timeline(schedule) if self.program.is_loss else step.pullback_timeline(schedule)
        self._timelines.keep(schedule, made)
        return made

    def traced(self, schedule: Schedule) -> Timeline:
        """The evaluator's view of the gradient step that JAX makes of a schedule."""
        if schedule not in self._traced:
            self.progress.say("tracing the schedule")
            jaxpr = jax.make_jaxpr(self.step(schedule))(*self.structs)
            self._traced[schedule] = evaluate(jaxpr, self.hardware)
        return self._traced[schedule]

    def figures(self, schedule: Schedule) -> Figures:
        """The figures of a schedule: of each that was judged, since a search compares all of them again and again."""
        if schedule not in self._figures:
            made = self.timeline(schedule)
            self._figures[schedule] = Figures(made.peak_bytes, made.host_bytes, made.flops, made.seconds)
        return self._figures[schedule]

    def predicted_bytes(self, schedule: Schedule) -> int:
        """The evaluator's peak for a schedule."""
        return self.figures(schedule).peak_bytes

    def fits(self, schedule: Schedule, budget_bytes: int) -> bool:
        """Whether a schedule is predicted to stay within a budget, and within what the host has for it."""
        return self.predicted_bytes(schedule) <= budget_bytes and self.fits_host(schedule)

    def fits_host(self, schedule: Schedule) -> bool:
        """Whether a schedule keeps no more on the host than it may."""
        return self.figures(schedule).host_bytes <= self.host_bytes

    def compiled_bytes(self, schedule: Schedule) -> int:
        """XLA's peak for a schedule on the target."""
        return self.compiled(schedule).total_bytes

    def compiled(self, schedule: Schedule) -> CompiledMemory:
        """What XLA says of a schedule on the target."""
        self.asked.append(schedule)
        return self._compile(schedule)

    def compiled_peaks(self, schedules: Iterable[Schedule]) -> dict[Schedule, int]:
        """XLA's peaks of those schedules that were compiled here."""
        return {s: self._compiled[s].total_bytes for s in schedules if s in self._compiled}

    def compiled_seconds(self, schedule: Schedule) -> float | None:
        """Seconds of a schedule's step by the module that XLA makes of it; None where that does not tell.

        Whichever of this and ``compiled_bytes`` asks second finds it compiled.
        """
        return self.compiled(schedule).seconds

    def compiled_overhead(self, schedule: Schedule) -> float | None:
        """Seconds of a schedule's step over those of the plain one, less one, both as compiled.

        Negative where recomputing is faster. None where a module does not tell (of a loop of unknown length, say), or
        the plain step is one that the compiler refuses (a TPU's memory). A plan that is verified has compiled both
        already.
        """
        plain = self._compile(self.unplanned).seconds  # what others are set against, not what is asked for
        planned = self.compiled_seconds(schedule) if plain else None
        return planned / plain - 1.0 if plain and planned is not None else None

    def _compile(self, schedule: Schedule) -> CompiledMemory:
        if schedule not in self._compiled:
            self.progress.say(f"compiling for {self.device} ({len(self._compiled) + 1})")
            started = time.perf_counter()
            step = self.step(schedule)
            if _compat.has_checks(self.program.jaxpr):  # whoever runs the step has checkify around it
                step = _compat.reporting_checks(step)
            made = self._compiled[schedule] = compile_memory(step, self.structs, self.target, hardware=self.hardware)
            self.compiles += 1
            if not (is_written(schedule) or self._is_unmerged(schedule)):  # which identity does not tell
                self.known.add(schedule, made)
            self.compile_seconds[schedule] = time.perf_counter() - started
            told = self.device, self.compile_seconds[schedule], made.total_bytes
            _LOG.debug("compiled a schedule for %s in %.2f s: %d bytes", *told)
        return self._compiled[schedule]

    def _is_unmerged(self, schedule: Schedule) -> bool:
        """Whether a schedule is of equations that planning merges too, so that it is none of the graph."""
        return schedule == self.unplanned != self.program.plain

    @property
    def baseline(self) -> Schedule:
        """The function as its author wrote it, with ``jax.checkpoint`` regions of its own or without."""
        return self.program.written if self.program.has_own_remat else self.unplanned

    @property
    def owned_bytes(self) -> int:
        """Bytes of arguments and results, which are in every peak."""
        plain = self.timeline(self.program.plain)
        return plain.argument_bytes + plain.output_bytes

    def price(self, schedule: Schedule) -> float:
        """What schedules are chosen by; see ``cost.price``."""
        plain, made = self.figures(self.program.plain), self.figures(schedule)
        return price(made.seconds, made.flops, plain.seconds, plain.flops)

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Equal for programs whose schedules cost the same: one program, differentiated alike, on one hardware, what
        its values may be kept by and its equations may be run by the same."""
        program, graph = self.program, self.program.graph
        reads = tuple([(n.given, n.reached, n.operands, n.outputs, n.direct, n.internal_bytes) for n in graph.needs])
        known = key_of(registered_actions()), key_of(registered_structures())
        return program.fingerprint.digest, program.is_loss, reads, self.hardware, backend_for(self.hardware), *known

    def cost(self, schedule: Schedule) -> tuple[int, float]:
        """The predicted peak and the price of a schedule."""
        return self.predicted_bytes(schedule), self.price(schedule)

    @property
    def plain_seconds(self) -> float:
        """Seconds of the function without recomputation, by the evaluator: what overhead is set against.

        With measured rates, of the function as it is. Equations that planning merges are two there, and so are their
        cotangents; XLA:CPU adds each of them up again in every copy that reads the sum, which takes 6 per cent of a
        ViT. Both programs are traced to find the share: a loop that is composed is not exactly the one that is traced.
        With data sheets equal equations are merged, as the lower bound has them.
        """
        if self._plain_seconds is None:
            seconds = self.figures(self.program.plain).seconds
            self._plain_seconds = seconds * self.unmerged_share(self.hardware) if self.hardware.measured else seconds
        return self._plain_seconds

    def unmerged_share(self, hardware: Hardware) -> float:
        """Seconds of the function as it is over those with equal equations merged, both traced."""
        if self.unplanned == self.program.plain:
            return 1.0
        jaxprs = [jax.make_jaxpr(self.step(s))(*self.structs) for s in (self.unplanned, self.program.plain)]
        as_it_is, merged = (evaluate(jaxpr, hardware).seconds for jaxpr in jaxprs)
        return as_it_is / merged if merged else 1.0

    def overhead(self, schedule: Schedule) -> float:
        """Seconds beyond the plain ones, over those, by the evaluator; below 0 where recomputing is faster.

        Choices are made by ``price``, which does not count upon such gains everywhere.
        """
        plain = self.plain_seconds
        if not plain or schedule == self.unplanned:
            return 0.0
        return self.figures(schedule).seconds / plain - 1.0
