"""What crosses the border of a segment.

In: ``Graph``, ``Segment``. Out: the values that it reads, those that it makes for later, those that pass through.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Segment


def interface(
    graph: Graph, segment: Segment, free: frozenset[int], last: Sequence[int], waits: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return what a segment reads, what it makes that is used later, and what passes through it.

    Args:
        graph, segment: the program and the segment.
        free: operations that every segment makes for itself.
        last: per value, the last operation that reads it.
        waits: values that pass through whether the segment reads them or not (see ``graph.order``).
    """
    reads: dict[int, None] = {}
    made: list[int] = []
    inside: set[int] = set()
    for index in range(segment.start, segment.end):
        if index in free:
            continue
        op = graph.ops[index]
        for v in op.reads:
            if v not in inside and graph.values[v].producer not in free:
                reads.setdefault(v)
        inside.update(op.outputs)
        made.extend(op.outputs)
    leaves = tuple(v for v in made if last[v] >= segment.end)
    through = dict.fromkeys(
        v for v in reads if last[v] >= segment.end and graph.values[v].producer >= 0 and graph.active[v]
    )
    through.update(dict.fromkeys(waits))
    reads.update(dict.fromkeys(waits))
    return tuple(reads), leaves, tuple(through)
