"""Where values are used, and what crosses the border of a segment.

In: ``Graph``. Out: the operations that depend on nothing, those that hang on keys and integers alone, those that nobody
reads, those that make some values; the last use of every value, and what the backward pass reads. In: ``Segment``. Out:
the values that it reads, those that it makes for later, those that pass through it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import jax

from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Segment


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


def makers(graph: Graph, values: Iterable[int], given: Container[int] = (), start: int = 0) -> list[int]:
    """Return the operations from ``start`` on that make values of those that are ``given``, in order."""
    stack, found = list(values), set[int]()
    while stack:
        v = stack.pop()
        index = graph.values[v].producer
        if index >= start and v not in given and index not in found:
            found.add(index)
            stack += graph.ops[index].reads
    return sorted(found)


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


def last_cotangents(graph: Graph) -> dict[int, int]:
    """Return per value the last operation that gives it a cotangent; ``len(graph.ops)`` for outputs that have one."""
    last: dict[int, int] = {}
    for op in graph.ops:
        pairs = zip(op.operands, graph.needs[op.kind].reached, strict=True)
        last.update((v, op.index) for v, reached in pairs if reached)
    return last | dict.fromkeys(graph.wanted, len(graph.ops))


Interface = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Values that a segment reads, that it makes and that are used later, that pass through it."""


class Borders:
    """The borders of a graph's segments, each derived once: schedules share most of theirs."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.free, self.told, self.last = free_ops(graph), told_ops(graph), last_uses(graph)
        self.last_cotangents = last_cotangents(graph)
        self._known: dict[tuple[int, int], Interface] = {}

    def interface(self, segment: Segment, waits: Sequence[int] = ()) -> Interface:
        """Return what a segment reads, what it makes that is used later, and what passes through it. Values that it
        ``waits`` for pass through whether it reads them or not (see ``graph.order``)."""
        key = segment.start, segment.end
        if key not in self._known:
            self._known[key] = self._find(*key)
        reads, leaves, through = self._known[key]
        if not waits:
            return reads, leaves, through
        return tuple(dict.fromkeys((*reads, *waits))), leaves, tuple(dict.fromkeys((*through, *waits)))

    def given(self, segment: Segment) -> frozenset[int]:
        """Return the values that leave a segment and are given a cotangent from outside."""
        _, leaves, _ = self.interface(segment)
        return frozenset([v for v in leaves if self.last_cotangents.get(v, -1) >= segment.end])

    def operations(self, segment: Segment) -> list[int]:
        """Return the operations of a segment, and those that depend on literals only and that it reads, in order."""
        own = [i for i in range(segment.start, segment.end) if i not in self.free]
        read = {v for i in own for v in self.graph.ops[i].reads if self.graph.values[v].producer in self.free}
        return sorted([*own, *makers(self.graph, read)])

    def contents(
        self, segment: Segment, reads: Sequence[int], name: Callable[[Op], Any]
    ) -> tuple[Any, dict[int, int]] | None:
        """Return what segments that are the same function have in common, and numbers for their values in their order.

        ``name`` is the same for operations of a kind that compute the same; None, for one or for all, where that cannot
        be told.
        """
        number = {v: i for i, v in enumerate(reads)}
        rows = []
        for op in [self.graph.ops[i] for i in self.operations(segment) if i not in self.told]:
            if (own := name(op)) is None:
                return None
            rows.append((op.kind, own, tuple([number.get(v, -1) for v in op.operands])))
            for v in op.outputs:
                number[v] = len(number)
        return (len(reads), *rows), number

    def _find(self, start: int, end: int) -> Interface:
        graph, last = self.graph, self.last
        reads: dict[int, None] = {}
        made: list[int] = []
        inside: set[int] = set()
        told: set[int] = set()
        for index in range(start, end):
            if index in self.free:
                continue
            op = graph.ops[index]
            if index in self.told:
                told.update(op.reads)
                continue
            for v in op.reads:
                if v not in inside and graph.values[v].producer not in self.free:
                    reads.setdefault(v)
            inside.update(op.outputs)
            made.extend(op.outputs)
        if start == 0 and end == len(graph.ops):
            # In the order of the program, as a hand-written checkpoint of a step or branch reads them: XLA merges the
            # tuples of operands of branches that agree in it.
            reads = {v: None for v in graph.inputs if v in reads} | reads
        leaves = tuple([v for v in made if last[v] >= end or v in told])
        through = tuple([v for v in reads if last[v] >= end and graph.values[v].producer >= 0 and graph.active[v]])
        return tuple(reads), leaves, through
