"""Putting the program of a backward pass together from the VJPs of its equations.

In: ``Graph``, the VJPs that ``graph.needs`` traced once per class of equations. Out: ``ProgramBuilder``, which
appends forward and backward equations to a lowered program (``cost.program``); what is built of them is decided in
``profile`` (one run of blocks) and ``whole_step`` (a whole schedule).

No tracing happens here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

from remat_plan.cost.backend import model_for
from remat_plan.cost.facts import FactBook, Facts
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import fact_book
from remat_plan.cost.program import Lowering
from remat_plan.cost.rules import Kind, kind_of
from remat_plan.graph.flatten import Flat, FlatEqn, live_eqns
from remat_plan.graph.loops import loop_of
from remat_plan.graph.needs import Need, trace_vjp
from remat_plan.graph.records import Graph, Op
from remat_plan.rewrite.emit import planned_loop
from remat_plan.rewrite.segments import LoopPlan

NO_EQN = SimpleNamespace(effects=(), primitive=SimpleNamespace(name="hold"), outvars=(), params={})
"""Stands for the equation of steps that no equation makes."""


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

    def __init__(self, graph: Graph, hardware: Hardware):
        self.graph, self.hardware = graph, hardware
        self.model = model_for(hardware)
        self.facts = fact_book(hardware)
        self._backwards: dict[int, Backward] = {}
        self._inside: dict[int, Rules] = {}
        self._loops: dict[tuple[int, LoopPlan], Backward] = {}
        self._wirings: dict[tuple[int, int], Wiring] = {}
        self._additions: dict[Any, Facts] = {}

    def inside(self, op: Op) -> Rules:
        """The rules of the body of a scan."""
        if op.kind not in self._inside:
            self._inside[op.kind] = Rules(loop_of(self.graph, op).body, self.hardware)
        return self._inside[op.kind]

    def lowering(self) -> Lowering:
        """An empty program."""
        return Lowering(self.facts)

    def backward(self, op: Op) -> Backward:
        """The backward equations of an operation."""
        if op.kind not in self._backwards:
            need = self.graph.needs[op.kind]
            self._backwards[op.kind] = Backward(need.vjp, need.outputs, len(op.reads), len(op.outputs), self.facts)
        return self._backwards[op.kind]

    def loop(self, op: Op, plan: LoopPlan) -> Backward:
        """The backward equations of a scan under a plan (traced on first use)."""
        key = op.kind, plan
        if key not in self._loops:
            run = planned_loop(self.graph, op, plan)
            given = self.graph.needs[op.kind].given
            flat = trace_vjp(run, op.eqn, op.operands, self.graph.literals, op.active, given)
            self._loops[key] = Backward(flat, (), len(op.reads), len(op.outputs), self.facts)
        return self._loops[key]

    def wiring(self, rule: Backward, op: Op) -> Wiring:
        """How a rule is connected to the values around an operation."""
        key = op.index, id(rule)  # rules are kept, so their ids stay their own
        if key not in self._wirings:
            self._wirings[key] = _wire(rule, op, self.graph.needs[op.kind])
        return self._wirings[key]

    def addition(self, aval: Any) -> Facts:
        """The facts of an equation that adds two cotangents of one type."""
        if aval not in self._additions:
            self._additions[aval] = self.facts.of(_Addition(aval))
        return self._additions[aval]


class _Atom:
    """A variable of an equation that no jaxpr holds."""

    def __init__(self, aval: Any):
        self.aval = aval


class _Addition:
    """Looks like JAX's equation ``add_any``, as far as lowering looks at it."""

    primitive = SimpleNamespace(name="add_any")
    effects = ()
    params: ClassVar[dict[str, Any]] = {}

    def __init__(self, aval: Any):
        self.invars = (_Atom(aval), _Atom(aval))
        self.outvars = (_Atom(aval),)


class ProgramBuilder:
    """Appends equations to a lowered program.

    Attributes:
        state: the program so far.
        buffers: per value of the graph, its number in the program.
        cotangents: per value, the number of its cotangent, as far as it is added up.
        residuals: per operation that was linearized, its rule and the numbers that its backward equations find.
    """

    def __init__(self, rules: Rules):
        self.rules, self.graph = rules, rules.graph
        self.state = rules.lowering()
        self.buffers: dict[int, int] = {}
        self.cotangents: dict[int, int] = {}
        self.residuals: dict[int, tuple[Backward, dict[int, int]]] = {}

    def buffer(self, value: int) -> int:
        """The number of a value that an equation reads."""
        return self.buffers[value]

    def scalar(self, atom: Any) -> int:
        """A number for a literal or a constant: there already, counts nothing."""
        number = self.state.new(atom.aval)
        self.state.sizes[number] = 0
        return number

    def linearize(self, op: Op) -> None:
        """Run one operation as JAX does where its backward pass follows.

        Only control flow differs from ``forward``: its residuals come out of the same loop as its outputs, so it
        is not run again for them.
        """
        if op.differentiated and kind_of(op.eqn) == Kind.REGION:
            self.linearize_by(self.rules.backward(op), op)
        else:
            self.forward(op)

    def linearize_by(self, rule: Backward, op: Op) -> None:
        """Run the forward equations of a rule and keep what its backward equations read."""
        env = {number: self.buffer(v) for number, v in self.rules.wiring(rule, op).reads}
        self.lower(rule, rule.linearized, env)
        for v, number in zip(op.outputs, rule.primal_outputs, strict=True):
            if v not in self.buffers:
                self.buffers[v] = env[number] if number >= 0 else self.scalar(self.graph.values[v])
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
                env[number] = self.scalar(self.graph.values[v])  # zero: folded away
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
                env[number] = self.scalar(SimpleNamespace(aval=aval))
        equation = self.state.equation
        for facts, operands, outputs in eqns:
            env.update(zip(outputs, equation(facts, [env.get(o) for o in operands]), strict=False))

    def accumulate(self, value: int, gradient: int | None) -> None:
        """Add a gradient to a value's cotangent."""
        if gradient is None:
            return
        if value in self.cotangents:
            addition = self.rules.addition(self.graph.values[value].aval)
            self.cotangents[value] = self.state.equation(addition, [self.cotangents[value], gradient])[0]
        else:
            self.cotangents[value] = gradient
