"""The gradient step of a whole schedule, put together without tracing.

In: ``Rules``, a schedule. Out: the ``Timeline`` that ``cost.memory`` finds for the program which JAX would make of it.

Tracing a schedule and differentiating it takes JAX longer than everything else in planning, so schedules are judged by
this program, and every predicted figure that is shown is that of it. The program is the one that ``rewrite.emit``
leads to: all forward passes in order, then backward passes in reverse; a segment's begins with a barrier around
everything it reads, then runs its forward pass again, then its backward equations. Cotangents of values that pass
through a segment are added up inside it.

Limits: what JAX decides while it differentiates (which equation is known at once, where a zero cotangent drops out)
is only followed as far as liveness shows it; see ``tests/cost/test_whole_step.py`` for how close it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from remat_plan import _compat
from remat_plan.cost.builder import ProgramBuilder, Rules
from remat_plan.cost.memory import Timeline, evaluate_program, with_fresh_memory
from remat_plan.cost.passes import Numbers, Pull, Signature, Stack
from remat_plan.cost.program import Lowering
from remat_plan.graph.action import SAVE
from remat_plan.graph.records import Op
from remat_plan.graph.schedule import Schedule, Segment, is_planned
from remat_plan.graph.slices import region_of
from remat_plan.graph.ways import Keep, Plain


class StepProgram(ProgramBuilder):
    """Builds the program of one schedule."""

    def __init__(self, rules: Rules, state: Lowering | None = None, stored: bool = False, barriers: bool = True):
        super().__init__(rules, state, stored)
        self.barriers, self.again, self.around = barriers, False, self.state.place
        self.free = rules.borders.free
        self.kept: dict[int, int] = {}

    def buffer(self, value: int) -> int:
        """The number of a value; values made from literals only are made wherever they are read."""
        if value not in self.buffers:
            self.forward(self.graph.ops[self.graph.values[value].producer])
        return self.buffers[value]

    def operations(self, segment: Segment) -> list[int]:
        """The operations of a segment, in order; those that only tell something do not run ``again``."""
        left_out = self.free | self.rules.borders.told if self.again else self.free
        return [i for i in range(segment.start, segment.end) if i not in left_out]

    def whole_forward_pass(self, schedule: Sequence[Segment]) -> None:
        """Run the forward pass of all: but for barriers the same for all schedules where no structure or split is."""
        moved = any(action != SAVE for segment in schedule for _, action in segment.actions)
        if moved or not self.rules.is_flat or any(segment.way.sliced for segment in schedule):
            self.forward_pass(schedule)
            return
        alike = [isinstance(s.way, (Plain, Keep)) and not self.waits(s, inside=False) for s in schedule]
        others = tuple([s for s, is_alike in zip(schedule, alike, strict=True) if not is_alike])
        values = range(len(self.graph.values))

        def lower() -> list[int | None]:
            self.forward_pass(schedule)
            return [self.buffers.get(v) for v in values]

        made = self.rules.recordings.append(self.state, others, [*self.buffers.values()], lower)
        self.buffers = {v: number for v, number in zip(values, made, strict=True) if number is not None}

    def operation(self, index: int) -> Op:
        """An operation; the steps that follow are of it."""
        self.state.place = *self.around, index
        return self.graph.ops[index]

    def forward_pass(self, segments: Sequence[Segment], inside: bool = False) -> None:
        """Run the forward pass of segments one after another; ``inside`` another one, which keeps nothing of theirs."""
        for segment in segments:
            self.enter(segment, inside or self.again)
            segment.way.forward(self, segment, inside)

    def forward_inside(self, segments: Sequence[Segment]) -> None:
        """Run the forward pass of segments inside another one."""
        outer, self.buffers = self.buffers, dict(self.buffers)
        self.forward_pass(segments, inside=True)
        self.buffers.update(outer)  # what is behind a barrier inside is that for what is inside only

    def equations(self, segment: Segment, linear: bool = False) -> None:
        """Run the equations of a segment; ``linear`` where their backward pass follows."""
        for index in self.operations(segment):
            op = self.operation(index)
            self.linearize(op, segment.choice(index)) if linear else self.forward(op)

    def enter(self, segment: Segment, inside: bool) -> None:
        """Have a segment that could start early, or is ``inside`` another one, wait for all that it reads."""
        if self.waits(segment, inside):
            self.buffers.update(self.together(self.buffers, self.rules.borders.interface(segment)[0]))

    def leave(self, segment: Segment) -> None:
        """Have what comes next in the backward pass wait for all that such a segment passes on."""
        if self.waits(segment, self.again):
            self.cotangents.update(self.together(self.cotangents, self.rules.borders.interface(segment)[0]))

    def waits(self, segment: Segment, inside: bool) -> bool:
        """Whether a segment waits for all that it reads, in the forward pass too."""
        return self.planned and self.barriers and self.rules.order.waits(segment, inside)

    def together(self, numbers: dict[int, int], values: Sequence[int]) -> dict[int, int]:
        """Add a barrier around those of the values that have a number; return their numbers behind it."""
        found = {v: numbers[v] for v in values if v in numbers}
        behind = self.state.barrier(None, list(found.values()))
        return {v: behind[number] for v, number in found.items()}

    def store(self, segment: Segment) -> None:
        """Put what a segment keeps where it is kept; on the device, as it is, it stays where it was made."""
        for v, action in segment.actions:
            if (number := self.move(v, action, self.buffers[v])) != self.buffers[v]:
                self.kept[v] = number

    def backward_pass(self, segments: Sequence[Segment]) -> None:
        """Run the backward pass of segments, the last one first."""
        for segment, waits in reversed(self.rules.order.of(segments)):
            segment.way.backward(self, segment, waits)
            self.leave(segment)

    def reverse(self, segment: Segment) -> None:
        """Run the backward equations of a segment in reverse order."""
        for index in reversed(self.operations(segment)):
            op = self.operation(index)
            if op.differentiated and any(v in self.cotangents for v in op.outputs):
                self.backward(op)

    def checkpointed(
        self, segment: Segment, waits: tuple[int, ...], again: Callable[[StepProgram, Segment], None]
    ) -> None:
        """Run the backward pass of one segment: behind a barrier, what runs ``again`` and its backward equations."""
        reads, leaves, through = self.rules.borders.interface(segment, waits)
        arriving = [v for v in (*leaves, *through) if v in self.cotangents]
        if not arriving:
            return
        given = {v: self.buffers[v] for v in reads}
        given.update((v, self.kept.get(v, self.buffers[v])) for v in segment.saved)
        cotangents = {v: self.cotangents[v] for v in arriving}
        recompute = partial(self.recompute, segment, again, reads, given, cotangents)
        if self.barriers:
            behind = self.state.barrier(None, [*given.values(), *cotangents.values()])
            cotangents.update({v: behind[number] for v, number in cotangents.items()})
            given.update({v: behind[number] for v, number in given.items()})
            key = segment, waits, tuple(arriving), self.planned
            recorded = self.rules.recordings
            made = recorded.append(self.state, key, [*given.values(), *cotangents.values()], recompute)
        else:
            made = recompute()
        for v in through:
            self.cotangents.pop(v, None)
        for v, gradient in zip(reads, made, strict=True):
            self.accumulate(v, gradient)

    def recompute(
        self,
        segment: Segment,
        again: Callable[[StepProgram, Segment], None],
        reads: Sequence[int],
        given: dict[int, int],
        cotangents: dict[int, int],
    ) -> list[int | None]:
        """Run what runs again of a segment and its backward equations; return the cotangents of what it reads.

        Of these values the ``given`` ones are there; both are by number, as the cotangents that arrive.
        """
        outer = self.buffers, self.cotangents, self.stored, self.state.late, self.again
        self.stored, self.again = False, True  # what is recomputed here is read here
        self.state.late = self.rules.order.late_loops(())[1]
        self.buffers, self.cotangents = dict(given), dict(cotangents)
        self.buffers.update({v: self.move(v, action, given[v], fetch=True) for v, action in segment.actions})
        again(self, segment)
        made = [self.cotangents.get(v) for v in reads]
        self.buffers, self.cotangents, self.stored, self.state.late, self.again = outer
        return made

    def sliced_forward(self, segment: Segment, inside: bool) -> None:
        """Run the forward pass of a segment that is split; ``inside`` another one nothing is kept of it."""
        self.state.place = *self.around, segment.start
        run_sliced(self, segment, linear=not inside)

    def sliced_backward(self, segment: Segment) -> None:
        """Run the backward pass of a segment that is split."""
        if any(v in self.cotangents for v in self.rules.borders.interface(segment)[1]):
            reverse_sliced(self, segment)

    def loss_timeline(self, schedule: Sequence[Segment]) -> Timeline:
        """Evaluate the step of a loss (the first output): its cotangent is the number one."""
        loss = self.graph.outputs[0]
        if loss >= 0:
            self.cotangents[loss] = self.state.one()
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
        self.buffers = {v: state.argument(graph.values[v].aval) for v in given}
        inputs = (*self.buffers.values(), *arriving)
        state.late = self.rules.order.late_loops(schedule)[0]
        self.planned = is_planned(schedule)
        self.whole_forward_pass(schedule)
        outputs = [self.buffer(v) for v in graph.outputs if v >= 0]
        self.backward_pass(schedule)
        for v in graph.differentiated_inputs:
            outputs.append(self.cotangents[v] if v in self.cotangents else state.new(graph.values[v].aval))
        program = state.program(inputs, outputs)
        return with_fresh_memory(evaluate_program(program, self.rules.hardware), self.rules.hardware)


def run_sliced(builder: ProgramBuilder, segment: Segment, linear: bool) -> None:
    """Append the forward pass of a segment that is split; ``linear`` where its backward pass follows."""
    rules = builder.rules
    reads, leaves, _ = rules.borders.interface(segment)
    region, schedule = region_of(rules.borders, segment)

    def make() -> RegionUnit:
        arriving = tuple([v >= 0 and region.active[v] for v in region.outputs])
        return RegionUnit(rules.inside(region, is_body=False), schedule, arriving, stored=False)

    unit = rules.once(("sliced", id(region), schedule), make)
    inputs = [builder.buffer(v) for v in reads]
    if linear:
        outputs, builder.pulls[segment] = unit.linearize(builder.state, inputs)
    else:
        outputs = unit.run(builder.state, inputs)
    for v, number in zip(leaves, outputs, strict=True):
        builder.buffers.setdefault(v, number)


def reverse_sliced(builder: ProgramBuilder, segment: Segment) -> None:
    """Append the backward pass of a segment that is split."""
    reads, leaves, _ = builder.rules.borders.interface(segment)
    found = builder.pulls.pop(segment)([builder.cotangents.get(v) for v in leaves])
    for v, gradient in zip(reads, found, strict=True):
        if builder.graph.active[v]:
            builder.accumulate(v, gradient)


class RegionUnit:
    """The equations of a region under a schedule; see ``ProgramBuilder`` for ``stored``.

    ``arriving`` tells which of its outputs are given a cotangent, ``barriers`` whether its segments begin with one, as
    under ``jax.checkpoint`` by default.
    """

    def __init__(
        self, rules: Rules, schedule: Schedule, arriving: tuple[bool, ...], stored: bool, barriers: bool = True
    ):
        self.rules, self.schedule, self.stored, self.barriers = rules, schedule, stored, barriers
        graph = rules.graph
        moving = set(graph.differentiated_inputs)
        self.signature = Signature(
            tuple([Stack(graph.values[v].aval) for v in graph.inputs]),
            tuple([Stack(aval) for aval in graph.output_avals]),
            tuple([v in moving for v in graph.inputs]),
            arriving,
        )

    def builder(self, state: Lowering, inputs: Sequence[int]) -> StepProgram:
        """A builder that appends to a program and finds the inputs of the region there."""
        builder = StepProgram(self.rules, state, self.stored, self.barriers)
        builder.planned = is_planned(self.schedule)
        graph = self.rules.graph
        builder.buffers = {v: state.new(graph.values[v].aval) for v, _ in graph.constants}
        builder.buffers.update(zip(graph.inputs, inputs, strict=True))
        return builder

    def outputs(self, builder: StepProgram) -> Numbers:
        """The numbers of the outputs."""
        graph = self.rules.graph
        return [builder.buffer(v) if v >= 0 else builder.constant(None) for v in graph.outputs]

    def run(self, state: Lowering, inputs: Sequence[int]) -> Numbers:
        """Append the forward pass."""
        builder = self.builder(state, inputs)
        for op in self.rules.graph.ops:
            if op.index not in self.rules.borders.free:
                builder.forward(op)
        return self.outputs(builder)

    def linearize(self, state: Lowering, inputs: Sequence[int]) -> tuple[Numbers, Pull]:
        """Append the forward pass; return its outputs and what appends the backward pass."""
        builder = self.builder(state, inputs)
        builder.forward_pass(self.schedule)
        graph = self.rules.graph

        def pull(cotangents: Sequence[int | None]) -> list[int | None]:
            for v, cotangent in zip(graph.outputs, cotangents, strict=True):
                if v >= 0 and graph.active[v]:
                    builder.accumulate(v, cotangent)
            builder.backward_pass(self.schedule)
            moving = set(graph.differentiated_inputs)
            return [builder.cotangents.get(v) if v in moving else None for v in graph.inputs]

        return self.outputs(builder), pull
