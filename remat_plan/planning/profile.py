"""What a segment does under one choice of saved values, seen by the evaluator.

In: a ``Run``, the values it saves, the ``Rules`` of the graph. Out: bytes needed while its backward pass runs,
and roofline seconds, both from ``cost.memory.evaluate_program`` on the program that ``jax.checkpoint`` will
make: first everything that is recomputed, then the backward equations in reverse order.

Limits: values that the caller owns (arguments, their gradients) count nothing here; they are in every plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_plan.cost.builder import ProgramBuilder, Rules
from remat_plan.cost.fusion import Kernel, fuse
from remat_plan.cost.memory import evaluate_program
from remat_plan.cost.rules import Kind
from remat_plan.cost.steps import Program, RegionCost, Step, as_compiled
from remat_plan.cost.whole_step import reverse_sliced, run_sliced
from remat_plan.graph.ways import Plain, Way
from remat_plan.planning.cuts import is_small
from remat_plan.planning.runs import Actions, Run

_PLAIN = Plain()

_NO_TIME = RegionCost(seconds=1e-30)
"""Of a step that takes no time. With none at all it would be charged for the bytes that it writes, and saving a value
for being there."""


class SegmentProgram(ProgramBuilder):
    """Builds the program of one run's backward pass (or forward pass)."""

    def __init__(self, rules: Rules, run: Run):
        super().__init__(rules)
        self.run, self.planned = run, True
        self.outside_bytes = 0
        self.kernels: list[Kernel] = []
        self.sizes: list[int] = []
        self.owned: set[int] = set()

    def buffer(self, value: int) -> int:
        """The number of a value; what was not made here is there all the time and is subtracted at the end."""
        producer = self.graph.values[value].producer
        if value not in self.buffers and producer in self.run.free:
            self.forward(self.graph.ops[producer])
        elif value not in self.buffers:
            number = self.state.new(self.graph.values[value].aval)
            self.outside_bytes += self.state.sizes[number]
            self.owned.add(number)
            self.buffers[value] = number
        return self.buffers[value]

    def constant(self, aval: object) -> int:
        number = super().constant(aval)
        self.owned.add(number)
        return number

    def hold(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        """A step that only keeps buffers to this point and makes others appear."""
        self.state.steps.append(Step(reads, Kind.OPAQUE, "hold", None, writes))

    def keep(self, actions: Actions) -> None:
        """Values that are saved: there from the start, counted all the time; in small programs, to their last use.

        In larger ones the latter promises bytes that the compiler does not free in time: at its least peak a perceptron
        of 24 layers recomputed 176 % of the plain seconds, and 73 % with bytes counted all the time.
        """
        there = {self.run.values[i]: self.kept_number(self.run.values[i], action) for i, action in actions}
        if is_small(self.graph):
            self.state.steps.append(Step((), Kind.OPAQUE, "hold", None, tuple(there.values()), region=_NO_TIME))
        else:
            self.owned.update(there.values())
        for i, action in actions:
            v = self.run.values[i]
            self.buffers[v] = self.move(v, action, there[v], fetch=True)

    def arrive(self) -> None:
        """Cotangents of everything that leaves the segment."""
        values = [v for v in (*self.run.leaves, *self.run.crosses) if self.graph.active[v] and self.counts(v)]
        for v in values:
            aval = self.graph.values[v].aval
            is_loss = v == self.graph.outputs[0] and aval.shape == () and not self.graph.is_region
            self.cotangents[v] = self.state.one() if is_loss else self.state.new(aval)
        made = tuple(self.buffers[v] for v in self.run.leaves if v in self.buffers and v not in self.owned)
        self.hold(made, tuple(self.cotangents[v] for v in values))

    def reverse(self, ops: Sequence[int]) -> None:
        """Backward equations of operations, the last one's first."""
        for index in reversed(ops):
            if self.graph.ops[index].differentiated:
                self.backward(self.graph.ops[index])

    def counts(self, value: int) -> bool:
        """Whether a value's cotangent is a temporary (arguments' gradients are outputs of the step)."""
        return self.graph.values[value].producer >= 0

    def accumulate(self, value: int, gradient: int | None) -> None:
        if gradient is None or self.counts(value):
            super().accumulate(value, gradient)
        elif gradient not in self.cotangents.values():
            self.state.sizes[gradient] = 0

    def finish(self, values: list[int]) -> SegmentTimeline:
        """Evaluate the program; the cotangents of ``values`` must still be there at its end."""
        end = self.state.allocate(0)
        held = tuple(self.cotangents[v] for v in values if v in self.cotangents)
        self.hold(held, (end,))
        state = self.state
        given, pinned = frozenset(self.owned), frozenset(held)
        program = as_compiled(
            Program(state.steps, state.sizes, given, (end,), state.storage, state.backend, pinned=pinned)
        )
        self.kernels, self.sizes = fuse(program), program.sizes
        timeline = evaluate_program(program, self.rules.hardware, self.kernels)
        peak = max(timeline.live_bytes, default=self.outside_bytes) - self.outside_bytes
        return SegmentTimeline(peak, timeline.seconds, timeline.flops, timeline.host_bytes)


@dataclass(frozen=True, slots=True)
class SegmentTimeline:
    """What a segment needs by itself, what comes from outside left out."""

    peak_bytes: int
    seconds: float
    flops: float
    host_bytes: int


def backward_timeline(
    rules: Rules, run: Run, actions: Actions, recomputed: frozenset[int], tail: int = 0
) -> SegmentTimeline:
    """Evaluate the backward pass of a run.

    Args:
        rules, run: the program's rules and its run.
        actions: (local number, action) of saved values.
        recomputed: positions in ``run.ops`` of operations that run again.
        tail: so many operations at the end of the run are differentiated before anything runs again.
    """
    graph = rules.graph
    program = SegmentProgram(rules, run)
    program.keep(actions)
    program.arrive()
    behind = len(run.ops) - tail
    program.reverse(run.ops[behind:])
    for position in sorted(recomputed):
        program.linearize(graph.ops[run.ops[position]])
    program.reverse(run.ops[:behind])
    return program.finish(list(run.reads))


def forward_timelines(rules: Rules, run: Run, choices: Sequence[Actions]) -> list[SegmentTimeline]:
    """Evaluate the forward pass of a run for several choices of saved values (local number, action).

    What leaves it and what is saved is written and kept to the end.
    """
    program = SegmentProgram(rules, run)
    for index in run.ops:
        program.forward(rules.graph.ops[index])
    found, made = [], len(program.state.steps)
    for actions in choices:
        program.cotangents = {v: program.buffers[v] for v in run.leaves}
        for i, action in actions:
            if (v := run.values[i]) not in program.cotangents:
                program.cotangents[v] = program.move(v, action, program.buffers[v])
        found.append(program.finish(list(program.cotangents)))
        del program.state.steps[made:]
    return found


@dataclass(frozen=True, slots=True)
class PlainRun:
    """A run outside any segment.

    Attributes:
        timeline: forward and backward pass as one program.
        kept_bytes: what is kept between the two passes; whatever does not wait for a cotangent is computed in
            the forward pass (kernels run as soon as they can).
    """

    timeline: SegmentTimeline
    kept_bytes: int


def plain_run(rules: Rules, run: Run, way: Way = _PLAIN) -> PlainRun:
    """Evaluate a run outside any segment: as it is, a structure by choice, or in slices; ``way`` is in its numbers."""
    graph = rules.graph
    program = SegmentProgram(rules, run)
    segment = run.segment(way)
    if way.sliced:
        run_sliced(program, segment, linear=True)
    for index in () if way.sliced else run.ops:
        program.linearize(graph.ops[index], segment.choice(index))
    program.arrive()
    cotangents = set(program.cotangents.values())
    if way.sliced:
        reverse_sliced(program, segment)
    else:
        program.reverse(run.ops)
    timeline = program.finish(list(run.reads))
    kept = crossing_values(program.kernels, cotangents) - program.owned
    kept |= {program.buffers[v] for v in run.leaves if program.buffers[v] not in program.owned}
    return PlainRun(timeline, sum(program.sizes[b] for b in kept))


def crossing_values(kernels: list[Kernel], late: set[int]) -> set[int]:
    """Return the values made without waiting for ``late`` ones that kernels waiting for them read."""
    waiting = set(late)
    crossing: set[int] = set()
    for kernel in kernels:
        if any(b in waiting for b in kernel.reads):
            waiting.update(kernel.step.writes)
            crossing.update(b for b in kernel.reads if b not in waiting)
    return crossing
