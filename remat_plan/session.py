"""Planning one program: predict, compile, correct.

In: ``Program``, target, budget. Out: ``Plan``, or ``BudgetError``.

The evaluator's and the compiler's figures of every schedule come from here, so each schedule is traced and
compiled at most once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax

from remat_plan import _compat, collector
from remat_plan.cost.hardware import Hardware, hardware_for
from remat_plan.cost.memory import Timeline, evaluate
from remat_plan.graph.records import Graph
from remat_plan.plan import Plan
from remat_plan.planning.builder import Rules
from remat_plan.planning.certificate import certificate_problem, lower_bound_seconds
from remat_plan.planning.cuts import free_ops
from remat_plan.planning.planner import Curve, Planner
from remat_plan.planning.runs import op_seconds
from remat_plan.planning.whole_step import StepProgram
from remat_plan.program import Program, make_emitter
from remat_plan.report.decisions import decide, line_text
from remat_plan.report.progress import Progress
from remat_plan.report.trace import reduce_timeline
from remat_plan.rewrite.segments import Segment
from remat_plan.units import Budget, BudgetError, format_bytes
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.search import MAX_MEASURES, Found, search
from remat_plan.verify.step import GradientStep
from remat_plan.verify.targets import Target

Schedule = tuple[Segment, ...]

_CONFIRMATIONS = 4
"""How often a plan found with fast compiles may turn out too large."""

_LONG_OPS = 4000
_FEW_MEASURES = 4
"""Programs longer than this are predicted at fewer points: tracing one takes longer than solving."""

_AGREEMENT = 0.005
"""The share by which two evaluations of a schedule may differ and count as equal."""

_AROUND = (0, 1, 2, 4, 8, 12)
"""How far above a found point schedules are tried that may fit although they were planned for more."""


def is_mapped(graph: Graph) -> bool:
    """Tell whether a program only has a meaning inside a map over named axes (collectives, varying values)."""
    return any(_compat.named_axes(op.eqn) for op in graph.ops) or any(_compat.varies(v.aval) for v in graph.values)


@dataclass(frozen=True, slots=True)
class Request:
    """What a plan was asked for, beside the budget and the device; arguments of ``api.plan``."""

    strategy: str
    verify: bool
    argnums: tuple[int, ...]
    has_aux: bool
    static_argnums: tuple[int, ...]
    existing: str


class Session:
    """Plans one program for one target; keeps what was traced and compiled on the way."""

    def __init__(self, program: Program, target: Target, progress: Progress):
        self.program, self.target, self.progress = program, target, progress
        self.device = target.platform if target.name == "default" else target.name
        self.hardware: Hardware = hardware_for(target.name, target.platform, getattr(target.device, "device_kind", ""))
        self.fast = target.platform == "tpu" and not target.attached
        self.rules = Rules(program.graph, self.hardware)
        self.free = free_ops(program.graph)
        self._planner: Planner | None = None
        self._timelines: dict[Schedule, Timeline] = {}
        self._traced: dict[Schedule, Timeline] = {}
        self.tracing = False
        self._compiled: dict[tuple[Schedule, bool], int] = {}
        constants = [c for _, c in program.graph.constants]
        self.promoted = any(map(_compat.is_tracer, constants))
        self.extra = [_compat.struct(jax.typeof(c)) for c in constants] if self.promoted else []
        self.mapped = is_mapped(program.graph)

    @property
    def planner(self) -> Planner:
        """The solved chain (solved on first use)."""
        if self._planner is None:
            self.progress.say("solving")
            self._planner = Planner(self.program.graph, self.rules)
        return self._planner

    def step(self, schedule: Schedule) -> GradientStep:
        """The gradient step under a schedule; tracers that the function closed over become arguments."""
        emitter = make_emitter(self.program.graph, schedule)
        n = len(self.program.call.leaves)
        if not self.promoted:
            return GradientStep(lambda *values: emitter(values), self.program.call.differentiated)
        moving = (*self.program.call.differentiated, *(False for _ in self.extra))
        return GradientStep(lambda *values: emitter(values[:n], values[n:]), moving)

    @property
    def structs(self) -> tuple[Any, ...]:
        """Shapes of the step's arguments."""
        return (*self.program.call.structs, *self.extra)

    def timeline(self, schedule: Schedule) -> Timeline:
        """The evaluator's view of a schedule: of the program that JAX would make of it, put together here.

        With ``tracing`` it is of JAX's own, which takes several times as long.
        """
        if self.tracing:
            return self.traced(schedule)
        if schedule not in self._timelines:
            self._timelines[schedule] = StepProgram(self.rules, self.free).timeline(schedule)
        return self._timelines[schedule]

    def traced(self, schedule: Schedule) -> Timeline:
        """The evaluator's view of the gradient step that JAX makes of a schedule."""
        if schedule not in self._traced:
            self.progress.say("tracing the schedule")
            jaxpr = jax.make_jaxpr(self.step(schedule))(*self.structs)
            self._traced[schedule] = evaluate(jaxpr, self.hardware)
        return self._traced[schedule]

    def agrees(self, schedule: Schedule) -> bool:
        """Tell whether what was put together for a schedule is what JAX makes of it."""
        made, traced = self.timeline(schedule), self.traced(schedule)
        pairs = ((made.peak_bytes, traced.peak_bytes), (made.seconds, traced.seconds), (made.flops, traced.flops))
        return all(abs(a - b) <= _AGREEMENT * b for a, b in pairs)

    def compiled_bytes(self, schedule: Schedule, fast: bool = False) -> int:
        """XLA's peak for a schedule on the target; ``fast`` with little optimisation (TPU only: much quicker)."""
        key = schedule, fast
        if key not in self._compiled:
            self.progress.say(f"compiling for {self.device} ({len(self._compiled) + 1})")
            memory = compile_memory(self.step(schedule), self.structs, self.target, fast=fast)
            self._compiled[key] = memory.total_bytes
        return self._compiled[key]

    def peak(self, schedule: Schedule, verify: bool) -> int:
        """The peak that counts: compiled, or predicted without verification."""
        return self.compiled_bytes(schedule) if verify else self.timeline(schedule).peak_bytes

    def overhead(self, schedule: Schedule) -> float:
        """Recomputed seconds over plain seconds, by the evaluator."""
        plain = self.timeline(self.program.plain).seconds
        return max(self.timeline(schedule).seconds / plain - 1.0, 0.0) if plain else 0.0

    def find(self, budget_bytes: int, verify: bool) -> tuple[Schedule, int]:
        """Find the schedule with the least recomputation whose peak is within the budget.

        The evaluator chooses among the planner's curves and where on them to begin; with ``verify`` the compiler
        then corrects.

        Returns:
            The schedule, and how many were compiled for it.

        Raises:
            BudgetError: nothing fits.
        """
        if not self.program.graph.ops:
            raise self.nothing_to_do(budget_bytes, verify)
        plain = self.timeline(self.program.plain)
        owned = plain.argument_bytes + plain.output_bytes
        ranked = []
        for number, curve in enumerate(self.planner.curves):
            predicted = self.search(curve, owned, budget_bytes, False, None)
            point = predicted.point if not verify else self.look_around(curve, predicted, budget_bytes)
            seconds = float("inf") if point is None else self.timeline(curve.schedule(point)).seconds
            ranked.append((seconds, number, point, predicted))
        ranked.sort(key=lambda row: row[:2])
        if not verify:
            _, number, point, _ = ranked[0]
            if point is None:
                raise self.over_budget(budget_bytes, [(self.planner.curves[n], f) for _, n, _, f in ranked], verify)
            return self.planner.curves[number].schedule(point), 0
        tried = []
        uniform = self.best_baseline(budget_bytes, ranked[0][0])
        if uniform is not None and self.compiled_bytes(uniform, self.fast) <= budget_bytes:
            return uniform, 1
        for _, number, start, _ in ranked:
            curve = self.planner.curves[number]
            found = self.search(curve, owned, budget_bytes, True, start)
            tried.append((curve, found))
            if found.point is not None:
                chosen, count = curve.schedule(found.point), sum(len(f.measured) for _, f in tried)
                other = self.best_baseline(budget_bytes, self.timeline(chosen).seconds)
                if other is not None and self.compiled_bytes(other, self.fast) <= budget_bytes:
                    chosen, count = other, count + 1
                return chosen, count
        raise self.over_budget(budget_bytes, tried, verify)

    def find_confirmed(self, budget_bytes: int, verify: bool) -> tuple[Schedule, int]:
        """``find``, with the compiler's default options having the last word where the search compiles fast.

        Raises:
            BudgetError: nothing fits.
        """
        goal, count = budget_bytes, 0
        schedule = self.program.plain
        for _ in range(_CONFIRMATIONS):
            schedule, compiled = self.find(goal, verify)
            count += compiled
            if not verify or self.compiled_bytes(schedule) <= budget_bytes:
                return schedule, count
            goal = int(goal * budget_bytes / self.compiled_bytes(schedule) * 0.99)
        raise self.budget_error(schedule, self.compiled_bytes(schedule), budget_bytes, verify)

    def look_around(self, curve: Curve, found: Found, budget_bytes: int) -> int | None:
        """Of the schedules around a found point, the fastest that fits: peaks do not follow limits exactly."""
        if found.point is None:
            return None
        last = len(curve.limits) - 1
        reach = sorted({min(found.point + step, last) for step in _AROUND})
        fitting = [p for p in reach if self.timeline(curve.schedule(p)).peak_bytes <= budget_bytes]
        return min(fitting, key=lambda p: (self.timeline(curve.schedule(p)).seconds, p), default=found.point)

    def best_baseline(self, budget_bytes: int, seconds: float) -> Schedule | None:
        """The uniform schedule that fits and takes less than ``seconds``, by the evaluator."""
        best = None
        for schedule in self.planner.baselines():
            timeline = self.timeline(schedule)
            if timeline.peak_bytes <= budget_bytes and timeline.seconds < seconds:
                best, seconds = schedule, timeline.seconds
        return best

    def search(self, curve: Curve, owned: int, budget_bytes: int, verify: bool, start: int | None) -> Found:
        """Search one curve for the point whose peak is close to the budget and within it."""

        def measure(point: int) -> int:
            schedule = curve.schedule(point)
            return self.compiled_bytes(schedule, self.fast) if verify else self.timeline(schedule).peak_bytes

        long = len(self.program.graph.ops) > _LONG_OPS and not verify
        most = _FEW_MEASURES if long else MAX_MEASURES
        return search(curve.limits, owned, budget_bytes, measure, start, most)

    def over_budget(self, budget_bytes: int, tried: list[tuple[Curve, Found]], verify: bool) -> BudgetError:
        """The error of a budget below the least peak that was reached."""
        curve, found = min(tried, key=lambda row: row[1].least[1])
        point, least = found.least
        schedule = curve.schedule(point)
        if verify and self.fast:
            least = max(least, self.compiled_bytes(schedule))
        if (plain := self.peak(self.program.plain, verify)) < least:
            least, schedule = plain, self.program.plain
        return self.budget_error(schedule, least, budget_bytes, verify)

    def budget_error(self, schedule: Schedule, least: int, budget_bytes: int, verify: bool) -> BudgetError:
        """The error that names ``least``, the peak of ``schedule``, as what can be had."""
        timeline = self.traced(schedule)  # its equations have the user's source lines
        eqn = timeline.equations[timeline.peak_step]
        where = f"{eqn.primitive.name} {line_text(eqn)}".strip()
        largest = self.largest_values()
        word = "compiled" if verify else "predicted"
        owned = timeline.argument_bytes + timeline.output_bytes
        message = (
            f"budget {format_bytes(budget_bytes)} ({budget_bytes} bytes) is below the least {word} peak reached, "
            f"{format_bytes(least)} ({least} bytes) for {self.device}. Arguments and gradients alone take "
            f"{format_bytes(owned)}. At that minimum the peak is at {where}; the largest values of the program are "
            f"{'; '.join(largest)}. Try budget={least}, a smaller batch, a lower precision, or donate and shard the "
            "arguments."
        )
        return BudgetError(message, minimum_bytes=least, budget_bytes=budget_bytes, where=where, largest=largest)

    def nothing_to_do(self, budget_bytes: int, verify: bool) -> BudgetError:
        """The error of a budget for a program without equations."""
        least = self.peak(self.program.plain, verify)
        message = (
            f"budget {format_bytes(budget_bytes)} ({budget_bytes} bytes) cannot be met: the function computes nothing "
            f"that could be recomputed; its arguments and gradients alone take {least} bytes."
        )
        return BudgetError(
            message, minimum_bytes=least, budget_bytes=budget_bytes, where="", largest=self.largest_values()
        )

    def largest_values(self) -> tuple[str, ...]:
        """Texts of the three largest values of the program."""
        from remat_plan.report.decisions import value_text

        graph = self.program.graph
        order = sorted(graph.values, key=lambda v: (-v.size_bytes, v.index))[:3]
        return tuple(f"{value_text(graph, v.index)} ({format_bytes(v.size_bytes)})" for v in order)

    def lower_bound(self, budget_bytes: int) -> float:
        """Certified lower bound on overhead for a budget."""
        plain = self.timeline(self.program.plain)
        if plain.seconds <= 0 or plain.peak_bytes <= budget_bytes:
            return 0.0
        graph = self.program.graph
        problem = certificate_problem(graph, self.planner.cuts, op_seconds(graph, self.hardware))
        # Gradients that are not written yet lend their memory, so only the arguments are surely there.
        spare = budget_bytes - plain.argument_bytes
        return lower_bound_seconds(problem, spare) / plain.seconds

    @collector.paused()
    def make_plan(self, budget: Budget, request: Request, started: float) -> Plan:
        """Plan for a budget; see ``api.plan``. ``started`` is when planning began (``time.perf_counter``)."""
        verify = request.verify
        identity = self.program.plain
        notes: list[str] = []
        if verify and self.mapped:
            verify = False
            notes.append(
                "not verified: inside a map over named axes (shard_map, pmap, vmap) the function cannot be compiled "
                "by itself, so peaks are predictions"
            )
        self.progress.say("measuring the plain step")
        baseline = self.peak(identity, verify)
        budget_bytes = budget.resolve(baseline, self.target.device_memory_bytes)
        if baseline <= budget_bytes:
            schedule: Schedule = identity
            notes.append("the budget is met without recomputing anything: the function is left as it is")
        else:
            schedule, compiled = self.find_confirmed(budget_bytes, verify)
            if verify:
                notes.append(f"{compiled} schedules were compiled")
        if not self.tracing and not self.agrees(schedule):
            self.tracing = True
            return self.make_plan(budget, request, started)
        before, after = self.timeline(identity), self.traced(schedule)
        overhead = self.overhead(schedule)
        return Plan(
            strategy=request.strategy,
            target=self.device,
            budget=budget.text,
            budget_bytes=budget_bytes,
            baseline_peak_bytes=baseline,
            predicted_peak_bytes=after.peak_bytes,
            compiled_peak_bytes=self.compiled_bytes(schedule) if verify else None,
            overhead=overhead,
            lower_bound=min(self.lower_bound(budget_bytes), overhead),
            program=self.program.fingerprint,
            schedule=schedule,
            decisions=decide(self.program.graph, schedule),
            before=reduce_timeline(before),
            after=reduce_timeline(after),
            step_flops=after.flops,
            plain_flops=before.flops,
            argnums=request.argnums,
            has_aux=request.has_aux,
            static_argnums=request.static_argnums,
            existing=request.existing,
            notes=tuple(notes),
            planning_seconds=time.perf_counter() - started,
        )
