"""A traced program as a game: equations with seconds and bytes, in the order in which they are first due.

In: ``Program``, ``Rules``. Out: ``Game``: plain numbers, the one cost model that every contestant is judged by.

The model, per equation of the graph that the planner plans:

* *Values.* An equation's results are one value; they live and die together. Aliases (reshapes, names) are the value
  that they show. What depends on literals only, and arguments, are there all the time and cost nothing. So do
  parameters' gradients and the loss: the caller owns them in every schedule.
* *Stages.* Each equation is a stage: the forward equations in program order, then, in reverse, the backward equations
  of those that a cotangent reaches. In its stage an equation runs for the first time; before it, in the same stage, any
  forward equation that ran in an earlier stage may run again. Backward equations run once.
* *What an equation needs.* A forward equation its operands; a backward one its residuals (operands and results, as
  found in its VJP). Values may be dropped as soon as they have been read, at any time, and not before: while an
  equation runs, what it reads and what it writes are both there.
* *Gradients count.* The cotangent of a value is there from the first backward equation that adds to it until the
  backward equation of its maker has run; what is added to it is there beside it while that equation runs.
* *Seconds.* The roofline of each equation, by the rates of a ``Hardware``: its FLOPs, or the bytes that it reads and
  writes. The plain step's seconds are those of all forward and all backward equations, once each.

``EagerRules`` make the package's evaluator judge by the same rules, so that the planner plans for what it is judged by:
every forward equation is a kernel, all backward equations of one are another, and what it adds to a cotangent is added
in place.

Limits: no fusion, no writing over operands, no scratch memory inside a backward equation, no loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from remat_plan import _compat
from remat_plan.cost.backend import Backend, Rule
from remat_plan.cost.builder import Backward, FactEqn, Rules
from remat_plan.cost.facts import FactBook, Facts
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.rules import Kind, kind_of
from remat_plan.cost.steps import NO_REGION, RegionCost
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.structure import structure_of

HARDWARE = Hardware("referee", 1.0e11, 2.5e10, 2.0e10)
"""The rates of the CPU in the package's table."""

_UNFUSED = Backend((Rule("apart", "apart", "the game", lambda kernel: True),), reuses_outputs=False)

_NO_TIME_SECONDS = 1e-30
"""Of what takes no time: with none at all the evaluator would charge a step for the bytes that it moves."""


class Eager(FactBook):
    """The facts of equations where each is a kernel of its own that reads and writes memory."""

    def __init__(self) -> None:
        super().__init__(lambda eqn: NO_REGION, _UNFUSED, "referee")
        self._unfused: dict[int, Facts] = {}

    def of(self, eqn: Any) -> Facts:
        """The facts of an equation."""
        facts = super().of(eqn)
        if facts.kind not in (Kind.CHEAP, Kind.EXPENSIVE, Kind.REDUCE):
            return facts
        if id(eqn) not in self._unfused:  # facts keep their equation, so its id stays its own
            self._unfused[id(eqn)] = replace(facts, kind=Kind.OPAQUE, narrow=(), fills=(), by_name=False)
        return self._unfused[id(eqn)]

    def addition(self, aval: Any) -> Facts:
        """The facts of an addition of cotangents: it takes no time, and its result no bytes beside what it adds."""
        size, eqn = _compat.aval_bytes(aval), _compat.addition(aval)
        in_place = RegionCost(transient_bytes=-size, seconds=_NO_TIME_SECONDS)
        return Facts(eqn, "addition", None, Kind.OPAQUE, out_bytes=(size,), region=in_place)


class EagerRules(Rules):
    """The rules of a graph by which an equation's backward pass is one kernel, as it is in ``Game``."""

    def __init__(self, graph: Graph):
        super().__init__(graph, HARDWARE, Eager())
        self.backend = _UNFUSED
        self._kernels: dict[int, Backward] = {}

    def backward(self, op: Op) -> Backward:
        """The backward equations of an operation, as one."""
        if op.index not in self._kernels:
            self._kernels[op.index] = _OneKernel(self.facts, op, self.graph)
        return self._kernels[op.index]


