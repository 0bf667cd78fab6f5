"""A scan as data: its trip count and the region of a step.

In: a ``scan`` of a graph. Out: ``Loop``: which operands are constants, carries and rows, and the graph of one step,
with the tangents and cotangents that reach it after any number of steps; whether steps need barriers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat_plan import _compat
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part
from remat_plan.graph.structure import Trips
from remat_plan.structures.regions import kept, region_of


@dataclass(frozen=True, slots=True)
class Loop(Trips):
    """One scan. Its first ``n_consts`` operands are constants of the body; then come what is carried and the rows.

    ``reverse``: from the last row to the first. ``unroll``: steps in one iteration of the compiled loop; 0: all of
    them.
    """

    n_consts: int
    reverse: bool
    unroll: int

    @property
    def n_carry(self) -> int:
        """How many values are carried."""
        return len(self.carried)

    @property
    def first_row(self) -> int:
        """The first operand that is an input, and the first value of the body that is a row."""
        return self.n_consts + len(self.carried)


def narrowed_rows(loop: Loop) -> dict[int, float]:
    """Return the operands of a scan each of whose rows is only converted to a smaller type, with the share of its bytes
    that is left.

    Weights in float32 are, of a model that computes in bfloat16. Of a scan inside another these are the rows of one
    step of the outer one, though XLA:TPU converts those of all its steps.
    """
    body, first = loop.body, loop.first_row
    rows = {value: first + i for i, value in enumerate(body.inputs[first:]) if value not in body.outputs}
    found: dict[int, set[float]] = {value: set() for value in rows}
    for op in body.ops:
        share = _left_by(op)
        for value in found.keys() & set(op.reads):
            found[value].add(share)
    return {rows[value]: shares.pop() for value, shares in found.items() if len(shares) == 1 and max(shares) < 1}


def _left_by(op: Op) -> float:
    """The share of bytes that a conversion leaves; 1 for other operations."""
    if op.eqn.primitive.name != "convert_element_type":
        return 1.0
    return op.eqn.outvars[0].aval.dtype.itemsize / op.eqn.invars[0].aval.dtype.itemsize


def needs_barriers(part: Part, choice: Choice, unroll: int) -> bool:
    """Tell whether the segments of a loop's steps need the barriers that ``jax.checkpoint`` has by default.

    They keep the compiler from merging what is run again with what was run before, and segments in their order. One
    segment that is all of a step (structures in it see to their own) needs neither: the two passes of steps are in
    loops of their own, but for a loop of one step, which the compiler puts in line, for slots, whose tape is no scan,
    and where each step's gradient is made right behind it. Of several steps in one iteration (``unroll``) it might run
    all again before it differentiates the first. Without barriers it fuses more.

    >>> from remat_plan.graph.schedule import saving
    >>> one, many = (Choice((Part(n, (saving(0, 9),)),)) for n in (1, 8))
    >>> needs_barriers(many.parts[0], many, 1), needs_barriers(one.parts[0], one, 1)
    (False, True)
    >>> needs_barriers(many.parts[0], replace(many, gradient_first=True), 1)
    True
    """
    step = part.schedule[0] if len(part.schedule) == 1 else None
    alone = step is not None and step.checkpointed and not any(inner.checkpointed for inner in step.children)
    return not alone or part.count == 1 or bool(choice.slots) or choice.gradient_first or unroll != 1


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
        moved = [v >= 0 and body.moving[v] for v in body.outputs]  # literals have negative numbers
        pushed = [place for i, place, _ in carries if not moving[place] and moved[i]]
        pulled = [i for i, _, value in carries if not wanted[i] and body.active[value]]
        if not pushed and not pulled:
            carried = tuple((value, body.outputs[i]) for i, _, value in carries)
            size = sum(body.values[value].size_bytes for value, _ in carried)
            body = replace(body, carried=tuple([value for value, _ in carried]))
            how = n_consts, params["reverse"], params["unroll"]
            return Loop(params["length"], size, body, carried, tuple(wanted), *how)
        for place in pushed:
            moving[place] = True
        for i in pulled:
            wanted[i] = True
