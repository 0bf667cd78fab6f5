"""The body of a scan as a graph of its own.

In: a ``scan`` of a graph. Out: ``Loop``: trip count, which operands are constants, carries and inputs, and the graph of
one step, with the tangents that reach it after any number of steps.

Every ``lax.scan`` that is differentiated can be planned, at any depth: the graph of a body holds scans too.

Limits: scans with effects, and those over named axes, stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan import _compat
from remat_plan.graph.build import build
from remat_plan.graph.records import Graph, Op


@dataclass(frozen=True, slots=True)
class Loop:
    """One scan.

    Attributes:
        length: the trip count.
        reverse: whether it runs from the last row to the first.
        n_consts, n_carry: how many operands are constants of the body, and how many are carried; the others are
            inputs, one row a step.
        body: the graph of a step: constants, carry and rows to next carry and rows of the outputs.
    """

    length: int
    reverse: bool
    n_consts: int
    n_carry: int
    body: Graph

    @property
    def carries(self) -> tuple[int, ...]:
        """The values of the body that are carried in."""
        return self.body.inputs[self.n_consts : self.n_consts + self.n_carry]

    @property
    def rows(self) -> tuple[int, ...]:
        """The values of the body that are rows of the inputs."""
        return self.body.inputs[self.n_consts + self.n_carry :]


def is_loop(op: Op) -> bool:
    """Tell whether an operation is a scan that can be planned."""
    if op.primitive != "scan" or op.effectful or not op.differentiated or _compat.named_axes(op.eqn):
        return False
    return op.eqn.params["length"] > 1


def loop_of(graph: Graph, op: Op) -> Loop:
    """Return the loop of a scan; equal scans share one."""
    if op.kind not in graph.bodies:
        graph.bodies[op.kind] = _make_loop(graph, op)
    return graph.bodies[op.kind]


def _make_loop(graph: Graph, op: Op) -> Loop:
    params = op.eqn.params
    n_consts, n_carry = _compat.scan_counts(op.eqn)
    moving = list(op.active)
    while True:  # a carry that gets a tangent in one step has it in the next
        body = build(params["jaxpr"], tuple(moving), graph.keep_remat)
        carries = range(n_consts, n_consts + n_carry)
        more = [i for i in carries if not moving[i] and body.outputs[i - n_consts] in _tangents(body)]
        if not more:
            return Loop(params["length"], params["reverse"], n_consts, n_carry, body)
        for i in more:
            moving[i] = True


def _tangents(body: Graph) -> set[int]:
    """Return the values of a body that carry a tangent."""
    found = set(body.differentiated_inputs)
    for op in body.ops:
        if any(op.active):
            found.update(o for o, a in zip(op.outputs, body.needs[op.kind].active_outputs, strict=True) if a)
    return found
