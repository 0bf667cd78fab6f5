"""The gradient step of a whole schedule, put together without tracing.

In: ``Rules``, a schedule. Out: the ``Timeline`` that ``cost.memory`` finds for the program which JAX would make of it.

Tracing a schedule and differentiating it takes JAX longer than everything else in planning, so candidates are judged
by this program; the one that is chosen is traced, and every figure that is shown is that of the trace. The program is
the one that ``rewrite.emit`` leads to: all forward passes in order, then backward passes in reverse; a segment's begins
with a barrier around everything it reads, then runs its forward pass again, then its backward equations. Cotangents of
values that pass through a segment are added up inside it.

Limits: what JAX decides while it differentiates (which equation is known at once, where a zero cotangent drops out)
is only followed as far as liveness shows it; see ``tests/planning/test_whole_step.py`` for how close it comes.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_plan import _compat
from remat_plan.cost.memory import Timeline, evaluate_program
from remat_plan.cost.program import Program, live_steps
from remat_plan.graph.uses import last_uses
from remat_plan.planning.builder import NO_EQN, ProgramBuilder, Rules
from remat_plan.rewrite.order import ordered
from remat_plan.rewrite.segments import Segment, interface


class StepProgram(ProgramBuilder):
    """Builds the program of one schedule."""

    def __init__(self, rules: Rules, free: frozenset[int]):
        super().__init__(rules)
        self.free = free
        self.last = last_uses(rules.graph)

    def buffer(self, value: int) -> int:
        """The number of a value; values made from literals only are made wherever they are read."""
        if value not in self.buffers:
            self.forward(self.graph.ops[self.graph.values[value].producer])
        return self.buffers[value]

    def operations(self, segment: Segment) -> list[int]:
        """The operations of a segment, in order."""
        return [i for i in range(segment.start, segment.end) if i not in self.free]

    def forward_pass(self, segments: Sequence[Segment]) -> None:
        """Run the forward pass of segments one after another."""
        for segment in segments:
            if segment.loop is not None:
                op = self.graph.ops[segment.start]
                self.linearize_by(self.rules.loop(op, segment.loop), op)
                continue
            run = self.linearize if segment.kind == "plain" else self.forward
            for index in self.operations(segment):
                run(self.graph.ops[index])

    def inner_forward_pass(self, segments: Sequence[Segment]) -> None:
        """Run the forward pass of segments inside another one's backward pass: each is behind a barrier there too."""
        for segment, waits in ordered(self.graph, segments, self.free):
            if segment.kind in ("plain", "loop"):
                self.forward_pass((segment,))
                continue
            reads, leaves, through = interface(self.graph, segment, self.free, self.last, waits)
            outer = self.buffers
            self.buffers = self.behind_barrier(reads)
            if segment.kind == "nest":
                self.inner_forward_pass(segment.children)
            else:
                self.forward_pass((segment,))
            outer.update((v, self.buffers[v]) for v in (*leaves, *through, *segment.saved))
            self.buffers = outer

    def behind_barrier(self, values: Sequence[int], cotangents: Sequence[int] = ()) -> dict[int, int]:
        """Add a barrier around values and cotangents and return the numbers of the values behind it.

        With cotangents, ``self.cotangents`` holds those behind it afterwards, and no others.
        """
        given = {v: self.buffers[v] for v in values}
        behind = self.state.barrier(NO_EQN, [*given.values(), *(self.cotangents[v] for v in cotangents)])
        if cotangents:
            self.cotangents = {v: behind[self.cotangents[v]] for v in cotangents}
        return {v: behind[b] for v, b in given.items()}

    def backward_pass(self, segments: Sequence[Segment]) -> None:
        """Run the backward pass of segments, the last one first."""
        for segment, waits in reversed(ordered(self.graph, segments, self.free)):
            if segment.kind in ("plain", "loop"):
                self.reverse(segment)
            else:
                self.checkpointed(segment, waits)

    def reverse(self, segment: Segment) -> None:
        """Run the backward equations of a segment in reverse order."""
        for index in reversed(self.operations(segment)):
            op = self.graph.ops[index]
            if op.differentiated and any(v in self.cotangents for v in op.outputs):
                self.backward(op)

    def checkpointed(self, segment: Segment, waits: tuple[int, ...]) -> None:
        """Run the backward pass of one segment: behind a barrier, its forward pass again and its backward equations."""
        reads, leaves, through = interface(self.graph, segment, self.free, self.last, waits)
        arriving = [v for v in (*leaves, *through) if v in self.cotangents]
        if not arriving:
            return
        outer, outer_cotangents = self.buffers, self.cotangents
        self.buffers = self.behind_barrier((*reads, *segment.saved), arriving)
        if segment.kind == "nest":
            self.inner_forward_pass(segment.children)
            self.backward_pass(segment.children)
        else:
            for index in self.operations(segment):
                self.linearize(self.graph.ops[index])
            self.reverse(segment)
        inner, self.buffers, self.cotangents = self.cotangents, outer, outer_cotangents
        for v in through:
            self.cotangents.pop(v, None)
        for v in reads:
            self.accumulate(v, inner.get(v))

    def loss_timeline(self, schedule: Sequence[Segment]) -> Timeline:
        """Evaluate the step of a loss (the first output): its cotangent is the number one."""
        loss = self.graph.outputs[0]
        if loss >= 0:
            self.cotangents[loss] = self.scalar(self.graph.values[loss])
        return self.timeline(schedule, ())

    def pullback_timeline(self, schedule: Sequence[Segment]) -> Timeline:
        """Evaluate the step of any function: every output of floating point has a cotangent among the arguments."""
        arriving = []
        for v in self.graph.outputs:
            if v >= 0 and _compat.is_float(self.graph.values[v].aval):
                arriving.append(self.state.new(self.graph.values[v].aval))
                self.accumulate(v, arriving[-1])
        return self.timeline(schedule, arriving)

    def timeline(self, schedule: Sequence[Segment], arriving: Sequence[int]) -> Timeline:
        """Build the whole step and evaluate it; ``arriving`` are the numbers of cotangents among the arguments."""
        graph, state = self.graph, self.state
        given = [*graph.inputs, *[v for v, _ in graph.constants]]
        self.buffers = {v: state.new(graph.values[v].aval) for v in given}
        inputs = frozenset((*self.buffers.values(), *arriving))
        self.forward_pass(schedule)
        outputs = [self.buffer(v) for v in graph.outputs if v >= 0]
        self.backward_pass(schedule)
        for v in graph.differentiated_inputs:
            outputs.append(self.cotangents[v] if v in self.cotangents else state.new(graph.values[v].aval))
        steps = live_steps(state.steps, outputs)
        program = Program(steps, state.sizes, inputs, tuple(outputs), state.pinned, state.storage, state.model)
        return evaluate_program(program, self.rules.hardware)
