"""Segments that save what is wanted and respect the user's constraints.

In: ``Graph``, ``Cuts`` (with ``Limits``), a range of equations, the values that a strategy would like to keep.
Out: ``Segment``. Every strategy that builds a schedule itself builds it from these.

What is wanted is reduced to what something reads: the backward pass, or an equation that runs again. What must not
run again is kept instead; what must not be kept is not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping

from remat_plan.cost.rules import Kind, kind_of
from remat_plan.graph.action import SAVE
from remat_plan.graph.records import MATRIX_PRIMITIVES, Graph, Op
from remat_plan.graph.schedule import Segment, as_is, saving
from remat_plan.graph.uses import residuals
from remat_plan.planning.cuts import Cuts


def is_product(op: Op) -> bool:
    """Tell whether an equation is a matrix product or a convolution."""
    return op.primitive in MATRIX_PRIMITIVES


def is_unbatched_product(op: Op) -> bool:
    """Tell whether an equation is a matrix product without batch dimensions, or a convolution."""
    return is_product(op) and (op.primitive != "dot_general" or not op.eqn.params["dimension_numbers"][1][0])


def backward_reads(graph: Graph, start: int, end: int) -> list[int]:
    """Return the values that the backward pass of equations ``start .. end-1`` reads, in order."""
    return list(dict.fromkeys(v for op in graph.ops[start:end] for v in residuals(graph, op)))


def saveable(graph: Graph, cuts: Cuts, start: int, end: int) -> list[int]:
    """Return the values made by equations ``start .. end-1`` that a segment may save, in order."""
    return [
        v
        for op in graph.ops[start:end]
        if op.index not in cuts.free
        for v in op.outputs
        if hasattr(graph.values[v].aval, "shape") and v not in cuts.limits.forbidden
    ]


def distinct_values(graph: Graph, cuts: Cuts, start: int, end: int) -> list[int]:
    """Return ``saveable`` without what is only another name or shape of a value before it."""
    return [
        v for v in saveable(graph, cuts, start, end) if kind_of(graph.ops[graph.values[v].producer].eqn) != Kind.ALIAS
    ]


def read_values(graph: Graph, start: int, end: int, kept: Container[int]) -> set[int]:
    """Return what the backward pass of one segment reads, and what runs again for it, where some values are kept."""
    read: set[int] = set()
    stack = backward_reads(graph, start, end)
    while stack:
        v = stack.pop()
        producer = graph.values[v].producer
        if v not in read and v not in kept and start <= producer < end:
            stack += graph.ops[producer].reads
        read.add(v)
    return read


def save_segment(
    graph: Graph, cuts: Cuts, start: int, end: int, wanted: Iterable[int] | Mapping[int, str] = ()
) -> Segment:
    """Return equations ``start .. end-1`` as one segment that saves what is wanted, read and allowed.

    What is used after it is stored anyway, so it is saved too; not what a region hands on at its end, of which the
    step of a loop would keep a second copy. ``wanted`` may have an action for each value.
    """
    by = wanted if isinstance(wanted, Mapping) else dict.fromkeys(wanted, SAVE)
    after = frozenset() if graph.is_region and end == len(graph.ops) else _used_after(cuts, end)
    asked, fixed = {*by, *after}, cuts.limits.fixed
    keep = {v for v in saveable(graph, cuts, start, end) if v in asked or graph.values[v].producer in fixed}
    return saving(start, end, {v: by.get(v, SAVE) for v in sorted(keep & read_values(graph, start, end, keep))})


def _used_after(cuts: Cuts, position: int) -> frozenset[int]:
    number = bisect_left(cuts.positions, position)
    return cuts.frontiers[number] if cuts.positions[number] == position else frozenset()


def plain_segment(graph: Graph, cuts: Cuts, start: int, end: int) -> Segment:
    """Return equations ``start .. end-1`` as they are.

    Where they make a value that must be recomputed, they become a segment that saves all others.
    """
    made = {v for op in graph.ops[start:end] for v in op.outputs}
    if cuts.limits.forbidden & made and not stays_plain(graph, cuts, start, end):
        return save_segment(graph, cuts, start, end, distinct_values(graph, cuts, start, end))
    return as_is(start, end)


def stays_plain(graph: Graph, cuts: Cuts, start: int, end: int) -> bool:
    """Whether equations ``start .. end-1`` must stay outside any segment (an effect, or a user's constraint)."""
    return any(i in graph.apart or i in cuts.limits.pinned for i in range(start, end))


def may_nest(graph: Graph, cuts: Cuts, start: int, end: int) -> bool:
    """Whether equations ``start .. end-1`` may run again as a whole."""
    return not stays_plain(graph, cuts, start, end) and not any(i in cuts.limits.fixed for i in range(start, end))