class _OneKernel(Backward):
    """Backward equations as one that reads the cotangent and the residuals, and writes what it adds to cotangents."""

    def __init__(self, book: FactBook, op: Op, graph: Graph):
        need = graph.needs[op.kind]
        super().__init__(need, op, book)
        seconds = sum(_seconds(facts) for facts, _, _ in self.eqns)
        moving = [v for v, is_active in zip(op.operands, op.active, strict=True) if is_active]
        reached = [r for r, is_active in zip(need.reached, op.active, strict=True) if is_active]
        unused = 1 + max([*self.primal_inputs, *self.cotangents, *self.primal_outputs, *self.gradients])
        unused = max([unused, *[1 + o for e in self.eqns for o in (*e.operands, *e.outputs)]])
        self.gradients = tuple([unused + i if is_reached else -1 for i, is_reached in enumerate(reached)])
        written = [number for number in self.gradients if number >= 0]
        read = {op.operands[i] for i in need.operands}
        operands = [n for n, v in zip(self.primal_inputs, op.reads, strict=True) if v in read]
        operands += [self.primal_outputs[j] for j in need.outputs if self.primal_outputs[j] >= 0]
        facts = Facts(
            eqn=op.eqn,
            name="backward",
            inner=None,
            kind=Kind.OPAQUE,
            out_bytes=tuple(
                [graph.values[v].size_bytes for v, is_reached in zip(moving, reached, strict=True) if is_reached]
            ),
            region=RegionCost(seconds=max(seconds, _NO_TIME_SECONDS)),
        )
        self.eqns = [FactEqn(facts, (*self.cotangents, *operands), tuple(written))] if written else []


def make_rules(graph: Graph) -> Rules:
    """Return what the planner is to plan by."""
    return EagerRules(graph)


@dataclass(frozen=True, slots=True)
class Stage:
    """One equation that is due.

    Attributes:
        equation: the number of the forward equation in the game; -1 for a backward one.
        reads: values that a backward equation reads.
        held_bytes: cotangents that are there before it.
        during_bytes: cotangents that are there while it runs, those that it makes among them.
        op: the number of its operation in the graph.
    """

    equation: int
    reads: tuple[int, ...]
    held_bytes: int
    during_bytes: int
    op: int


@dataclass(frozen=True)
class Game:
    """A program in numbers. Value and forward equation of one number belong together.

    Attributes:
        reads: per forward equation the values that it reads.
        value_bytes, seconds: per forward equation.
        stages: what is due, in order.
        backward_seconds: of all backward equations.
        number: per operation of the graph that is an equation of the game, its number.
        producers: per value of the graph, the operation that makes it (-1: an argument).
    """

    reads: tuple[tuple[int, ...], ...]
    value_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    stages: tuple[Stage, ...]
    backward_seconds: float
    number: dict[int, int]
    producers: tuple[int, ...]

    @cached_property
    def wanted(self) -> tuple[frozenset[int], ...]:
        """Per stage the values that it or a later one may have a use for."""
        found: list[frozenset[int]] = []
        wanted: set[int] = set()
        for stage in reversed(self.stages):
            stack = list(self.reads[stage.equation] if stage.equation >= 0 else stage.reads)
            while stack:
                if (value := stack.pop()) not in wanted:
                    wanted.add(value)
                    stack.extend(self.reads[value])
            found.append(frozenset(wanted))
        return tuple(reversed(found))

    @property
    def plain_seconds(self) -> float:
        """Every equation once."""
        return sum(self.seconds) + self.backward_seconds

    @property
    def least_bytes(self) -> int:
        """What some equation needs by itself: less than this is never enough."""
        forward = [sum(self.value_bytes[v] for v in {i, *reads}) for i, reads in enumerate(self.reads)]
        backward = [s.during_bytes + sum(self.value_bytes[v] for v in s.reads) for s in self.stages]
        return max(*forward, *backward)


