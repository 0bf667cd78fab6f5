"""Stretches: positions with no product between them, and how far behind its product a segment may end.

In: ``Graph``, what is expensive in it, last uses. Out: ``Stretches``.

Where a segment ends right behind a product, the product need not run again: it is the segment's last work, and what
leaves the segment is stored. That stays so while all that the backward pass reads of what follows the product can be
made again, by cheap equations, from what crosses the position: behind the addition to a residual stream, in the middle
of a normalisation; behind a tanh, which reads its own output, but not behind a gelu, which reads its input.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from remat_plan import _compat
from remat_plan.cost.rules import Kind, called, kind_of
from remat_plan.graph.records import Graph
from remat_plan.graph.uses import residuals


def is_expensive(eqn: Any) -> bool:
    """Tell whether an equation costs FLOPs: a product, a sort, a loop, or a call (``custom_jvp``) that holds one."""
    if kind_of(eqn) not in (Kind.OPAQUE, Kind.REGION):
        return False
    inside = called(eqn)
    return inside is None or any(is_expensive(inner) for inner in _compat.open_jaxpr(inside)[0].eqns)


class Stretches:
    """The stretches of a graph.

    Args:
        graph: the program.
        expensive: per operation, whether it is a product, a loop, ...
        last: per value, its last use.
        needed: values that the backward pass reads.
        passive: operations whose results no cut is made for: of literals, of one argument, of keys.
    """

    def __init__(
        self, graph: Graph, expensive: Sequence[bool], last: list[int], needed: frozenset[int], passive: frozenset[int]
    ):
        self.graph, self.last = graph, last
        self.products = [i for i, is_expensive in enumerate(expensive) if is_expensive]
        self._read = [op.index not in passive and any(v in needed for v in op.outputs) for op in graph.ops]
        self._last_reader = max((op.index for op in graph.ops if residuals(graph, op)), default=-1)
        self._reach: dict[int, int] = {}

    def split(self, start: int, end: int) -> Iterator[range]:
        """Yield the positions from ``start`` to ``end`` by stretches."""
        inside = self.products[bisect_left(self.products, start) : bisect_left(self.products, end)]
        for first, last in itertools.pairwise([start, *(product + 1 for product in inside), end + 1]):
            yield range(first, last)

    def is_silent(self, start: int, end: int) -> bool:
        """Tell whether nothing that the backward pass reads is made between two positions."""
        return not any(self._read[start:end])

    def spared(self, position: int) -> range:
        """The positions of a stretch at which its product need not run again; none where no product is before it."""
        number = bisect_left(self.products, position) - 1
        if number < 0:
            return range(0)
        first = self.products[number] + 1
        if number not in self._reach:
            low, high = first, [*self.products, len(self.graph.ops)][number + 1]
            while low < high:  # what can be made from a frontier can be made from those before it
                middle = (low + high + 1) // 2
                if self._spares(first - 1, middle):
                    low = middle
                else:
                    high = middle - 1
            self._reach[number] = low
        return range(first, self._reach[number] + 1)

    def is_spared(self, position: int) -> bool:
        """Tell whether the product before a position need not run again in a segment that ends there."""
        return position in self.spared(position)

    def is_over(self, position: int) -> bool:
        """Tell whether nothing behind a position reads anything in its backward pass."""
        return position > self._last_reader

    def _spares(self, product: int, position: int) -> bool:
        """Whether all that the backward pass reads behind a product can be made from what crosses a position."""
        missing: set[int] = set()
        for op in self.graph.ops[product:position]:
            if op.index == product or any(v in missing for v in op.reads):
                missing.update(v for v in op.outputs if self.last[v] < position)
        behind = self.graph.ops[product:position]
        return not any(v in missing for op in behind for v in residuals(self.graph, op))
