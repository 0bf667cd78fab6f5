"""Where the program may be cut into segments: narrow places of the frontier.

In: ``Graph``. Out: ``Cuts``: positions between equations, the values live across each, and the equations that
may be run again anywhere for nothing (they depend on literals only).

No articulation point is needed: a U-Net or a DenseNet is cut where several values cross, as long as few bytes
do. There are two kinds of cuts. A *major* one is a local minimum of the frontier bytes with an expensive equation (a
matrix product, a convolution) and enough residuals since the cut before. Between two of them the frontier may stay as
low as at the cuts themselves for several expensive equations, without a hill (a plain chain of layers): there,
positions on plateaus are *minor* cuts, however short the chain is. Of positions on one plateau the one counts whose
frontier the backward pass reads most of, since these bytes are then stored once for two purposes. Equations with
effects whose results are read stand alone between two cuts.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from remat_plan.cost.rules import Kind, kind_of
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.sink import argument_views
from remat_plan.graph.structure import structure_of
from remat_plan.graph.uses import free_ops, last_uses
from remat_plan.planning.limits import NO_LIMITS, Limits

GAIN = 0.5
"""How many bytes of residuals a cut must separate per byte that it adds to the frontier."""

_PLATEAU = 1.02
"""Frontiers that differ by up to this factor are equally low: a mean beside a layer's output makes no hill."""


_SHORT = 6
"""In a program of so few expensive equations one layer is a large part: its blocks end with all that a layer makes, and
there may be a cut behind the last one."""

_FEW = 16
"""In a program of so few expensive equations (a transformer's block has 8 to 10) each of them may begin a segment; of
more, profiling the runs between takes longer than all the rest."""

_LAYERS = 4
"""So many plateaus next to an end of the program are layers of their own; fewer are inside one block."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Positions and frontiers.

    Attributes:
        positions: increasing; the first is 0, the last ``len(graph.ops)``.
        frontiers: per position the numbers of the values produced before and used after it (inputs left out).
        free: numbers of operations that depend on literals only.
        needed: values that some backward equation reads.
        limits: what the user wants kept or recomputed.
        major: numbers (in ``positions``) of the major cuts, both ends among them.
    """

    positions: tuple[int, ...]
    frontiers: tuple[frozenset[int], ...]
    free: frozenset[int]
    needed: frozenset[int]
    limits: Limits = NO_LIMITS
    major: frozenset[int] = frozenset()


def needed_values(graph: Graph) -> frozenset[int]:
    """Return the values that the backward pass of some differentiated equation reads."""
    return frozenset(v for op in graph.ops for v in residuals(graph, op))


def residuals(graph: Graph, op: Op) -> list[int]:
    """Return the values that the backward pass of one equation reads."""
    if not op.differentiated:
        return []
    need = graph.needs[op.kind]
    read = [op.operands[i] for i in need.operands if op.operands[i] >= 0]
    return read + [op.outputs[j] for j in need.outputs]


def frontier_bytes(graph: Graph, left_out: frozenset[int], last: list[int]) -> list[int]:
    """Return the bytes live across each of the ``len(graph.ops) + 1`` positions.

    Inputs are left out, and what is made by the operations ``left_out``.
    """
    change = [0] * (len(graph.ops) + 2)
    for value in graph.values:
        if value.producer >= 0 and value.producer not in left_out and last[value.index] > value.producer:
            change[value.producer + 1] += value.size_bytes
            change[last[value.index] + 1] -= value.size_bytes
    totals = []
    running = 0
    for i in range(len(graph.ops) + 1):
        running += change[i]
        totals.append(running)
    return totals


def _plateaus(heights: list[int], scores: list[int], views: frozenset[int]) -> Iterator[tuple[bool, list[int]]]:
    """Yield where the frontier is level or narrow: whether it is a minimum, its positions of nearly the best score.

    Between a view of an argument and what reads it there is no position.
    """
    i = 1
    n = len(heights) - 1
    while i < n:
        j = i
        while j + 1 < n and heights[j + 1] <= heights[i] * _PLATEAU and heights[i] <= heights[j + 1] * _PLATEAU:
            j += 1
        lower = heights[i - 1] > heights[i] and heights[j + 1] > heights[j]
        if lower or j > i:
            best = max(scores[i : j + 1])
            good = [p for p in range(i, j + 1) if scores[p] * _PLATEAU >= best]
            yield lower, [p for p in good if p - 1 not in views] or good[:1]
        i = j + 1


