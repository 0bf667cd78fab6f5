"""Where values are used.

In: ``Graph``. Out: the operations that depend on nothing, or on one argument alone; the last use of every value.
"""

from __future__ import annotations

from collections import Counter

from remat_plan.graph.records import Graph


def free_ops(graph: Graph) -> frozenset[int]:
    """Return the operations that depend on literals only, so that every segment may make its own copy."""
    free: set[int] = set()
    for op in graph.ops:
        producers = [graph.values[v].producer for v in op.reads]
        if not op.effectful and all(p in free for p in producers):
            free.add(op.index)
    return frozenset(free)


def argument_views(graph: Graph) -> frozenset[int]:
    """Return the operations that make of one argument what one operation reads: it stands right after them.

    A slice of stacked parameters or a cast is no reason to take the place before it for a narrow one (``graph.sink``).
    """
    readers = Counter([v for op in graph.ops for v in op.reads] + [v for v in graph.outputs if v >= 0])
    views: set[int] = set()
    for op in graph.ops:
        sources = [graph.values[v].producer for v in op.reads]
        given = len(sources) == 1 and (sources[0] < 0 or sources[0] in views)
        if given and not op.effectful and all(readers[v] == 1 for v in op.outputs):
            views.add(op.index)
    return frozenset(views)


def last_uses(graph: Graph) -> list[int]:
    """Return per value the last operation that reads it; ``len(graph.ops)`` for outputs; -1 when unused."""
    last = [-1] * len(graph.values)
    for op in graph.ops:
        for v in op.reads:
            last[v] = op.index
    for v in graph.outputs:
        if v >= 0:
            last[v] = len(graph.ops)
    return last
