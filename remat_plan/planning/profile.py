"""What a segment does under one choice of saved values, seen by the evaluator.

In: a ``Run``, the values it saves, the VJPs of its equations. Out: bytes needed while its backward pass runs,
and roofline seconds, both from ``cost.memory.evaluate_program`` on the program that ``jax.checkpoint`` will
make: first everything that is recomputed, then the backward equations in reverse order.

No tracing happens here: the backward program is put together from the VJPs that ``graph.needs`` traced once
per class of equations.

Limits: values that the caller owns (arguments, their gradients) count nothing here; they are in every plan.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from remat_plan import _compat
from remat_plan.cost.backend import model_for
from remat_plan.cost.fusion import Kernel, fuse
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import evaluate_program, region_transient_bytes
from remat_plan.cost.program import Lowering, Program, Step
from remat_plan.cost.rules import Kind
from remat_plan.graph.flatten import FlatEqn, live_eqns
from remat_plan.graph.needs import Need
from remat_plan.graph.records import Graph, Op
from remat_plan.planning.runs import Run

_NO_EQN = SimpleNamespace(effects=(), primitive=SimpleNamespace(name="hold"), outvars=(), params={})


class Backward:
    """The backward equations of one class of operations, ready to be lowered many times."""

    def __init__(self, need: Need, n_operands: int, n_outputs: int):
        flat = need.vjp
        assert flat is not None
        self.flat = flat
        self.primal_inputs = flat.inputs[:n_operands]
        self.cotangents = flat.inputs[n_operands:]
        self.primal_outputs = flat.outputs[:n_outputs]
        self.gradients = flat.outputs[n_outputs:]
        available = {self.primal_outputs[j] for j in need.outputs if self.primal_outputs[j] >= 0}
        self.eqns = _until(flat.eqns, self.gradients, available)


def _until(eqns: list[FlatEqn], wanted: tuple[int, ...], available: set[int]) -> list[FlatEqn]:
    """Keep the equations that reach ``wanted`` without making what is ``available`` already."""
    cut = [e for e in eqns if not any(o in available for o in e.outputs)]
    return live_eqns(cut, wanted)


class SegmentProgram:
    """Builds the program of one segment's backward pass (or forward pass)."""

    def __init__(self, graph: Graph, run: Run, backwards: dict[int, Backward], hardware: Hardware):
        self.graph, self.run, self.backwards, self.hardware = graph, run, backwards, hardware
        model = model_for(hardware)
        self.state = Lowering(functools.partial(region_transient_bytes, model=model), model)
        self.outside_bytes = 0
        self.kernels: list[Kernel] = []
        self.buffers: dict[int, int] = {}
        self.cotangents: dict[int, int] = {}
        self.owned: set[int] = set()

    def buffer(self, value: int) -> int:
        """The buffer of a value; what was not made here is there all the time and is subtracted at the end."""
        producer = self.graph.values[value].producer
        if value not in self.buffers and producer in self.run.free:
            self.forward(self.graph.ops[producer])
        elif value not in self.buffers:
            number = self.state.new(self.graph.values[value].aval)
            self.outside_bytes += self.state.sizes[number]
            self.owned.add(number)
            self.buffers[value] = number
        return self.buffers[value]

    def scalar(self, atom: Any) -> int:
        """A buffer for a literal or a constant: there already, counts nothing."""
        number = self.state.new(atom.aval)
        self.state.sizes[number] = 0
        self.owned.add(number)
        return number

    def hold(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        """A step that only keeps buffers to this point and makes others appear."""
        self.state.steps.append(Step(reads, writes, Kind.OPAQUE, "hold", 0.0, 0, _NO_EQN))

    def keep(self, values: list[int]) -> None:
        """Values that are saved: there from the start, counted all the time."""
        for v in values:
            number = self.state.new(self.graph.values[v].aval)
            self.buffers[v] = number
            self.owned.add(number)

    def arrive(self) -> None:
        """Cotangents of everything that leaves the segment."""
        values = [v for v in (*self.run.leaves, *self.run.crosses) if self.graph.active[v] and self.counts(v)]
        for v in values:
            self.cotangents[v] = self.state.new(self.graph.values[v].aval)
        made = tuple(self.buffers[v] for v in self.run.leaves if v in self.buffers and v not in self.owned)
        self.hold(made, tuple(self.cotangents[v] for v in values))

    def counts(self, value: int) -> bool:
        """Whether a value's cotangent is a temporary (arguments' gradients are outputs of the step)."""
        return self.graph.values[value].producer >= 0

    def forward(self, op: Op) -> None:
        """Run one operation; outputs that are saved already keep their buffer."""
        saved = {v: self.buffers[v] for v in op.outputs if v in self.buffers}
        env: dict[Any, int] = {}
        for atom, v in zip(op.eqn.invars, op.operands, strict=True):
            if not _compat.is_literal(atom):
                env[atom] = self.buffer(v) if v >= 0 else self.scalar(atom)
        self.state.run(SimpleNamespace(eqns=[op.eqn]), env)
        for var, v in zip(op.eqn.outvars, op.outputs, strict=True):
            self.buffers[v] = saved.get(v, env[var])

    def backward(self, op: Op) -> None:
        """Run the backward equations of one operation and add to the cotangents of its operands."""
        need = self.graph.needs[op.kind]
        if op.kind not in self.backwards:
            self.backwards[op.kind] = Backward(need, len(op.reads), len(op.outputs))
        rule = self.backwards[op.kind]
        env: dict[int, int] = {}
        env.update((number, self.buffer(v)) for number, v in zip(rule.primal_inputs, op.reads, strict=True))
        outputs = [v for v, a in zip(op.outputs, _floats(op), strict=True) if a]
        for number, v in zip(rule.cotangents, outputs, strict=True):
            if v in self.cotangents:
                env[number] = self.cotangents[v]
            else:
                env[number] = self.scalar(SimpleNamespace(aval=self.graph.values[v].aval))  # zero: folded away
        for j in need.outputs:
            number = rule.primal_outputs[j]
            if number >= 0:
                env[number] = self.buffer(op.outputs[j])
        for eqn in rule.eqns:
            self.flat_step(eqn, env)
        moving = [v for v, a in zip(op.operands, op.active, strict=True) if a]
        for v, number in zip(moving, rule.gradients, strict=True):
            self.accumulate(v, env.get(number))

    def flat_step(self, eqn: FlatEqn, env: dict[int, int]) -> None:
        """Lower one equation of a flattened VJP."""
        sub: dict[Any, int] = {}
        for atom, number in zip(eqn.eqn.invars, eqn.operands, strict=True):
            if _compat.is_literal(atom):
                continue
            if number < 0:
                sub[atom] = self.scalar(atom)
                continue
            if number not in env:
                env[number] = self.scalar(atom)
            sub[atom] = env[number]
        self.state.run(SimpleNamespace(eqns=[eqn.eqn]), sub)
        for var, number in zip(eqn.eqn.outvars, eqn.outputs, strict=True):
            env[number] = sub[var]

    def accumulate(self, value: int, gradient: int | None) -> None:
        """Add a gradient to a value's cotangent."""
        if gradient is None:
            return
        if not self.counts(value):
            if gradient not in self.cotangents.values():
                self.state.sizes[gradient] = 0
            return
        if value in self.cotangents:
            total = self.state.new(self.graph.values[value].aval)
            reads = (self.cotangents[value], gradient)
            self.state.steps.append(Step(reads, (total,), Kind.CHEAP, "add_any", 0.0, 0, _NO_EQN))
            self.cotangents[value] = total
        else:
            self.cotangents[value] = gradient

    def finish(self, values: list[int]) -> SegmentTimeline:
        """Evaluate the program; the cotangents of ``values`` must still be there at its end."""
        end = self.state.new(SimpleNamespace(shape=None, dtype=None))
        held = tuple(self.cotangents[v] for v in values if v in self.cotangents)
        self.hold(held, (end,))
        state = self.state
        program = Program(
            state.steps,
            state.sizes,
            frozenset(self.owned),
            (end,),
            state.pinned | set(held),
            state.storage,
            state.model,
        )
        self.kernels = kernels = fuse(program)
        timeline = evaluate_program(program, self.hardware, kernels)
        live = tuple(b - self.outside_bytes for b in timeline.live_bytes)
        early = 0
        if state.model.breadth_first:
            loose = [k.step for k in kernels if not k.reads and k.step.primitive == "iota"]
            early = sum(state.sizes[w] for step in loose for w in step.writes)
        return SegmentTimeline(live, timeline.equations, max(live, default=0), timeline.seconds, early)


@dataclass(frozen=True, slots=True)
class SegmentTimeline:
    """Live bytes of a segment alone, what comes from outside left out.

    ``early_bytes`` are those of index arrays, which depend on nothing: where kernels run as soon as they can, they
    are there from the start of the whole program.
    """

    live_bytes: tuple[int, ...]
    equations: tuple[Any, ...]
    peak_bytes: int
    seconds: float
    early_bytes: int


def _floats(op: Op) -> tuple[bool, ...]:
    return tuple(_compat.is_float(v.aval) for v in op.eqn.outvars)


def backward_timeline(
    graph: Graph,
    run: Run,
    saved: frozenset[int],
    recomputed: frozenset[int],
    backwards: dict[int, Backward],
    hardware: Hardware,
) -> SegmentTimeline:
    """Evaluate the backward pass of a run.

    Args:
        graph, run: the program and its run.
        saved: local numbers of saved values.
        recomputed: positions in ``run.ops`` of operations that run again.
        backwards: cache of backward equations per class, filled here.
        hardware: for the seconds.
    """
    program = SegmentProgram(graph, run, backwards, hardware)
    program.keep([run.values[i] for i in sorted(saved)])
    program.arrive()
    for position in sorted(recomputed):
        program.forward(graph.ops[run.ops[position]])
    for index in reversed(run.ops):
        op = graph.ops[index]
        if op.differentiated:
            program.backward(op)
    return program.finish(list(run.reads))


def forward_timeline(graph: Graph, run: Run, saved: frozenset[int], hardware: Hardware) -> SegmentTimeline:
    """Evaluate the forward pass of a run; what leaves it and what is saved is written and kept to the end."""
    program = SegmentProgram(graph, run, {}, hardware)
    for index in run.ops:
        program.forward(graph.ops[index])
    kept = [*run.leaves, *(run.values[i] for i in sorted(saved) if run.values[i] not in run.leaves)]
    for v in kept:
        program.cotangents[v] = program.buffers[v]
    return program.finish(kept)


@dataclass(frozen=True, slots=True)
class PlainRun:
    """A run outside any segment.

    Attributes:
        timeline: forward and backward pass as one program.
        kept_bytes: what is kept between the two passes; whatever does not wait for a cotangent is computed in
            the forward pass (kernels run as soon as they can).
        early_bytes: the part of it that depends on arguments and constants only, so that it is there from the
            start of the whole program.
    """

    timeline: SegmentTimeline
    kept_bytes: int
    early_bytes: int


def plain_run(graph: Graph, run: Run, backwards: dict[int, Backward], hardware: Hardware) -> PlainRun:
    """Evaluate a run outside any segment."""
    program = SegmentProgram(graph, run, backwards, hardware)
    for index in run.ops:
        program.forward(graph.ops[index])
    activations = {b for v, b in program.buffers.items() if b in program.owned and program.counts(v)}
    program.arrive()
    cotangents = set(program.cotangents.values())
    for index in reversed(run.ops):
        if graph.ops[index].differentiated:
            program.backward(graph.ops[index])
    timeline = program.finish(list(run.reads))
    kernels = program.kernels
    sizes = program.state.sizes
    kept = crossing_values(kernels, cotangents) - program.owned
    kept |= {program.buffers[v] for v in run.leaves if program.buffers[v] not in program.owned}
    early = crossing_values(kernels, activations | cotangents) & kept if activations else set()
    return PlainRun(timeline, sum(sizes[b] for b in kept), sum(sizes[b] for b in early))


def crossing_values(kernels: list[Kernel], late: set[int]) -> set[int]:
    """Return the values made without waiting for ``late`` ones that kernels waiting for them read."""
    waiting = set(late)
    crossing: set[int] = set()
    for kernel in kernels:
        if any(b in waiting for b in kernel.reads):
            waiting.update(kernel.step.writes)
            crossing.update(b for b in kernel.reads if b not in waiting)
    return crossing
