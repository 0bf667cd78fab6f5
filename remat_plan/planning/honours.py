"""Whether a schedule respects what a user wants kept, recomputed, never recomputed or split, and runs effects once.

In: ``Graph``, ``Limits``, a ``Schedule`` or a ``Choice``. Out: yes or no.

Whoever makes schedules makes them so that they do, as far as it can; what does not is dropped here. Nothing is kept
between the passes of what is inside a segment as a whole, be it a segment around a structure or a group of steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part, Schedule, Segment, is_written
from remat_plan.graph.structure import structure_of
from remat_plan.planning.limits import NO_LIMITS, Limits
from remat_plan.planning.saving import read_values


def honours(graph: Graph, limits: Limits, schedule: Schedule) -> bool:
    """Tell whether a schedule of a region respects its limits, with the choices for the structures in it."""
    if limits == NO_LIMITS and not graph.apart:
        return True
    if is_written(schedule):  # nobody has looked what is kept there
        return limits.lets_stay_written
    last = {v: op.index for op in graph.ops for v in op.reads if v in limits.forbidden}
    return all(_honoured(graph, limits, segment, last) for segment in schedule)


def _honoured(graph: Graph, limits: Limits, segment: Segment, last: dict[int, int]) -> bool:
    ops = graph.ops[segment.start : segment.end]
    hidden = {v for op in ops if op.index not in graph.apart for v in op.outputs if v in limits.forbidden}
    if segment.way.sliced:
        return limits.lets_split([op.index for op in ops], hidden)
    if not segment.checkpointed:
        return not hidden and all(honours_choice(graph, limits, op, segment.choice(op.index)) for op in ops)
    if not limits.lets_move(segment.hosted) or not all(_splits_honoured(graph, limits, s) for s in segment.leaves()):
        return False
    again = {op.index for op in ops}
    if not segment.children:
        read = read_values(graph, segment.start, segment.end, segment.saved)
        again &= {graph.values[v].producer for v in read.difference(segment.saved)}
    kept = any(v in hidden for leaf in segment.leaves() for v in leaf.saved)
    handed_on = any(last.get(v, -1) >= segment.end for v in hidden)
    pinned = any(op.index in limits.pinned or op.index in graph.apart for op in ops)
    return not (kept or handed_on or pinned or again & limits.fixed)


def _splits_honoured(graph: Graph, limits: Limits, leaf: Segment) -> bool:
    """Whether nothing inside a checkpointed segment runs in slices that may not."""
    if leaf.way.sliced:
        return limits.unsplit.isdisjoint(range(leaf.start, leaf.end))
    parts = [row for index, choice in leaf.choices for row in _parts(graph, limits, graph.ops[index], choice)]
    return all(
        _splits_honoured(region, inner, s)
        for part, region, inner in parts
        for segment in part.schedule
        for s in segment.leaves()
    )


def honours_choice(graph: Graph, limits: Limits, op: Op, choice: Choice | None) -> bool:
    """Tell whether a way to run an equation outside of segments respects the limits of the region; None: as it is."""
    if structure_of(op) is None or choice is None:
        return op.index not in limits.changed
    if op.index in limits.whole:
        return False
    once = op.index in limits.pinned or op.index in graph.apart
    for part, region, inner in _parts(graph, limits, op, choice):
        again = choice.slots or part.groups
        if once if again else not honours(region, inner, part.schedule):
            return False
    return True


def _parts(graph: Graph, limits: Limits, op: Op, choice: Choice) -> Iterator[tuple[Part, Graph, Limits]]:
    """The parts of a way to run a structure, each with its region and the limits of that."""
    structure = structure_of(op)
    regions = () if structure is None else structure.regions(graph, op)
    for part, region in zip(choice.parts, itertools.cycle(regions), strict=False):
        yield part, region, limits.inside(region)