def _worthwhile(graph: Graph, start: int, candidates: list[int], facts: _Facts, minor: bool) -> list[int]:
    """Keep the candidates after ``start`` between which something expensive happens and enough residuals are made.

    What a cut costs is what it adds to the frontier of the cut before (values that merely pass cost nothing
    more); what it gains is the residuals made since then that do not cross it. At a minor cut those that cross count
    too: nothing is stored that the plain program does not store there, and segments may end at every layer.
    """
    kept: list[int] = []
    for position in candidates:
        ops = [op for op in graph.ops[start:position] if op.index not in facts.free]
        made = [o for op in ops for o in op.outputs]
        cost = sum(graph.values[o].size_bytes for o in made if facts.last[o] >= position)
        residuals = [o for o in made if o in facts.needed and (minor or facts.last[o] < position)]
        gain = sum(graph.values[o].size_bytes for o in residuals)
        far = any(facts.expensive[start:position]) or gain >= 4 * GAIN * facts.heights[position]
        if gain >= GAIN * cost and far:
            kept.append(position)
            start = position
    return kept


def _minor_cuts(graph: Graph, start: int, end: int, plateaus: list[int], facts: _Facts) -> list[int]:
    """Return the minor cuts between two major ones: on plateaus that are as low as these are.

    The ends of the program say nothing on how low a frontier is there; next to them, a narrow place that no plateau
    comes down to (the results of a network, which are smaller than its layers) says no more where there are several
    plateaus, so several layers. Then it is the plateau in the middle, by height.
    """
    inside = plateaus[bisect_right(plateaus, start) : bisect_left(plateaus, end)]
    borders = [facts.heights[p] for p in (start, end) if 0 < p < len(graph.ops)]
    apart = [p for p in inside if not _is_one_place(facts, start, p) and not _is_one_place(facts, p, end)]
    layers = sum(not _is_one_place(facts, a, b) for a, b in itertools.pairwise([start, *apart]))
    heights = sorted([facts.heights[p] for p in apart])
    level = max(borders) if borders else min(heights, default=0)
    narrow = not borders or min(heights, default=0) > level * _PLATEAU
    if len(borders) < 2 and layers >= _LAYERS and narrow:
        level = heights[len(heights) // 2]
    low = [p for p in inside if facts.heights[p] <= level * _PLATEAU]
    kept = _worthwhile(graph, start, low, facts, True)
    long = sum(facts.expensive) > _SHORT
    while long and kept and end == len(graph.ops) and not any(facts.expensive[kept[-1] : end]):
        kept.pop()  # a loss alone is no block: the layer before it would be recomputed for nothing
    return kept


def _is_one_place(facts: _Facts, start: int, end: int) -> bool:
    """Tell whether two positions are equally low, with nothing expensive between them."""
    low, high = sorted((facts.heights[start], facts.heights[end]))
    return high <= low * _PLATEAU and not any(facts.expensive[start:end])


@dataclass(frozen=True, slots=True)
class _Facts:
    free: frozenset[int]
    needed: frozenset[int]
    last: list[int]
    heights: list[int]
    expensive: list[bool]
    views: frozenset[int]


def _facts_of(graph: Graph) -> _Facts:
    free, last = free_ops(graph), last_uses(graph)
    expensive = [kind_of(op.eqn) in (Kind.OPAQUE, Kind.REGION) for op in graph.ops]
    views = argument_views(graph)
    return _Facts(free, needed_values(graph), last, frontier_bytes(graph, free | views, last), expensive, views)


def find_cuts(graph: Graph, isolate: frozenset[str] = frozenset(), limits: Limits = NO_LIMITS) -> Cuts:
    """Find the cuts of a graph; see the module docstring. O(equations + frontier sizes).

    Args:
        graph: the program.
        isolate: primitives that get a block of their own where they are differentiated.
        limits: what must be recomputed crosses no cut; what stays outside segments gets a block of its own.

    Raises:
        ValueError: a value that must be recomputed is read on both sides of an equation that stays outside segments.
    """
    facts = _facts_of(graph)
    last, heights, expensive = facts.last, facts.heights, facts.expensive
    scores = [0] * len(heights)
    for v in facts.needed:
        value = graph.values[v]
        if 0 <= value.producer < last[v] and value.producer not in facts.views:
            scores[value.producer + 1] += value.size_bytes
            if last[v] + 1 < len(scores):
                scores[last[v] + 1] -= value.size_bytes
    for i in range(1, len(scores)):
        scores[i] += scores[i - 1]
    level = list(_plateaus(heights, scores, facts.views))
    # Blocks end at the first of equally good positions; a layer that is a large part of a program, with all it makes.
    late = sum(expensive) <= _SHORT
    narrow = [p[-1] if late or not scores[p[0]] else p[0] for is_minimum, p in level if is_minimum]
    major = {0, len(graph.ops), *_worthwhile(graph, 0, narrow, facts, False)}
    plateaus = [p for _, positions in level for p in positions]
    chosen = set(major)
    for start, end in itertools.pairwise(sorted(major)):
        chosen.update(_minor_cuts(graph, start, end, plateaus, facts))
    for op in graph.ops:
        isolated = op.differentiated and op.primitive in isolate
        if op.index in graph.apart or isolated or op.index in limits.pinned or structure_of(op) is not None:
            chosen.update((op.index, op.index + 1))
    chosen -= _crossed(graph, limits, chosen)
    return _cuts_at(graph, chosen, major, facts, limits)


def _cuts_at(graph: Graph, chosen: set[int], major: set[int], facts: _Facts, limits: Limits) -> Cuts:
    positions = tuple(sorted(chosen))
    numbers = frozenset(number for number, p in enumerate(positions) if p in major)
    return Cuts(
        positions, frontiers(graph, positions, facts.free, facts.last), facts.free, facts.needed, limits, numbers
    )


def cut_before_products(graph: Graph, cuts: Cuts) -> Cuts | None:
    """Add a cut before every expensive equation, however wide the frontier is there; None where there are too many.

    A segment may end there inside another one: what it hands on is there only while that is differentiated, and its own
    residuals are not there at the same time as those of the rest.
    """
    expensive = {op.index for op in graph.ops if kind_of(op.eqn) in (Kind.OPAQUE, Kind.REGION)} - cuts.free
    chosen = {*cuts.positions, *expensive}
    chosen -= _crossed(graph, cuts.limits, chosen)
    if len(expensive) > _FEW or chosen == set(cuts.positions):
        return None
    major = {cuts.positions[number] for number in cuts.major}
    return _cuts_at(graph, chosen, major, _facts_of(graph), cuts.limits)


_SMALL_PROGRAM = 40
"""In a program of so few equations every single one may begin a segment: each value is a large part of all memory, and
solving takes a fraction of a second. ``python -m benchmarks referee`` shows what such programs lose or win by it."""


def is_small(graph: Graph) -> bool:
    """Whether every value of a program counts: it is planned equation by equation, and value by value."""
    return not graph.is_region and len(graph.ops) <= _SMALL_PROGRAM


def cut_everywhere(graph: Graph, cuts: Cuts) -> Cuts | None:
    """Add a cut behind every equation of a small program, however wide the frontier is there; None for others."""
    chosen = {*cuts.positions, *(op.index + 1 for op in graph.ops if op.index not in cuts.free)}
    chosen -= _crossed(graph, cuts.limits, chosen)
    if not is_small(graph) or chosen == set(cuts.positions):
        return None
    return _cuts_at(graph, chosen, set(cuts.positions), _facts_of(graph), cuts.limits)


def _crossed(graph: Graph, limits: Limits, chosen: set[int]) -> set[int]:
    """Return the positions that a value which must be recomputed crosses on its way to an equation."""
    if not limits.forbidden:
        return set()
    border = {i for index in graph.apart | limits.pinned for i in (index, index + 1)}
    reader = {v: op.index for op in graph.ops for v in op.reads if v in limits.forbidden}
    crossed: set[int] = set()
    for v in sorted(limits.forbidden):
        within = set(range(graph.values[v].producer + 1, reader.get(v, -1) + 1)) & chosen
        if blocked := sorted(within & border):
            near = next(i for i in (blocked[0], blocked[0] - 1) if i < len(graph.ops) and _alone(graph, limits, i))
            raise ValueError(
                f"must_recompute: {graph.values[v].text} is read on the other side of equation {near} "
                f"({graph.ops[near].primitive}), which stays outside any segment, so it has to be kept there. Take its "
                "name out of must_recompute."
            )
        crossed |= within
    return crossed


def _alone(graph: Graph, limits: Limits, index: int) -> bool:
    return index in graph.apart or index in limits.pinned


def frontiers(
    graph: Graph, positions: tuple[int, ...], free: frozenset[int], last: list[int]
) -> tuple[frozenset[int], ...]:
    """Return per position the values made before and used after it (inputs and free ones left out)."""
    live: set[int] = set()
    result = []
    start = 0
    for position in positions:
        for op in graph.ops[start:position]:
            if op.index not in free:
                live.update(o for o in op.outputs if last[o] > op.index)
        live = {v for v in live if last[v] >= position}
        result.append(frozenset(live))
        start = position
    return tuple(result)
