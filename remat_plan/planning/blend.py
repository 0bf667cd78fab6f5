"""Schedules between two schedules: from one that fits to a faster one that does not, a little at a time.

In: a program, two schedules of it, whatever strategies they are from. Out: schedules in order: the first has one piece
of the second, the next one piece more. A piece is what lies between two borders that both have, or one step of a loop.

What a step of a loop keeps until its backward pass is freed with it, and the last step goes first: of a loop, the last
steps are taken first. A loop run by two choices is two stretches (see ``structures.scan``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from remat_plan.cost.builder import as_it_is
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part, Schedule, Segment, around, as_is, structured
from remat_plan.graph.slices import region_of
from remat_plan.graph.structure import is_loop, structure_of
from remat_plan.graph.uses import Borders

_MOST_STEPS = 128
"""A longer loop is divided at so many places only."""

_PIECES = 7
"""So many schedules lie between a step run one way and the other, where the loop has few steps."""


def paths(graph: Graph, low: Schedule, high: Schedule) -> tuple[list[Schedule], list[Schedule]]:
    """Return the schedules between ``low`` and ``high``, both left out, in two orders of pieces.

    Args:
        graph: the program.
        low, high: covering it.

    Returns:
        The last pieces taken first: nearly every piece then takes memory. And the first pieces taken first: where
        ``high`` keeps less there than ``low``, what comes after has that room.
    """
    low, high = _divided(low, high), _divided(high, low)
    borders = sorted({s.start for s in low} & {s.start for s in high} | {0, len(graph.ops)})
    spans = list(itertools.pairwise(borders))
    pieces = [(_inside(low, start, end), _inside(high, start, end)) for start, end in spans]
    last_first, first_first = reversed(range(len(pieces))), range(len(pieces))
    return list(_path(graph, pieces, last_first)), list(_path(graph, pieces, first_first))


def joined(schedule: Schedule) -> Schedule:
    """Return a schedule with neighbours that are left as they are as one, on all levels."""
    found: list[Segment] = []
    for segment in schedule:
        if segment.children:
            segment = around(segment.start, segment.end, joined(segment.children))
        if found and _is_as_it_is(found[-1]) and _is_as_it_is(segment):
            segment = as_is(found.pop().start, segment.end)
        found.append(segment)
    return tuple(found)


def _is_as_it_is(segment: Segment) -> bool:
    return segment == as_is(segment.start, segment.end)


def _divided(schedule: Schedule, other: Schedule) -> Schedule:
    """Return a schedule with what is left as it is divided where another one has borders."""
    borders = [segment.start for segment in other]
    found: list[Segment] = []
    for segment in schedule:
        inside = [p for p in borders if segment.start < p < segment.end] if _is_as_it_is(segment) else []
        ends = [segment.start, *inside, segment.end]
        found += [as_is(*pair) for pair in itertools.pairwise(ends)] if inside else [segment]
    return tuple(found)


def _path(graph: Graph, pieces: Sequence[tuple[Schedule, Schedule]], order: Iterable[int]) -> Iterator[Schedule]:
    """Yield what comes of going from the first of each pair to the second, a piece after another."""
    taken = [mine for mine, _ in pieces]
    missing = sum(mine != other for mine, other in pieces)
    for place in order:
        mine, other = pieces[place]
        if mine == other:
            continue
        before, after = _joined_pieces(taken[:place]), _joined_pieces(taken[place + 1 :])
        for mixed in _mixtures(graph, mine, other):
            yield joined((*before, *mixed, *after))
        taken[place] = other
        missing -= 1
        if missing:
            yield joined((*before, *other, *after))


def _joined_pieces(pieces: Iterable[Schedule]) -> Schedule:
    return tuple(itertools.chain.from_iterable(pieces))


def _inside(schedule: Schedule, start: int, end: int) -> Schedule:
    return tuple(s for s in schedule if start <= s.start and s.end <= end and s.end > s.start)


def _mixtures(graph: Graph, low: Schedule, high: Schedule) -> Iterator[Schedule]:
    """Yield what lies between two ways to run one loop, or to run what one call holds; nothing where that is not what
    they are.

    Where a loop has few steps, each is a large piece: between one step more and the next lies what is between the two
    ways to run that step.
    """
    op = _structure(graph, low, high)
    if op is None:
        yield from _in_slices(graph, low, high)
        return
    if not is_loop(op):
        yield from _in_call(graph, op, low[0], high[0])
        return
    mine, other = (_choice(graph, op, s[0]) for s in (low, high))
    length = sum(part.count for part in mine.parts)
    if mine.gradient_first and other.gradient_first:
        for mixed in _steps_between(graph, op, mine.parts[0].schedule, other.parts[0].schedule, _PIECES):
            yield (structured(op.index, Choice((Part(length, mixed),), gradient_first=True)),)
    if mine.slots or other.slots or mine.gradient_first or other.gradient_first:
        return
    between: dict[tuple[Schedule, Schedule], Sequence[Schedule]] = {}
    for count in range(0, length, max(length // _MOST_STEPS, 1)):
        less, more = _first(mine.parts, length - count), _last(other.parts, count)
        if count:
            yield (structured(op.index, Choice(_joined((*less, *more)))),)
        step = less[-1].schedule, _last(other.parts, count + 1)[0].schedule
        if step not in between:
            between[step] = _steps_between(graph, op, *step, min(_MOST_STEPS // length, _PIECES))
        for mixed in between[step]:
            parts = (*_first(mine.parts, length - count - 1), Part(1, mixed), *more)
            yield (structured(op.index, Choice(_joined(parts))),)


def _steps_between(graph: Graph, op: Op, low: Schedule, high: Schedule, most: int) -> Sequence[Schedule]:
    """Return a few schedules between two of a step of a loop, equally far apart."""
    structure = structure_of(op)
    if low == high or not most or structure is None:
        return ()
    (region,) = structure.regions(graph, op)
    found, _ = paths(region, low, high)
    return [found[(place + 1) * len(found) // (most + 1)] for place in range(most)] if len(found) > most else found


def _in_call(graph: Graph, op: Op, low: Segment, high: Segment) -> Iterator[Schedule]:
    """Yield what lies between two ways to run what a call holds; nothing where it is recomputed as a whole."""
    structure = structure_of(op)
    regions = () if structure is None or low.checkpointed or high.checkpointed else structure.regions(graph, op)
    if len(regions) == 1:
        mine, other = (_choice(graph, op, s).parts[0].schedule for s in (low, high))
        for inner in paths(regions[0], mine, other)[0]:
            yield (structured(op.index, Choice((Part(1, inner),))),)


def _in_slices(graph: Graph, low: Schedule, high: Schedule) -> Iterator[Schedule]:
    """Yield what lies between two ways to run what both run in the same slices."""
    if len(low) != 1 or len(high) != 1 or not low[0].way.sliced or not high[0].way.sliced:
        return
    segment, other = low[0], high[0].way.sliced
    if segment.with_parts(sliced=other) == high[0]:
        region, mine = region_of(Borders(graph), segment)
        for inner in paths(region, mine, other)[0]:
            yield (segment.with_parts(sliced=inner),)


def _structure(graph: Graph, low: Schedule, high: Schedule) -> Op | None:
    """Return the structure that both schedules are of; None if there is none, or one of them keeps values around it."""
    if len(low) != 1 or len(high) != 1 or low[0].end - low[0].start != 1:
        return None
    op = graph.ops[low[0].start]
    kept = any(s[0].actions or s[0].children for s in (low, high))
    return op if structure_of(op) is not None and not kept else None


def _choice(graph: Graph, op: Op, segment: Segment) -> Choice:
    """Return how a segment runs a loop; one that recomputes it as a whole, in groups, which compute as much again."""
    structure = structure_of(op)
    assert structure is not None
    choice = segment.choice(op.index) or as_it_is(structure, graph, op)
    if not segment.checkpointed:
        return choice
    return Choice(tuple(replace(part, groups=(max(math.isqrt(part.count), 1),)) for part in choice.parts))


def _first(parts: Sequence[Part], count: int) -> list[Part]:
    """Return the first ``count`` steps of stretches.

    >>> [part.count for part in _first((Part(3, ()), Part(5, ())), 4)]
    [3, 1]
    """
    found = []
    for part in parts:
        size = min(part.count, count)
        if size:
            found.append(shortened(part, size))
        count -= size
    return found


def _last(parts: Sequence[Part], count: int) -> list[Part]:
    return _first(parts[::-1], count)[::-1]


def shortened(part: Part, count: int) -> Part:
    """Return fewer steps in groups of the same size.

    >>> shortened(Part(12, (), (4,)), 9), shortened(Part(12, (), (4,)), 3)
    (Part(count=9, schedule=(), groups=(3,)), Part(count=3, schedule=(), groups=()))
    """
    if not part.groups or count == part.count:
        return replace(part, count=count)
    size = -(-part.count // part.groups[0])
    outer = -(-count // size)
    return replace(part, count=count, groups=(outer, *part.groups[1:]) if outer > 1 else part.groups[1:])


def _joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return stretches, neighbours that are run alike as one."""
    found: list[Part] = []
    for part in parts:
        if found and (found[-1].schedule, found[-1].groups) == (part.schedule, part.groups) and not part.groups:
            part = replace(part, count=found.pop().count + part.count)
        found.append(part)
    return tuple(found)
