"""Pieces of a program run forward and backward, and what their passes cost by themselves.

In: a ``Unit``, how its inputs change from run to run. Out: ``Passes``: bytes needed inside, seconds and FLOPs of its
forward pass (with residuals and without) and its backward pass, and what is kept between them.

A unit appends the steps of a piece to a lowered program: ``run`` its forward pass alone, ``linearize`` its forward
pass and, from what that returns, its backward pass. What a loop keeps for its backward pass follows ``jax.lax.scan``:
residuals that a step makes and carries are stacked; those made of loop constants alone are made once; rows of inputs
and of outputs are read where they are. ``units`` has the units there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

from remat_plan import _compat
from remat_plan.cost.facts import FactBook
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import evaluate_program
from remat_plan.cost.program import Lowering
from remat_plan.cost.rules import READ_ROW, WRITE_ROW, Kind
from remat_plan.cost.steps import RegionCost, Step, live_steps

Numbers = list[int]
"""Numbers of values in a lowered program."""

Pull = Callable[[Sequence[int | None]], list[int | None]]
"""The backward pass: cotangents of the outputs (None: zero) to gradients of the inputs (None: none)."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The type of an input or output: an array, or so many rows of one type in one array."""

    aval: Any
    rows: int = 1

    @property
    def size_bytes(self) -> int:
        """Bytes on one device."""
        return self.rows * _compat.aval_bytes(self.aval)

    def times(self, count: int) -> Stack:
        """So many of it in one array."""
        return Stack(self.aval, count * self.rows)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a unit takes and gives; which inputs have gradients, and which outputs are given a cotangent."""

    inputs: tuple[Stack, ...]
    outputs: tuple[Stack, ...]
    moving: tuple[bool, ...]
    arriving: tuple[bool, ...]

    @property
    def output_bytes(self) -> list[int]:
        """Bytes of the outputs."""
        return [kind.size_bytes for kind in self.outputs]


class Unit(Protocol):
    """See the module docstring."""

    @property
    def signature(self) -> Signature:
        """What it takes and gives."""
        ...

    def run(self, state: Lowering, inputs: Sequence[int]) -> Numbers:
        """Append the forward pass."""
        ...

    def linearize(self, state: Lowering, inputs: Sequence[int]) -> tuple[Numbers, Pull]:
        """Append the forward pass; return its outputs and what appends the backward pass."""
        ...


class Pass(NamedTuple):
    """One pass of a unit by itself: what happens inside, and its FLOPs."""

    region: RegionCost
    flops: float

    def times(self, count: float) -> Pass:
        """The pass run several times, one after another."""
        region = self.region
        more = region._replace(seconds=count * region.seconds, matrix_flops=count * region.matrix_flops)
        return Pass(more, count * self.flops)

    def keeping(self, host_bytes: int) -> Pass:
        """The pass that keeps so much in the host's memory."""
        return Pass(self.region._replace(host_bytes=host_bytes), self.flops)

    def longer(self, seconds: float) -> Pass:
        """The pass with some seconds more."""
        return Pass(self.region._replace(seconds=self.region.seconds + seconds), self.flops)


class Passes(NamedTuple):
    """The passes of a unit by itself.

    Attributes:
        forward: the forward pass that writes residuals.
        residual_bytes: sizes of the residuals that are made anew each time it runs, carried inputs among them.
        constant_bytes: sizes of those that depend on constant inputs only.
        reads: positions of the inputs that the backward pass reads where they are.
        result_reads: positions of the rows of outputs that it reads where they are.
        alone: evaluates the forward pass where no backward pass follows, for which not all ask.
    """

    forward: Pass
    backward: Pass
    residual_bytes: tuple[int, ...]
    constant_bytes: tuple[int, ...]
    reads: tuple[int, ...]
    result_reads: tuple[int, ...]
    alone: Callable[[], Pass]


@dataclass(frozen=True, slots=True)
class Roles:
    """How the inputs and outputs of a unit change from run to run.

    Attributes:
        constant: which inputs are the same each time; their gradients are added up.
        row: which inputs are read out of a larger array each time, and so are their gradients written into one.
        result_row: which outputs are written into a larger array, and their cotangents read out of one.
        carried: (input, output) pairs that are one value: the output is the input of the next run.
    """

    constant: tuple[bool, ...]
    row: tuple[bool, ...]
    result_row: tuple[bool, ...]
    carried: tuple[tuple[int, int], ...] = ()

    @property
    def looped(self) -> bool:
        """Whether the unit is a step of a loop."""
        return bool(self.carried) or any(self.row)


def find_passes(unit: Unit, roles: Roles, facts: FactBook, hardware: Hardware) -> Passes:
    """Lower a unit by itself and evaluate its passes, each as a program of its own."""
    return _Apart(unit, roles, facts, hardware).passes()


