"""What a schedule of one program costs on one target: predicted, traced, compiled.

In: ``Program``, ``Target``, schedules. Out: ``Timeline`` by the evaluator, peak bytes by XLA; each is found once.
"""

from __future__ import annotations

from math import inf
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import Hardware, hardware_for
from remat_plan.cost.memory import Timeline, evaluate
from remat_plan.cost.price import price
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Schedule, Segment, is_written
from remat_plan.program import Program, make_runner, run_plain
from remat_plan.report.progress import Progress
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.step import GradientStep, PullbackStep
from remat_plan.verify.targets import Target

UNMERGED: Schedule = (Segment(-1, -1),)
"""Stands for the plain function as JAX has it, with the equations that are merged for planning."""

AGREEMENT = 0.005
"""The share by which seconds of the function as written, which JAX traces, may differ from those of a schedule put
together here and count as equal."""


def is_mapped(graph: Graph) -> bool:
    """Tell whether a program only has a meaning inside a map over named axes (collectives, varying values)."""
    return any(_compat.named_axes(op.eqn) for op in graph.ops) or any(_compat.varies(v.aval) for v in graph.values)


class Scores:
    """Judges the schedules of one program; keeps what was traced and compiled on the way."""

    def __init__(self, program: Program, target: Target, progress: Progress):
        self.program, self.target, self.progress = program, target, progress
        self.device = target.platform if target.name == "default" else target.name
        self.hardware: Hardware = hardware_for(target.name, target.platform, getattr(target.device, "device_kind", ""))
        self.fast = target.platform == "tpu" and not target.attached
        self.rules = Rules(program.graph, self.hardware)
        self._timelines: dict[Schedule, Timeline] = {}
        self._traced: dict[Schedule, Timeline] = {}
        self._compiled: dict[tuple[Schedule, bool], int] = {}
        self.judged: set[Schedule] = set()  # by the compiler, for one plan
        self.speakers: dict[tuple[int, float], Schedule] = {}  # predicted peak and seconds: see ``judge``
        self.least_off = inf  # the least compiled peak over its prediction, in the searches for one plan
        constants = [c for _, c in program.graph.constants]
        self.kind = GradientStep if program.is_loss else PullbackStep
        self.promoted = any(map(_compat.is_tracer, constants))
        self.extra = [_compat.struct(jax.typeof(c)) for c in constants] if self.promoted else []
        self.mapped = is_mapped(program.graph)

    def step(self, schedule: Schedule) -> GradientStep | PullbackStep:
        """The gradient step under a schedule; tracers that the function closed over become arguments."""
        if schedule == UNMERGED:
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
        if is_written(schedule):
            return self.traced(schedule)
        if schedule not in self._timelines:
            step = StepProgram(self.rules)
            made = step.loss_timeline(schedule) if self.program.is_loss else step.pullback_timeline(schedule)
            self._timelines[schedule] = made
        return self._timelines[schedule]

    def traced(self, schedule: Schedule) -> Timeline:
        """The evaluator's view of the gradient step that JAX makes of a schedule."""
        if schedule not in self._traced:
            self.progress.say("tracing the schedule")
            jaxpr = jax.make_jaxpr(self.step(schedule))(*self.structs)
            self._traced[schedule] = evaluate(jaxpr, self.hardware)
        return self._traced[schedule]

    def compiled_bytes(self, schedule: Schedule, fast: bool = False) -> int:
        """XLA's peak for a schedule on the target; ``fast`` with little optimisation (TPU only: much quicker)."""
        key = schedule, fast
        self.judged.add(schedule)
        if key not in self._compiled:
            self.progress.say(f"compiling for {self.device} ({len(self._compiled) + 1})")
            memory = compile_memory(self.step(schedule), self.structs, self.target, fast=fast)
            self._compiled[key] = memory.total_bytes
        return self._compiled[key]

    def judge(self, schedule: Schedule, budget_bytes: int) -> tuple[Schedule, int]:
        """Compile a schedule in a search, or have another one speak for it, and return the one compiled and its peak.

        Schedules with equal predicted peaks and seconds, to the byte, mostly are one program (what they save
        differently nothing reads), so the first that was compiled is taken for the others. Where it needs more than
        the budget although it was predicted to fit, it speaks for itself alone.
        """
        speaker = self.introduce(schedule)
        peak, made = self.compiled_bytes(speaker, self.fast), self.timeline(schedule)
        self.least_off = min(self.least_off, peak / max(made.peak_bytes, 1))
        if speaker != schedule and made.peak_bytes <= budget_bytes < peak:
            return schedule, self.compiled_bytes(schedule, self.fast)
        return speaker, peak

    def introduce(self, schedule: Schedule) -> Schedule:
        """Return the schedule that speaks for this one from now on: itself, if it is the first of its kind."""
        made = self.timeline(schedule)
        return self.speakers.setdefault((made.peak_bytes, made.seconds), schedule)

    def peak(self, schedule: Schedule, verify: bool) -> int:
        """The peak that counts: compiled, or predicted without verification."""
        return self.compiled_bytes(schedule) if verify else self.timeline(schedule).peak_bytes

    def baseline_bytes(self, verify: bool) -> int:
        """The peak of the function as written, with the user's own ``jax.checkpoint`` regions."""
        if not self.program.has_own_remat:
            return self.plain_bytes(verify)
        return self.peak(self.program.written, verify)

    def plain_bytes(self, verify: bool) -> int:
        """The peak without recomputation: where equations were merged for planning, the compiled one is of all."""
        if not verify or self.promoted or not self.program.graph.merged:
            return self.peak(self.program.plain, verify)
        return self.compiled_bytes(UNMERGED)

    def price(self, schedule: Schedule) -> float:
        """What schedules are chosen by; see ``cost.price``."""
        plain, made = self.timeline(self.program.plain), self.timeline(schedule)
        return price(made.seconds, made.flops, plain.seconds, plain.flops)

    def overhead(self, schedule: Schedule) -> float:
        """Recomputed seconds over plain seconds, by the evaluator."""
        plain = self.timeline(self.program.plain).seconds
        return max(self.timeline(schedule).seconds / plain - 1.0, 0.0) if plain else 0.0
