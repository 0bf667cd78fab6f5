"""Putting the program of a backward pass together from the VJPs of its equations.

In: ``Graph``, the VJPs that ``graph.needs`` traced once per class of equations. Out: ``ProgramBuilder``, which
appends forward and backward equations to a lowered program (``cost.program``); what is built of them is decided in
``profile`` (one run of blocks) and ``whole_step`` (a whole schedule).

No tracing happens here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from remat_plan.cost.facts import FactBook, Facts
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import fact_book
from remat_plan.cost.passes import Pull, Unit
from remat_plan.cost.platforms import backend_for
from remat_plan.cost.program import Lowering
from remat_plan.cost.recording import Recordings
from remat_plan.cost.rules import Kind, kind_of
from remat_plan.cost.steps import RegionCost, Step
from remat_plan.graph.action import action_of
from remat_plan.graph.flatten import Flat, FlatEqn, live_eqns
from remat_plan.graph.needs import Need
from remat_plan.graph.order import Order
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part, as_is
from remat_plan.graph.structure import Structure, structure_of
from remat_plan.graph.uses import Borders

Made = TypeVar("Made")


class Backward:
    """The backward equations of one class of operations, ready to be lowered many times.

    Args:
        flat: the VJP of one of them; see ``Need.vjp``.
        outputs: which of its outputs the backward pass reads.
        n_operands, n_outputs: how many it has.
        book: the facts of equations.

    Attributes:
        eqns: the backward equations where outputs are there already.
        linearized, transposed: where they are not: those that make them and the residuals, those that follow.
        loose: numbers that no equation makes, with their types: constants.
    """

    def __init__(self, flat: Flat, outputs: tuple[int, ...], n_operands: int, n_outputs: int, book: FactBook):
        self.primal_inputs = flat.inputs[:n_operands]
        self.cotangents = flat.inputs[n_operands:]
        self.primal_outputs = flat.outputs[:n_outputs]
        self.gradients = flat.outputs[n_outputs:]
        self.outputs = outputs
        available = {self.primal_outputs[j] for j in outputs if self.primal_outputs[j] >= 0}
        linearized, transposed = _split(flat.eqns, self.cotangents, self.primal_outputs, self.gradients)
        self.eqns = _with_facts(_until(flat.eqns, self.gradients, available), book)
        self.linearized, self.transposed = _with_facts(linearized, book), _with_facts(transposed, book)
        made = {*flat.inputs, *[o for e in flat.eqns for o in e.outputs]}
        read = {o: a for e in flat.eqns for o, a in zip(e.operands, e.eqn.invars, strict=True) if o >= 0}
        self.loose = tuple([(number, atom.aval) for number, atom in read.items() if number not in made])


class FactEqn(NamedTuple):
    """An equation of a flattened VJP: its facts, the numbers of its operands (negative: literals) and outputs."""

    facts: Facts
    operands: tuple[int, ...]
    outputs: tuple[int, ...]


def _with_facts(eqns: list[FlatEqn], book: FactBook) -> list[FactEqn]:
    return [FactEqn(book.of(e.eqn), e.operands, e.outputs) for e in eqns]


class Wiring(NamedTuple):
    """How the backward equations of one operation are connected: (number in the rule, value) each.

    Attributes:
        reads: its operands.
        cotangents: its outputs that are given one.
        outputs: those of its outputs that the backward pass reads.
        gradients: its operands that a cotangent reaches.
    """

    reads: tuple[tuple[int, int], ...]
    cotangents: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]
    gradients: tuple[tuple[int, int], ...]


def _wire(rule: Backward, op: Op, need: Need) -> Wiring:
    arriving = [v for v, g in zip(op.outputs, need.given, strict=True) if g]
    moving = [(v, r) for v, a, r in zip(op.operands, op.active, need.reached, strict=True) if a]
    return Wiring(
        tuple(zip(rule.primal_inputs, op.reads, strict=True)),
        tuple(zip(rule.cotangents, arriving, strict=True)),
        tuple([(rule.primal_outputs[j], op.outputs[j]) for j in rule.outputs if rule.primal_outputs[j] >= 0]),
        tuple([(number, v) for number, (v, reached) in zip(rule.gradients, moving, strict=True) if reached]),
    )


def _until(eqns: list[FlatEqn], wanted: tuple[int, ...], available: set[int]) -> list[FlatEqn]:
    """Keep the equations that reach ``wanted`` without making what is ``available`` already."""
    cut = [e for e in eqns if not any(o in available for o in e.outputs)]
    return live_eqns(cut, wanted)


def _split(
    eqns: list[FlatEqn], cotangents: tuple[int, ...], outputs: tuple[int, ...], gradients: tuple[int, ...]
) -> tuple[list[FlatEqn], list[FlatEqn]]:
    """Return the equations that make outputs and residuals, and those that wait for cotangents."""
    waiting = set(cotangents)
    for eqn in eqns:
        if any(o in waiting for o in eqn.operands):
            waiting.update(eqn.outputs)
    live = live_eqns(eqns, (*outputs, *gradients))
    late = [e for e in live if any(o in waiting for o in e.outputs)]
    return [e for e in live if not any(o in waiting for o in e.outputs)], late


class Rules:
    """What is shared by all programs of one graph on one hardware: backward equations, facts of equations."""

    def __init__(self, graph: Graph, hardware: Hardware, facts: FactBook | None = None):
        self.graph, self.hardware = graph, hardware
        self.backend = backend_for(hardware)
        self.facts = fact_book(hardware) if facts is None else facts
        self.borders = Borders(graph)
        self.order = Order(graph, self.borders.free)
        self._backwards: dict[int, Backward] = {}
        self._inside: dict[int, Rules] = {}
        self._units: dict[Any, Unit] = {}
        self._wirings: dict[tuple[int, int], Wiring] = {}
        self._once: dict[Any, Any] = {}
        self.recordings = Recordings()
        self.is_flat = all(structure_of(op) is None and kind_of(op.eqn) != Kind.REGION for op in graph.ops)

    def inside(self, region: Graph) -> Rules:
        """The rules of a region inside a structure of this graph."""
        if id(region) not in self._inside:  # regions are kept, so their ids stay their own
            self._inside[id(region)] = Rules(region, self.hardware, self.facts)
        return self._inside[id(region)]

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """Return what a structure made under a key of its own before; make it where it did not."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    def unit(self, op: Op, choice: Choice | None) -> Unit | None:
        """A structure run by choice (None: as it is); None for an equation that is none."""
        structure = structure_of(op)
        if structure is None:
            return None
        key = op.kind, choice, self.arriving(op)
        if key not in self._units:
            made = choice if choice is not None else as_it_is(structure, self.graph, op)
            self._units[key] = structure.unit(self, op, made)
        return self._units[key]

    def arriving(self, op: Op) -> tuple[bool, ...]:
        """Which outputs of an operation are given a cotangent."""
        return self.graph.needs[op.kind].given

    def lowering(self) -> Lowering:
        """An empty program."""
        return Lowering(self.facts)

    def backward(self, op: Op) -> Backward:
        """The backward equations of an operation."""
        if op.kind not in self._backwards:
            need = self.graph.needs[op.kind]
            self._backwards[op.kind] = Backward(need.vjp, need.outputs, len(op.reads), len(op.outputs), self.facts)
        return self._backwards[op.kind]

    def wiring(self, rule: Backward, op: Op) -> Wiring:
        """How a rule is connected to the values around an operation."""
        key = op.index, id(rule)  # rules are kept, so their ids stay their own
        if key not in self._wirings:
            self._wirings[key] = _wire(rule, op, self.graph.needs[op.kind])
        return self._wirings[key]


