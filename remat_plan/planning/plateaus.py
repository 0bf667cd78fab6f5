"""Places for cuts: where the frontier is level, and which position is the best there.

In: ``Facts`` of a graph. Out: plateaus, each with its best positions.

A segment that ends right behind a product spares it (``planning.stretches``), so of positions that are equally low the
best are there: on the residual stream and not behind the normalisation that reads it, behind a bias and not behind the
activation, before a value is seen in other shapes. Of these the lowest count, and those that the backward pass reads
most of, since such bytes are stored once for two purposes.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from remat_plan.graph.records import Graph, Value
from remat_plan.planning.stretches import Stretches

PLATEAU = 1.02
"""Frontiers that differ by up to this factor are equally low: a mean beside a layer's output makes no hill."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What choosing positions needs to know.

    Attributes:
        free, needed, last: see ``Cuts`` and ``graph.uses``.
        heights, stored, largest: per position the bytes alive, those of them that the backward pass reads, and those of
            the largest value.
        expensive: per operation.
        views: operations that make views of arguments.
        stretches: between expensive operations.
        best: the best of ranges of positions, each found once.
    """

    free: frozenset[int]
    needed: frozenset[int]
    last: list[int]
    heights: list[int]
    stored: list[int]
    largest: list[int]
    expensive: list[bool]
    views: frozenset[int]
    stretches: Stretches
    best: dict[range, list[int]] = field(default_factory=dict)


def bytes_alive(graph: Graph, values: Iterable[Value], last: list[int]) -> list[int]:
    """Return how many bytes of some values are alive at each of the ``len(graph.ops) + 1`` positions."""
    change = [0] * (len(graph.ops) + 2)
    for value in values:
        change[value.producer + 1] += value.size_bytes
        change[last[value.index] + 1] -= value.size_bytes
    return [*itertools.accumulate(change[:-1])]


def largest_alive(graph: Graph, values: Iterable[Value], last: list[int]) -> list[int]:
    """Return the bytes of the largest of some values that is alive at each position."""
    born: dict[int, list[Value]] = {}
    for value in values:
        born.setdefault(value.producer + 1, []).append(value)
    alive: list[tuple[int, int]] = []
    largest = []
    for position in range(len(graph.ops) + 1):
        for value in born.get(position, ()):
            heapq.heappush(alive, (-value.size_bytes, last[value.index]))
        while alive and alive[0][1] < position:
            heapq.heappop(alive)
        largest.append(-alive[0][0] if alive else 0)
    return largest


def plateaus(facts: Facts) -> Iterator[tuple[bool, list[int]]]:
    """Yield where the frontier is level: whether it is a minimum, and the best positions for a cut there."""
    heights = facts.heights
    i = 1
    n = len(heights) - 1
    while i < n:
        j = i
        while j + 1 < n and heights[j + 1] <= heights[i] * PLATEAU and heights[i] <= heights[j + 1] * PLATEAU:
            j += 1
        yield heights[i - 1] > heights[i] and heights[j + 1] > heights[j], _best_positions(facts, i, j)
        i = j + 1


def _best_positions(facts: Facts, start: int, end: int) -> list[int]:
    """Return the best positions of a plateau, or those before it that are as low and spare a product."""
    stretches = [*facts.stretches.split(start, end)]
    spared = [_spared(facts, stretch) for stretch in stretches]
    here = [near for near, stretch in zip(spared, stretches, strict=True) if stretch[0] in near]
    best: list[list[int]] = []
    for positions in here or [near for near in spared if near] or stretches:
        good = _best_of(facts, positions)
        if best and is_better(facts, best[-1][-1], good[0]):
            best.pop()
        best.append(good)
    return [p for good in best for p in good]


def _spared(facts: Facts, stretch: range) -> range:
    """Return all positions at which the product before a stretch need not run again; none where all are higher."""
    spared = facts.stretches.spared(stretch[0])
    low = PLATEAU * min(facts.heights[p] for p in stretch)
    return spared if spared and facts.heights[_best_of(facts, spared)[0]] <= low else range(0)


def _best_of(facts: Facts, positions: range) -> list[int]:
    """Return the lowest of some positions.

    Of those that are nearly as low, these are where most is stored for the backward pass anyway. Between a view of an
    argument and what reads it there is no position.
    """
    if positions not in facts.best:
        heights, stored = facts.heights, facts.stored
        low = PLATEAU * min(heights[p] for p in positions)
        near = [p for p in positions if heights[p] <= low]
        least = min(heights[p] - stored[p] for p in near)
        near = [p for p in near if heights[p] - stored[p] <= least + (PLATEAU - 1) * heights[p]]
        lowest = min(heights[p] for p in near)
        near = [p for p in near if heights[p] == lowest]
        facts.best[positions] = [p for p in near if p - 1 not in facts.views] or near[:1]
    return facts.best[positions]


def is_better(facts: Facts, position: int, later: int) -> bool:
    """Tell whether a later position does for another one, and no more bytes cross it.

    So it is where nothing is made in between that the backward pass reads, or nothing but cheap values, and the product
    before need not run again for either.
    """
    stretches = facts.stretches
    if facts.heights[later] > facts.heights[position]:
        return False
    both = stretches.is_spared(position) and later in stretches.spared(position)
    return stretches.is_silent(position, later) or (both and facts.heights[later] < facts.heights[position])


def is_one_place(facts: Facts, start: int, end: int) -> bool:
    """Tell whether two positions are equally low, with nothing expensive between them."""
    low, high = sorted((facts.heights[start], facts.heights[end]))
    return high <= low * PLATEAU and not any(facts.expensive[start:end])
