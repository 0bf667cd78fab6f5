"""The order of recomputations: one segment after another.

In: ``Graph``, the segments of one level. Out: per segment, the values that pass through it so that its backward pass
waits for that of the next one; which loops take their memory when they are reached (see ``rewrite.late``).

The backward pass of a segment starts when the cotangents of what it returns are there (``jax.checkpoint`` puts a
barrier over its inputs *and* these cotangents). In a chain the next segment makes them. Of branches side by side they
are all there at once, and a compiler is free to recompute every branch before it differentiates the first. So what the
next segment reads passes through this one: its cotangents, which the next segment's backward pass makes, then enter the
barrier. Nothing is computed for it, and all transformations know what it is: an identity inside ``jax.checkpoint``.

Limits: planned loops have no barrier of their own, so one does not wait for what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_plan import _compat
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Segment, is_planned
from remat_plan.graph.structure import is_loop, structure_of

Ordered = list[tuple[Segment, tuple[int, ...]]]


class Order:
    """The order of a graph's segments; what two of them that follow each other wait for is derived once.

    Args:
        graph: the program.
        free: operations that every segment makes for itself.
    """

    def __init__(self, graph: Graph, free: frozenset[int]):
        self.graph, self.free = graph, free
        self._known: dict[tuple[int, int, int, int], tuple[int, ...]] = {}
        loops = [op for op in graph.ops if starts_early(op)]
        self._several = len(loops) > 1
        self._in_the_way = self._several and any(_hands_on_rows(graph, op) for op in loops)

    def of(self, segments: Sequence[Segment]) -> Ordered:
        """Return each segment with the values that must pass through it for the sake of the order."""
        found: Ordered = []
        following: Segment | None = None
        for segment in reversed(segments):
            waits: tuple[int, ...] = ()
            if segment.checkpointed and following is not None:
                key = segment.start, segment.end, following.start, following.end
                if key not in self._known:
                    self._known[key] = _waits(self.graph, segment, following, self.free)
                waits = self._known[key]
            found.append((segment, waits))
            if segment.checkpointed or segment.choices:
                following = segment
        return found[::-1]

    def late_loops(self, schedule: Sequence[Segment]) -> tuple[bool, bool]:
        """Tell whether loops take their memory when they are reached: those of a schedule, those recomputed inside it.

        A lone loop that runs once is in nobody's way, nor is one inside a structure, where nothing starts before its
        turn. Of several that run once, the zeros of residuals are needed until the backward pass anyway; those of the
        cotangents of rows that another loop made are not (6 LSTMs, one after another: 23 % more memory when early).
        Where JAX would copy what a loop in a ``cond`` reads, only several recomputed ones are worth it. A plain program
        stays as it is.
        """
        forwards = _compat.cond_forwards_residuals()
        planned = is_planned(schedule)
        first = (
            forwards and self._in_the_way and planned and not self.graph.is_region
        )  # in a branch its stack would be copied
        return first, self._several or (forwards and not self.graph.is_region)


def _waits(graph: Graph, segment: Segment, following: Segment, free: frozenset[int]) -> tuple[int, ...]:
    """Return the values by which a segment waits for the following one.

    What the following segment computes from this one's results needs none: its backward pass makes the cotangents that
    enter this one's barrier. What it computes beside them does, if its backward pass reads anything.
    """
    inside = [graph.ops[i] for i in range(segment.start, segment.end) if i not in free]
    made = {v for op in inside for v in op.outputs}
    downstream = {v for v in made if graph.active[v]}
    downstream.update(v for op in inside for v in op.reads if graph.active[v] and graph.values[v].producer >= 0)
    beside: list[Op] = []
    for op in graph.ops[segment.end : following.end]:
        if op.index in free or not op.differentiated:
            continue
        made.update(op.outputs)
        if any(v in downstream for v in op.reads):
            downstream.update(v for v in op.outputs if graph.active[v])
        else:
            beside.append(op)
    wanted: dict[int, None] = {}
    for op in reversed(beside):
        need = graph.needs[op.kind]
        recomputed = op.index >= following.start and (need.operands or need.outputs)
        if recomputed or any(v in wanted for v in op.outputs):
            wanted.update((v, None) for v in op.reads if graph.active[v])
    return tuple(v for v in wanted if v not in made)


def starts_early(op: Op) -> bool:
    """Tell whether an operation begins with memory that depends on nothing: a loop that stacks its residuals."""
    return is_loop(op)


def _hands_on_rows(graph: Graph, op: Op) -> bool:
    """Tell whether gradients flow into the stacked outputs of a loop, so that another's backward pass stacks them."""
    structure = structure_of(op)
    loop = structure.loop(graph, op) if structure is not None else None
    return loop is not None and any(graph.active[v] for v in op.outputs[len(loop.carried) :])
