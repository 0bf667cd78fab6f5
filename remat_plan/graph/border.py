"""What crosses the border of a segment.

In: ``Graph``, ``Segment``. Out: the values that it reads, those that it makes for later, those that pass through.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Segment
from remat_plan.graph.uses import free_ops, last_uses, told_ops

Interface = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Values that a segment reads, that it makes and that are used later, that pass through it."""


class Borders:
    """The borders of a graph's segments, each derived once: schedules share most of theirs.

    Attributes:
        graph: the program.
        free: operations that every segment makes for itself.
        told: operations that are run behind their segment, so that they run once.
        last: per value, the last operation that reads it.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.free, self.told, self.last = free_ops(graph), told_ops(graph), last_uses(graph)
        self._known: dict[tuple[int, int], Interface] = {}

    def interface(self, segment: Segment, waits: Sequence[int] = ()) -> Interface:
        """Return what a segment reads, what it makes that is used later, and what passes through it.

        Args:
            segment: where it begins and ends is all that counts.
            waits: values that pass through whether the segment reads them or not (see ``graph.order``).
        """
        key = segment.start, segment.end
        if key not in self._known:
            self._known[key] = self._find(*key)
        reads, leaves, through = self._known[key]
        if not waits:
            return reads, leaves, through
        return tuple(dict.fromkeys((*reads, *waits))), leaves, tuple(dict.fromkeys((*through, *waits)))

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
