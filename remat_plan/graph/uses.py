"""Where values are used.

In: ``Graph``. Out: the operations that depend on nothing, those that hang on keys and integers alone, those that nobody
reads; the last use of every value, and what the backward pass reads.
"""

from __future__ import annotations

import jax

from remat_plan.graph.records import Graph, Op


def free_ops(graph: Graph) -> frozenset[int]:
    """Return the operations that depend on literals only, so that every segment may make its own copy."""
    free: set[int] = set()
    for op in graph.ops:
        producers = [graph.values[v].producer for v in op.reads]
        if op.outputs and not op.effectful and all(p in free for p in producers):
            free.add(op.index)
    return frozenset(free)


def drawn_ops(graph: Graph) -> frozenset[int]:
    """Return the operations that hang on keys and integers alone: masks of dropout, one-hot labels.

    Whatever is saved, they can be made again beside their readers.
    """
    given = [v for v in graph.values if v.producer < 0]
    floating = {v.index for v in given if jax.numpy.issubdtype(v.aval.dtype, jax.numpy.inexact)}
    drawn: set[int] = set()
    for op in graph.ops:
        makers = [(v, graph.values[v].producer) for v in op.reads]
        if op.outputs and not op.effectful and all(v not in floating and (p < 0 or p in drawn) for v, p in makers):
            drawn.add(op.index)
    return frozenset(drawn)


def told_ops(graph: Graph) -> frozenset[int]:
    """Return the operations with an effect whose results nobody reads: they only tell what they are given."""
    return frozenset(op.index for op in graph.ops if op.effectful and op.index not in graph.apart)


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


def residuals(graph: Graph, op: Op) -> list[int]:
    """Return the values that the backward pass of one operation reads."""
    if not op.differentiated:
        return []
    need = graph.needs[op.kind]
    read = [op.operands[i] for i in need.operands if op.operands[i] >= 0]
    return read + [op.outputs[j] for j in need.outputs]


def all_residuals(graph: Graph) -> frozenset[int]:
    """Return the values that the backward pass of some operation reads."""
    return frozenset(v for op in graph.ops for v in residuals(graph, op))