class _Apart:
    """A unit lowered by itself, its two passes apart."""

    def __init__(self, unit: Unit, roles: Roles, facts: FactBook, hardware: Hardware):
        self.roles, self.facts, self.hardware = roles, facts, hardware
        self.signature, self.state = unit.signature, Lowering(facts)
        state = self.state
        self.arguments = [state.allocate(kind.size_bytes) for kind in self.signature.inputs]
        self.inputs = [self.move(READ_ROW, v) if row else v for v, row in zip(self.arguments, roles.row, strict=True)]
        self.outputs, pull = unit.linearize(state, self.inputs)
        self.before = list(state.steps)
        del state.steps[:]
        state.seen.clear()  # nothing is shared between the passes but residuals
        self.arriving = [
            state.allocate(kind.size_bytes) if arrives else None
            for kind, arrives in zip(self.signature.outputs, self.signature.arriving, strict=True)
        ]
        rows = zip(self.arriving, roles.result_row, strict=True)
        self.cotangents = [self.move(READ_ROW, c) if row and c is not None else c for c, row in rows]
        self.sums: dict[int, int] = {}
        self.gradients = [self.summed(i, g) for i, g in enumerate(pull(self.cotangents))]
        self.after = list(state.steps)

    def move(self, name: str, value: int) -> int:
        """Add a step that reads a row out of an array, or writes one into it."""
        return self.state.move(None, name, (value,), None, self.state.sizes[value])

    def summed(self, position: int, gradient: int | None) -> int | None:
        """Add the gradient of a constant to those of the runs before."""
        if gradient is None or not self.roles.constant[position]:
            return gradient
        kind = self.signature.inputs[position]
        self.sums[position] = self.state.allocate(kind.size_bytes)
        return self.state.equation(self.facts.addition(kind.aval), [self.sums[position], gradient])[0]

    def passes(self) -> Passes:
        """Find what is kept, and evaluate."""
        state, roles = self.state, self.roles
        wanted = [g for g in self.gradients if g is not None]
        given = {c for c in self.arriving if c is not None} | set(self.sums.values())
        after = live_steps(self.after, wanted)
        read = {r for step in after for r in step.reads}.union(wanted) - {w for step in after for w in step.writes}
        # Of no bytes here is what lies behind a barrier, which is where it came from, and what the host has.
        read = {v for v in read - given if state.sizes[v] > 0 or v in state.hosted}
        going = {i for i, _ in roles.carried}  # other inputs are there for the backward pass anyway
        there = {number: i for i, number in enumerate(self.inputs) if i not in going}
        reads = tuple(sorted(there[v] for v in read if v in there))
        fixed = _depends_on(self.before, [v for v, c in zip(self.inputs, roles.constant, strict=True) if c])
        residuals = sorted(read - there.keys())
        changing = [v for v in residuals if v not in fixed]
        result = {v: j for j, v in enumerate(self.outputs) if roles.result_row[j]}
        made = [v for v in changing if v not in result]
        own = [] if roles.looped else made
        forward = self.forward(made if roles.looped else [], own)
        return Passes(
            forward=forward,
            backward=self.backward(reads, changing if roles.looped else [], residuals),
            residual_bytes=tuple(state.sizes[v] for v in made),
            constant_bytes=tuple(state.sizes[v] for v in residuals if v in fixed),
            reads=reads,
            result_reads=tuple(result[v] for v in changing if v in result),
            alone=cache(partial(self.forward, ()) if made else lambda: forward),  # alike where nothing is kept
        )

    def forward(self, stacked: Sequence[int], own: Sequence[int] = ()) -> Pass:
        """The forward pass that writes residuals: into arrays, or as outputs of its own."""
        roles = self.roles
        self.state.steps[:] = self.before
        results = [self.move(WRITE_ROW, v) if row else v for v, row in zip(self.outputs, roles.result_row, strict=True)]
        results += [*(self.move(WRITE_ROW, v) for v in stacked), *own]
        carried = {self.outputs[j]: self.arguments[i] for i, j in roles.carried}
        return self.evaluate(self.arguments, results, carried)

    def backward(self, reads: Sequence[int], stacked: Sequence[int], residuals: Sequence[int]) -> Pass:
        """The backward pass, which reads rows of inputs and residuals out of arrays."""
        state, roles = self.state, self.roles
        rows = [(self.arguments[i], self.inputs[i]) for i in reads if roles.row[i]]
        rows += [(state.allocate(state.sizes[v]), v) for v in stacked]
        slices = [Step((array,), Kind.CHEAP, READ_ROW, None, (v,), unary=True) for array, v in rows]
        state.steps[:] = [*slices, *self.after]
        pairs = zip(self.gradients, roles.row, strict=True)
        results = [g if not row or g is None else self.move(WRITE_ROW, g) for g, row in pairs]
        carried = {g: self.sums[i] for i, g in enumerate(results) if g is not None and i in self.sums}
        for i, j in roles.carried:
            gradient, cotangent = results[i], self.arriving[j]
            if gradient is not None and cotangent is not None:
                carried[gradient] = cotangent
        sliced = {v for _, v in rows}
        given = [array for array, _ in rows] + [v for v in residuals if v not in sliced]
        given += [self.arguments[i] for i in reads if not roles.row[i]]
        given += [c for c in self.arriving if c is not None] + list(self.sums.values())
        return self.evaluate(given, [g for g in results if g is not None], carried)

    def evaluate(self, given: Sequence[int], wanted: Sequence[int], carried: dict[int, int]) -> Pass:
        """Evaluate the steps at hand."""
        looped = self.roles.looped
        around = sum(self.state.counters.values()) if looped else 0
        timeline = evaluate_program(self.state.program(given, wanted, carried, around), self.hardware)
        made = Pass(timeline.as_region(), timeline.flops)
        return made.longer(self.hardware.loop_seconds) if looped else made


def _depends_on(steps: Sequence[Step], constants: Sequence[int]) -> set[int]:
    """Return the values that steps make of constants alone, or of nothing."""
    found = set(constants)
    for step in steps:
        if found.issuperset(step.reads):
            found.update(step.writes)
    return found
