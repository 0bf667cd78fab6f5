"""A scan as data: its trip count and the region of a step.

In: a ``scan`` of a graph. Out: ``Loop``: which operands are constants, carries and rows, and the graph of one step,
with the tangents and cotangents that reach it after any number of steps; whether steps need barriers.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan import _compat
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Part
from remat_plan.structures.regions import kept, region_of


@dataclass(frozen=True, slots=True)
class Loop:
    """One scan.

    Attributes:
        length: the trip count.
        reverse: whether it runs from the last row to the first.
        n_consts, n_carry: how many operands are constants of the body, and how many are carried; the others are
            inputs, one row a step.
        unroll: steps in one iteration of the compiled loop; 0: all of them.
        body: the graph of a step: constants, carry and rows to next carry and rows of the outputs.
    """

    length: int
    reverse: bool
    n_consts: int
    n_carry: int
    unroll: int
    body: Graph

    @property
    def carries(self) -> tuple[int, ...]:
        """The values of the body that are carried in."""
        return self.body.inputs[self.n_consts : self.n_consts + self.n_carry]

    @property
    def carry_bytes(self) -> int:
        """Bytes of what is carried from step to step."""
        return sum(self.body.values[v].size_bytes for v in self.carries)

    @property
    def rows(self) -> tuple[int, ...]:
        """The values of the body that are rows of the inputs."""
        return self.body.inputs[self.n_consts + self.n_carry :]


def needs_barriers(part: Part, slots: int, unroll: int) -> bool:
    """Tell whether the segments of a loop's steps need the barriers that ``jax.checkpoint`` has by default.

    They keep the compiler from merging what is run again with what was run before, and segments in their order. One
    segment that is all of a step (structures in it see to their own) needs neither: the two passes of steps are in
    loops of their own, but for a loop of one step, which the compiler puts in line, and for slots, whose tape is no
    scan. Of several steps in one iteration (``unroll``) it might run all again before it differentiates the first.
    Without barriers it fuses more.

    >>> from remat_plan.graph.schedule import saving
    >>> needs_barriers(Part(8, (saving(0, 9),)), 0, 1), needs_barriers(Part(1, (saving(0, 9),)), 0, 1)
    (False, True)
    """
    step = part.schedule[0] if len(part.schedule) == 1 else None
    alone = step is not None and step.checkpointed and not any(inner.checkpointed for inner in step.children)
    return not alone or part.count == 1 or bool(slots) or unroll != 1


def loop_of(graph: Graph, op: Op) -> Loop:
    """Return the loop of a scan; equal scans share one."""
    return kept(graph, op, lambda: _make_loop(graph, op))


def _make_loop(graph: Graph, op: Op) -> Loop:
    params = op.eqn.params
    n_consts, n_carry = _compat.scan_counts(op.eqn)
    moving, wanted = list(op.active), list(graph.needs[op.kind].given)
    while True:  # a carry that gets a tangent in one step has it in the next, a cotangent in the one before
        body = region_of(graph, params["jaxpr"], moving, wanted)
        carries = [(i, n_consts + i, body.inputs[n_consts + i]) for i in range(n_carry)]
        pushed = [place for i, place, _ in carries if not moving[place] and _moves(body, body.outputs[i])]
        pulled = [i for i, _, value in carries if not wanted[i] and body.active[value]]
        if not pushed and not pulled:
            return Loop(params["length"], params["reverse"], n_consts, n_carry, params["unroll"], body)
        for place in pushed:
            moving[place] = True
        for i in pulled:
            wanted[i] = True


def _moves(body: Graph, value: int) -> bool:
    """Tell whether an output of a body carries a tangent (literals have negative numbers)."""
    return value >= 0 and body.moving[value]
