"""Putting the program of a backward pass together from the VJPs of its equations.

In: ``Graph``, the VJPs that ``graph.needs`` traced once per class of equations. Out: ``ProgramBuilder``, which
appends forward and backward equations to a lowered program (``cost.program``); what is built of them is decided in
``profile`` (one run of blocks) and ``whole_step`` (a whole schedule).

No tracing happens here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeVar

from remat_plan.cost.facts import FactBook, Facts
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.links import FETCH, STORE
from remat_plan.cost.memory import fact_book
from remat_plan.cost.passes import Pull, Unit
from remat_plan.cost.platforms import backend_for
from remat_plan.cost.program import Lowering
from remat_plan.cost.recording import Recordings
from remat_plan.cost.rules import Kind, kind_of
from remat_plan.cost.steps import RegionCost, Step
from remat_plan.graph.action import action_of
from remat_plan.graph.flatten import FlatEqn, live_eqns
from remat_plan.graph.needs import Need
from remat_plan.graph.order import Order
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part, Segment, as_is
from remat_plan.graph.structure import Structure, structure_of
from remat_plan.graph.uses import Borders

Made = TypeVar("Made")


class FactEqn(NamedTuple):
    """An equation of a flattened VJP: its facts, the numbers of its operands (negative: literals) and outputs."""

    facts: Facts
    operands: tuple[int, ...]
    outputs: tuple[int, ...]


class Wiring(NamedTuple):
    """How the backward equations of one operation are connected: (number in the rule, value) each.

    ``outputs`` are those that the backward pass reads, ``gradients`` the operands that a cotangent reaches.
    """

    reads: tuple[tuple[int, int], ...]
    cotangents: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]
    gradients: tuple[tuple[int, int], ...]


class Backward:
    """The backward equations of one class of operations, ready to be lowered many times.

    They are of the VJP of one of them (see ``Need.vjp``), whose backward pass reads some of its ``outputs``.

    Attributes:
        eqns: the backward equations where outputs are there already.
        linearized, transposed: where they are not: those that make them and the residuals, those that follow.
        loose: numbers that no equation makes, with their types: constants.
        has_loops: whether a loop is among the equations that do not wait for a cotangent, or the operation is one: that
            is run with the forward pass, and what it makes is kept.
    """

    def __init__(self, need: Need, op: Op, book: FactBook):
        flat, outputs, n_operands, n_outputs = need.vjp, need.outputs, len(op.reads), len(op.outputs)
        assert flat is not None

        def known(eqns: Iterable[FlatEqn]) -> list[FactEqn]:
            return [FactEqn(book.of(e.eqn), e.operands, e.outputs) for e in eqns]

        self.outputs = outputs
        self.primal_inputs, self.cotangents = flat.inputs[:n_operands], flat.inputs[n_operands:]
        self.primal_outputs, self.gradients = flat.outputs[:n_outputs], flat.outputs[n_outputs:]
        available = {self.primal_outputs[j] for j in outputs if self.primal_outputs[j] >= 0}
        missing = [e for e in flat.eqns if available.isdisjoint(e.outputs)]
        self.eqns = known(live_eqns(missing, self.gradients))
        waiting = set(self.cotangents)
        for eqn in flat.eqns:
            if not waiting.isdisjoint(eqn.operands):
                waiting.update(eqn.outputs)
        live = live_eqns(flat.eqns, flat.outputs)
        self.linearized = known(e for e in live if waiting.isdisjoint(e.outputs))
        self.transposed = known(e for e in live if not waiting.isdisjoint(e.outputs))
        loops = [e for e in self.eqns if e.facts.kind == Kind.REGION and waiting.isdisjoint(e.outputs)]
        self.has_loops = kind_of(op.eqn) == Kind.REGION or bool(loops)
        made = {*flat.inputs, *[o for e in flat.eqns for o in e.outputs]}
        read = {o: a for e in flat.eqns for o, a in zip(e.operands, e.eqn.invars, strict=True) if o >= 0}
        self.loose = tuple([(number, atom.aval) for number, atom in read.items() if number not in made])

    def wiring(self, op: Op, need: Need) -> Wiring:
        """How they are connected to the values around one of the operations."""
        primal = self.primal_outputs
        arriving = [v for v, g in zip(op.outputs, need.given, strict=True) if g]
        moving = [(v, r) for v, a, r in zip(op.operands, op.active, need.reached, strict=True) if a]
        return Wiring(
            tuple(zip(self.primal_inputs, op.reads, strict=True)),
            tuple(zip(self.cotangents, arriving, strict=True)),
            tuple([(primal[j], op.outputs[j]) for j in self.outputs if primal[j] >= 0]),
            tuple([(number, v) for number, (v, reached) in zip(self.gradients, moving, strict=True) if reached]),
        )


class Rules:
    """What is shared by all programs of one graph on one hardware: backward equations, facts of equations.

    ``spread``: whether its values may lie on several devices along axes that their types do not show. ``identity``:
    equal for programs whose schedules cost the same, if anything is to be remembered of them.
    """

    def __init__(
        self,
        graph: Graph,
        hardware: Hardware,
        facts: FactBook | None = None,
        spread: bool = False,
        identity: Hashable = None,
    ):
        self.graph, self.hardware, self.spread, self.identity = graph, hardware, spread, identity
        self.backend = backend_for(hardware)
        self.facts = fact_book(hardware) if facts is None else facts
        self.borders = Borders(graph)
        self.order = Order(graph, self.borders.free)
        self._made: dict[Any, Any] = {}
        self._backward: dict[int, Backward] = {}
        self._wiring: dict[int, Wiring] = {}
        self.recordings = Recordings()
        self.is_flat = all(structure_of(op) is None and kind_of(op.eqn) != Kind.REGION for op in graph.ops)

    def inside(self, region: Graph, is_body: bool = True) -> Rules:
        """The rules of a region inside a structure of this graph: of the body of a loop, of a branch, or of a call."""
        spread = self.spread and region.in_place is None  # inside a map over the devices all is on one
        facts = self.bodies_facts if is_body else self.facts
        # regions are kept, so their ids stay their own
        return self.once(("inside", id(region)), lambda: Rules(region, self.hardware, facts, spread))

    @property
    def bodies_facts(self) -> FactBook:
        """The facts of equations in bodies of loops and in branches."""
        if self.facts.is_body:
            return self.facts
        return self.once("facts of bodies", lambda: fact_book(self.hardware, is_body=True))

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """Return what was made under a key before, of a structure its own; make it where nothing was."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def unit(self, op: Op, choice: Choice | None) -> Unit | None:
        """A structure run by choice (None: as it is); None for an equation that is none."""
        structure = structure_of(op)
        if structure is None:
            return None

        def make() -> Unit:
            return structure.unit(self, op, as_it_is(structure, self.graph, op) if choice is None else choice)

        return self.once(("unit", op.kind, choice, self.arriving(op)), make)

    def arriving(self, op: Op) -> tuple[bool, ...]:
        """Which outputs of an operation are given a cotangent."""
        return self.graph.needs[op.kind].given

    def backward(self, op: Op) -> Backward:
        """The backward equations of an operation."""
        if op.kind not in self._backward:
            self._backward[op.kind] = Backward(self.graph.needs[op.kind], op, self.facts)
        return self._backward[op.kind]

    def wiring(self, op: Op) -> Wiring:
        """How its backward equations are connected to the values around an operation."""
        if op.index not in self._wiring:
            self._wiring[op.index] = self.backward(op).wiring(op, self.graph.needs[op.kind])
        return self._wiring[op.index]


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
        residuals: per operation that was linearized, the numbers that its backward equations find.
        planned: whether the program has segments: gradients of max-pools are others there.
        pulls: per structure or split segment that was linearized, what appends its backward pass.
    """

    def __init__(self, rules: Rules, state: Lowering | None = None, stored: bool = False):
        self.rules, self.graph, self.stored, self.planned = rules, rules.graph, stored, False
        self.state = Lowering(rules.facts) if state is None else state
        self.buffers: dict[int, int] = {}
        self.cotangents: dict[int, int] = {}
        self.residuals: dict[int, dict[int, int]] = {}
        self.pulls: dict[int | Segment, Pull] = {}

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
        elif op.differentiated and (self.stored or self.rules.backward(op).has_loops):
            rule = self.rules.backward(op)
            env = {number: self.buffer(v) for number, v in self.rules.wiring(op).reads}
            self.lower(rule, rule.linearized, env)
            for v, number in zip(op.outputs, rule.primal_outputs, strict=True):
                if v not in self.buffers:
                    self.buffers[v] = env[number] if number >= 0 else self.constant(self.graph.values[v].aval)
            self.residuals[op.index] = env
        else:
            self.forward(op)

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
        rule, wiring = self.rules.backward(op), self.rules.wiring(op)
        eqns, env = rule.transposed, self.residuals.pop(op.index, None)
        if env is None:
            eqns, env = rule.eqns, {number: self.buffer(v) for number, v in wiring.reads}
        for number, v in wiring.cotangents:
            there = v in self.cotangents
            env[number] = self.cotangents[v] if there else self.constant(self.graph.values[v].aval)  # zero: folded away
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
        whole_bytes, hardware = record.size_bytes, self.rules.hardware
        kept_bytes, seconds = how.device_bytes(whole_bytes), how.seconds(whole_bytes, hardware)
        if kept_bytes == whole_bytes and not seconds:
            return number
        name, size = (FETCH, whole_bytes) if fetch else (STORE, kept_bytes)
        cost = RegionCost(seconds=seconds)
        if how.on_host:
            cost = RegionCost(host_bytes=0 if fetch else whole_bytes, link_seconds=hardware.link_seconds(whole_bytes))
        kind = Kind.OPAQUE if seconds or how.on_host else Kind.CHEAP
        eqn = self.graph.ops[record.producer].eqn if record.producer >= 0 else None
        step = Step((number,), kind, name, eqn, region=cost)
        step.unary = True
        made = self.state.emit(None, step, (size,))[0]
        if how.on_host and not fetch:
            self.state.hosted.add(made)
        return made

    def accumulate(self, value: int, gradient: int | None) -> None:
        """Add a gradient to a value's cotangent."""
        if gradient is None:
            return
        if value in self.cotangents:
            addition = self.rules.facts.addition(self.graph.values[value].aval)
            self.cotangents[value] = self.state.equation(addition, [self.cotangents[value], gradient])[0]
        else:
            self.cotangents[value] = gradient
