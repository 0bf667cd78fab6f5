"""Where the program may be cut into segments: narrow places of the frontier.

In: ``Graph``. Out: ``Cuts``: positions between equations, the values live across each, and the equations that
may be run again anywhere for nothing (they depend on literals only).

No articulation point is needed: a U-Net or a DenseNet is cut where several values cross, as long as few bytes
do. There are two kinds of cuts. A *major* one is a local minimum of the frontier bytes with an expensive equation (a
matrix product, a convolution) and enough residuals since the cut before. Between two of them the frontier may stay as
low as at the cuts themselves for several expensive equations, without a hill (a plain chain of layers), or a single
value may cross it (in a decoder, whose layers grow): there are *minor* cuts. Which of the positions on one level is
best, ``planning.plateaus`` tells. Equations with effects whose results are read stand alone between two cuts.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from remat_plan.graph.merge import argument_views
from remat_plan.graph.records import Graph
from remat_plan.graph.structure import structure_of
from remat_plan.graph.uses import all_residuals, drawn_ops, free_ops, last_uses
from remat_plan.planning.limits import NO_LIMITS, Limits
from remat_plan.planning.plateaus import PLATEAU, Facts, bytes_alive, is_better, is_one_place, largest_alive, plateaus
from remat_plan.planning.stretches import Stretches, is_expensive

GAIN = 0.5
"""How many bytes of residuals a cut must separate per byte that it adds to the frontier."""

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


def _streams(graph: Graph, expensive: Sequence[bool], last: list[int]) -> list[int]:
    """Return the inputs that stand where a layer's output would: of the type of a value, read around a product.

    Though they are there anyway, they count in the first layer, so that it is cut where the others are. What is read
    again behind most of the products is no stream but what the loss compares with (the images of an autoencoder).
    """
    types = {value.text for value in graph.values if value.producer >= 0}
    first: dict[int, int] = {}
    for op in graph.ops:
        for v in op.reads:
            first.setdefault(v, op.index)
    alike = [v for v in graph.inputs if v in first and graph.values[v].text in types]
    return [v for v in alike if 0 < 2 * sum(expensive[first[v] : last[v]]) <= sum(expensive)]


def _worthwhile(graph: Graph, start: int, candidates: list[int], facts: Facts, minor: bool) -> list[int]:
    """Keep the candidates after ``start`` between which something expensive happens and enough residuals are made.

    What a cut costs is what it adds to the frontier of the cut before (values that merely pass cost nothing
    more); what it gains is the residuals made since then that do not cross it. At a minor cut those that cross count
    too: nothing is stored that the plain program does not store there, and segments may end at every layer.
    """
    kept: list[int] = []
    for position in candidates:  # a cut moves on to a later position that does for it
        ops = [op for op in graph.ops[start:position] if op.index not in facts.free]
        made = [o for op in ops for o in op.outputs]
        cost = sum(graph.values[o].size_bytes for o in made if facts.last[o] >= position)
        residuals = [o for o in made if o in facts.needed and (minor or facts.last[o] < position)]
        gain = sum(graph.values[o].size_bytes for o in residuals)
        far = any(facts.expensive[start:position]) or gain >= 4 * GAIN * facts.heights[position]
        moves = bool(kept) and is_better(facts, start, position)
        if moves:
            kept.pop()
        if moves or (gain >= GAIN * cost and far):
            kept.append(position)
            start = position
    return kept


def _minor_cuts(graph: Graph, start: int, end: int, places: list[int], facts: Facts) -> list[int]:
    """Return the minor cuts between two major ones: where a single value crosses, or it is as low as at these.

    The ends of the program say nothing on how low a frontier is there; next to them, a narrow place that no plateau
    comes down to (the results of a network, which are smaller than its layers) says no more where there are several
    plateaus, so several layers. Then it is the plateau in the middle, by height.
    """
    inside = places[bisect_right(places, start) : bisect_left(places, end)]
    borders = [facts.heights[p] for p in (start, end) if p < len(graph.ops) and (p or facts.heights[0])]
    apart = [p for p in inside if not is_one_place(facts, start, p) and not is_one_place(facts, p, end)]
    layers = sum(not is_one_place(facts, a, b) for a, b in itertools.pairwise([start, *apart]))
    heights = sorted([facts.heights[p] for p in apart])
    level = max(borders) if borders else min(heights, default=0)
    narrow = not borders or min(heights, default=0) > level * PLATEAU
    if len(borders) < 2 and layers >= _LAYERS and narrow:
        level = heights[len(heights) // 2]
    low = [p for p in inside if facts.heights[p] <= max(level, facts.largest[p]) * PLATEAU]
    kept = _worthwhile(graph, start, low, facts, True)
    if kept and end < len(graph.ops) and (is_better(facts, kept[-1], end) or is_one_place(facts, kept[-1], end)):
        kept.pop()
    return kept


def _facts_of(graph: Graph) -> Facts:
    free, last = free_ops(graph), last_uses(graph)
    expensive = [is_expensive(op.eqn) for op in graph.ops]
    views = argument_views(graph)
    passive, needed = free | views, all_residuals(graph)
    made = [v for v in graph.values if v.producer >= 0 and v.producer not in passive and last[v.index] > v.producer]
    streams = [graph.values[v] for v in _streams(graph, expensive, last)]
    heights = bytes_alive(graph, [*made, *streams], last)
    stored = bytes_alive(graph, [v for v in made if v.index in needed], last)
    largest = largest_alive(graph, made, last)
    stretches = Stretches(graph, expensive, last, needed, passive | drawn_ops(graph))
    return Facts(free, needed, last, heights, stored, largest, expensive, views, stretches)


def find_cuts(graph: Graph, limits: Limits = NO_LIMITS) -> Cuts:
    """Find the cuts of a graph; see the module docstring. O(equations + frontier sizes).

    Args:
        graph: the program.
        limits: what must be recomputed crosses no cut; what stays outside segments gets a block of its own.

    Raises:
        ValueError: a value that must be recomputed is read on both sides of an equation that stays outside segments.
    """
    facts = _facts_of(graph)
    level = list(plateaus(facts))
    # Blocks end with the first layer that is as good, and all that it makes before the next product; a layer that is a
    # large part of a program, with all on that level.
    late = sum(facts.expensive) <= _SHORT
    narrow = {
        p[-1] if late or not facts.stored[p[0]] else max(q for q in p if is_one_place(facts, p[0], q))
        for is_minimum, p in level
        if is_minimum
    }
    major = {0, len(graph.ops), *_worthwhile(graph, 0, sorted(narrow), facts, False)}
    places = sorted({p for _, positions in level for p in positions if not facts.stretches.is_over(p)})
    chosen = set(major)
    for start, end in itertools.pairwise(sorted(major)):
        chosen.update(_minor_cuts(graph, start, end, places, facts))
    for op in graph.ops:
        if op.index in graph.apart or op.index in limits.pinned or structure_of(op) is not None:
            chosen.update((op.index, op.index + 1))
    chosen -= _crossed(graph, limits, chosen)
    return _cuts_at(graph, chosen, major, facts, limits)


def _cuts_at(graph: Graph, chosen: set[int], major: set[int], facts: Facts, limits: Limits) -> Cuts:
    positions = tuple(sorted(chosen))
    numbers = frozenset(number for number, p in enumerate(positions) if p in major)
    return Cuts(
        positions, frontiers(graph, positions, facts.free, facts.last), facts.free, facts.needed, limits, numbers
    )


def without_loss(graph: Graph, cuts: Cuts) -> Cuts:
    """Leave out cuts behind the last layer: by one rule for all blocks, it would be recomputed for a loss alone.

    In a program of few layers this is the only way to halve the last one.
    """
    expensive = [op.index for op in graph.ops if is_expensive(op.eqn)]
    chosen = {p for p in cuts.positions if p == len(graph.ops) or not expensive or p <= expensive[-1]}
    if len(expensive) <= _SHORT or len(chosen) == len(cuts.positions):
        return cuts
    return _cuts_at(graph, chosen, {cuts.positions[number] for number in cuts.major}, _facts_of(graph), cuts.limits)


def cut_before_products(graph: Graph, cuts: Cuts) -> Cuts | None:
    """Add a cut before every expensive equation, however wide the frontier is there; None where there are too many.

    A segment may end there inside another one: what it hands on is there only while that is differentiated, and its own
    residuals are not there at the same time as those of the rest.
    """
    expensive = {op.index for op in graph.ops if is_expensive(op.eqn)} - cuts.free
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
                f"({graph.ops[near].primitive}), which no segment may contain, so it must be saved. Remove its "
                "name from must_recompute."
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


def whole_region(region: Graph, limits: Limits = NO_LIMITS) -> Cuts:
    """Return a region as one block."""
    positions = (0, len(region.ops))
    free = free_ops(region)
    crossing = frontiers(region, positions, free, last_uses(region))
    return Cuts(positions, crossing, free, all_residuals(region), limits)