def as_it_is(structure: Structure, graph: Graph, op: Op) -> Choice:
    """Return the choice that runs a structure as JAX runs it by itself."""
    regions, counts = structure.regions(graph, op), structure.run_counts(op)
    return Choice(tuple(Part(int(n), (as_is(0, len(r.ops)),)) for r, n in zip(regions, counts, strict=True)))


class ProgramBuilder:
    """Appends equations to a lowered program.

    Attributes:
        state: the program so far.
        stored: whether residuals are written into arrays between the passes, as a loop stacks them, so that the
            compiler cannot make them again where they are read.
        buffers: per value of the graph, its number in the program.
        cotangents: per value, the number of its cotangent, as far as it is added up.
        residuals: per operation that was linearized, its rule and the numbers that its backward equations find.
        planned: whether the program has segments: gradients of max-pools are others there.
        pulls: per structure that was linearized, what appends its backward pass.
    """

    def __init__(self, rules: Rules, state: Lowering | None = None, stored: bool = False):
        self.rules, self.graph, self.stored, self.planned = rules, rules.graph, stored, False
        self.state = rules.lowering() if state is None else state
        self.buffers: dict[int, int] = {}
        self.cotangents: dict[int, int] = {}
        self.residuals: dict[int, tuple[Backward, dict[int, int]]] = {}
        self.pulls: dict[int, Pull] = {}

    def buffer(self, value: int) -> int:
        """The number of a value that an equation reads."""
        return self.buffers[value]

    def constant(self, aval: Any) -> int:
        """A number for a literal, a constant or a zero: there already, counts nothing."""
        return self.state.allocate(0)

    def linearize(self, op: Op, choice: Choice | None = None) -> None:
        """Run one operation as JAX does where its backward pass follows; a structure by choice.

        The residuals of control flow come out of the same loop as its outputs, so it is not run again for them. Those
        of other operations the compiler makes again from what is there, inside the kernels that read them, unless they
        are ``stored``.
        """
        unit = self.rules.unit(op, choice)
        if unit is not None:
            inputs = [
                self.buffer(v) if v >= 0 else self.constant(a.aval)
                for v, a in zip(op.operands, op.eqn.invars, strict=True)
            ]
            outputs, self.pulls[op.index] = unit.linearize(self.state, inputs)
            for v, number in zip(op.outputs, outputs, strict=True):
                self.buffers.setdefault(v, number)
        elif op.differentiated and (self.stored or kind_of(op.eqn) == Kind.REGION):
            self.linearize_by(self.rules.backward(op), op)
        else:
            self.forward(op)

    def linearize_by(self, rule: Backward, op: Op) -> None:
        """Run the forward equations of a rule and keep what its backward equations read."""
        env = {number: self.buffer(v) for number, v in self.rules.wiring(rule, op).reads}
        self.lower(rule, rule.linearized, env)
        for v, number in zip(op.outputs, rule.primal_outputs, strict=True):
            if v not in self.buffers:
                self.buffers[v] = env[number] if number >= 0 else self.constant(self.graph.values[v].aval)
        self.residuals[op.index] = rule, env

    def forward(self, op: Op) -> None:
        """Run one operation; outputs that have a number already (they are saved) keep it."""
        buffers = self.buffers
        operands = [self.buffer(v) if v >= 0 else None for v in op.operands]
        made = self.state.equation(self.rules.facts.of(op.eqn), operands)
        for v, number in zip(op.outputs, made, strict=True):
            if v not in buffers:
                buffers[v] = number

    def backward(self, op: Op) -> None:
        """Run the backward equations of one operation and add to the cotangents of its operands."""
        if op.index in self.pulls:
            found = self.pulls.pop(op.index)([self.cotangents.get(v) for v in op.outputs])
            for v, active, gradient in zip(op.operands, op.active, found, strict=True):
                if active:
                    self.accumulate(v, gradient)
            return
        if op.index in self.residuals:
            rule, env = self.residuals.pop(op.index)
            wiring, eqns = self.rules.wiring(rule, op), rule.transposed
        else:
            rule = self.rules.backward(op)
            wiring, eqns = self.rules.wiring(rule, op), rule.eqns
            env = {number: self.buffer(v) for number, v in wiring.reads}
        for number, v in wiring.cotangents:
            if v in self.cotangents:
                env[number] = self.cotangents[v]
            else:
                env[number] = self.constant(self.graph.values[v].aval)  # zero: folded away
        for number, v in wiring.outputs:
            if number not in env:
                env[number] = self.buffer(v)
        self.lower(rule, eqns, env)
        for number, v in wiring.gradients:
            self.accumulate(v, env.get(number))

    def lower(self, rule: Backward, eqns: list[FactEqn], env: dict[int, int]) -> None:
        """Lower equations of a rule; ``env`` holds what they read and receives their results."""
        for number, aval in rule.loose:
            if number not in env:
                env[number] = self.constant(aval)
        equation, self.state.planned = self.state.equation, self.planned
        for facts, operands, outputs in eqns:
            env.update(zip(outputs, equation(facts, [env.get(o) for o in operands]), strict=False))

    def kept_number(self, value: int, action: str) -> int:
        """A number for what an action keeps of a value."""
        return self.state.allocate(action_of(action).device_bytes(self.graph.values[value].size_bytes))

    def move(self, value: int, action: str, number: int, fetch: bool = False) -> int:
        """Store a value where its action keeps it, or fetch it; what stays on the device as it is keeps its number."""
        record, how = self.graph.values[value], action_of(action)
        kept_bytes, seconds = how.device_bytes(record.size_bytes), how.seconds(record.size_bytes, self.rules.hardware)
        if kept_bytes == record.size_bytes and not seconds:
            return number
        name, size = ("fetch", record.size_bytes) if fetch else ("store", kept_bytes)
        kind = Kind.OPAQUE if seconds else Kind.CHEAP
        step = Step((number,), kind, name, self.graph.ops[record.producer].eqn, region=RegionCost(seconds=seconds))
        step.unary = True
        return self.state.emit(None, step, (size,))[0]

    def accumulate(self, value: int, gradient: int | None) -> None:
        """Add a gradient to a value's cotangent."""
        if gradient is None:
            return
        if value in self.cotangents:
            addition = self.rules.facts.addition(self.graph.values[value].aval)
            self.cotangents[value] = self.state.equation(addition, [self.cotangents[value], gradient])[0]
        else:
            self.cotangents[value] = gradient