def make_game(rules: Rules) -> Game:
    """Return the game of a program without loops or branches.

    Raises:
        ValueError: a structure is in it.
    """
    graph = rules.graph
    if any(structure_of(op) is not None for op in graph.ops):
        raise ValueError("the referee knows no loops and branches; give it a function without them")
    values = _Values(graph, rules.borders.free)
    ops = values.makers
    reads = tuple(tuple(dict.fromkeys(values.of(op.reads))) for op in ops)
    due = [Stage(i, (), 0, 0, op.index) for i, op in enumerate(ops)]
    return Game(
        reads=reads,
        value_bytes=tuple(values.size(op) for op in ops),
        seconds=tuple(_seconds(rules.facts.of(op.eqn)) for op in ops),
        stages=(*due, *_backward_stages(graph, values)),
        backward_seconds=sum(_backward_seconds(rules, op) for op in graph.ops if op.differentiated),
        number=values.numbers,
        producers=tuple(v.producer for v in graph.values),
    )


class _Values:
    """Which equations make values of the game, and which value each value of the graph is."""

    def __init__(self, graph: Graph, free: frozenset[int]):
        self.graph = graph
        self.makers: list[Op] = []
        self.numbers: dict[int, int] = {}
        self.values: dict[int, int] = {}
        for op in graph.ops:
            if op.index in free:
                continue
            if kind_of(op.eqn) == Kind.ALIAS and len(op.outputs) == 1:
                shown = [self.values[v] for v in op.reads[-1:] if v in self.values]
                self.values.update((op.outputs[0], number) for number in shown)
                continue
            self.numbers[op.index] = len(self.makers)
            self.values.update(dict.fromkeys(op.outputs, len(self.makers)))
            self.makers.append(op)

    def of(self, values: Sequence[int]) -> list[int]:
        """The values of the game among values of the graph."""
        return [self.values[v] for v in values if v in self.values]

    def size(self, op: Op) -> int:
        """Bytes of what an equation makes; the program's results are the caller's."""
        return sum(self.graph.values[v].size_bytes for v in op.outputs if v not in self.graph.outputs)


def _backward_stages(graph: Graph, values: _Values) -> list[Stage]:
    """The backward equations in reverse order, with the cotangents that are there meanwhile."""
    stages = []
    alive: dict[int, int] = {}  # value of the game: bytes of its cotangent
    for op in reversed(graph.ops):
        if not op.differentiated:
            continue
        need = graph.needs[op.kind]
        read = [op.operands[i] for i in need.operands if op.operands[i] >= 0] + [op.outputs[j] for j in need.outputs]
        held = sum(alive.values())
        reached = values.of([v for v, r in zip(op.operands, need.reached, strict=True) if r and v >= 0])
        made = {number: values.size(values.makers[number]) for number in reached}
        alive |= made
        during = held + sum(made[number] for number in reached)
        if op.index in values.numbers:  # an alias hands its cotangent on
            alive.pop(values.numbers[op.index], None)
            stages.append(Stage(-1, tuple(dict.fromkeys(values.of(read))), held, during, op.index))
    return stages


def _backward_seconds(rules: Rules, op: Op) -> float:
    """Seconds of the backward equation of an operation."""
    return sum(facts.region.seconds for facts, _, _ in rules.backward(op).eqns)


def _seconds(facts: Facts) -> float:
    """Seconds of an equation."""
    if facts.kind == Kind.ALIAS:
        return 0.0
    atoms = [a for a in (*facts.eqn.invars, *facts.eqn.outvars) if not _compat.is_literal(a)]
    moved = sum(_compat.aval_bytes(a.aval) for a in dict.fromkeys(atoms))
    return HARDWARE.kernel_seconds(HARDWARE.work_seconds(facts.work, facts.flops), moved)
