"""Schedules: how segments are made, and what is asked of them.

In and out: schedules, tuples of ``Segment``s (see ``graph.ways``) that cover a region.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from remat_plan.graph.action import SAVE
from remat_plan.graph.ways import Around, Choice, Keep, Plain, Schedule, Segment, Written
from remat_plan.graph.ways import Part as Part


def _written() -> Schedule:
    return (Segment(0, 0, Written()),)


WRITTEN = _written()
"""The schedule that leaves a function as its author wrote it."""


def is_written(schedule: Sequence[Segment]) -> bool:
    """Tell whether a schedule leaves the function as its author wrote it.

    >>> is_written(WRITTEN), is_written((as_is(0, 7),))
    (True, False)
    """
    return schedule == WRITTEN


def is_planned(schedule: Sequence[Segment]) -> bool:
    """Tell whether a schedule runs anything otherwise than JAX does by itself."""
    return any(s.choices or not isinstance(s.way, Plain | Written) for s in schedule)


def as_is(start: int, end: int) -> Segment:
    """Return equations as JAX runs them by itself."""
    return Segment(start, end)


def saving(start: int, end: int, saved: Iterable[int] | Mapping[int, str] = (), action: str = SAVE) -> Segment:
    """Return equations under one ``jax.checkpoint`` that saves some values, or values with an action for each, and
    recomputes the others."""
    actions = saved.items() if isinstance(saved, Mapping) else ((v, action) for v in saved)
    return Segment(start, end, Keep(tuple(actions)))


def around(start: int, end: int, children: Schedule) -> Segment:
    """Return equations under one ``jax.checkpoint`` that saves nothing, around segments.

    Where all inside is left as it is there is nothing to be around:

    >>> around(0, 4, (as_is(0, 2), as_is(2, 4))) == saving(0, 4)
    True
    """
    return Segment(start, end, Around(children) if is_planned(children) else Keep())


def structured(index: int, choice: Choice) -> Segment:
    """Return one structure that is run by choice, by itself."""
    return Segment(index, index + 1, Plain(((index, choice),)))


def closed(segments: Schedule, apart: frozenset[int] = frozenset()) -> Schedule:
    """Return a schedule with one segment in place of what it leaves as it is at its end, behind equations ``apart``.

    At the end of a program that is read at once; inside a loop or a branch it is kept until its backward pass comes.

    >>> closed((saving(0, 4), as_is(4, 6), as_is(6, 9)))[1] == saving(4, 9)
    True
    """
    rest = list(segments)
    while rest and not (is_planned(rest[-1:]) or apart.intersection(range(rest[-1].start, rest[-1].end))):
        rest.pop()
    start = rest[-1].end if rest else 0
    return (*rest, saving(start, segments[-1].end)) if len(rest) < len(segments) else segments


def emptied(segments: Schedule) -> Schedule:
    """Return a schedule whose segments save nothing, nor those inside others; what is kept of structures stays.

    >>> emptied((saving(0, 4, (2,)), around(4, 9, (saving(4, 9, (7,)),))))[1].children[0].saved
    ()
    """
    found = [around(s.start, s.end, emptied(s.children)) if s.children else s for s in segments]
    return tuple([s.with_parts(actions=()) if s.actions else s for s in found])


def inside_of(segment: Segment) -> Schedule:
    """The segments inside a segment: those of the regions of its structures, in order, then its children; where it is
    split, those of the region that it is run as."""
    steps = [s for _, choice in segment.choices for part in choice.parts for s in part.schedule]
    return (*steps, *segment.children, *segment.way.sliced)


def actions_in(schedule: Schedule) -> set[str]:
    """The actions of a schedule, at every level.

    >>> sorted(actions_in((around(0, 9, (saving(0, 4, {2: "offload"}), saving(4, 9, [5]))),)))
    ['offload', 'save']
    """
    inside = [actions_in(inside_of(s)) for s in schedule]
    return {action for s in schedule for _, action in s.actions}.union(*inside)


def check_cover(segments: Schedule, start: int, end: int) -> None:
    """Raise ``ValueError`` unless segments follow each other from equation ``start`` to ``end``, at every level."""
    position = start
    for segment in segments:
        if segment.start != position or segment.end < segment.start:
            raise ValueError(f"segment {segment.start}..{segment.end} cannot follow equation {position - 1}")
        if isinstance(segment.way, Written):
            raise ValueError(f"segment {segment.start}..{segment.end} is as written, which only a whole program can be")
        if any(not segment.start <= index < segment.end for index, _ in segment.choices):
            raise ValueError(f"segment {segment.start}..{segment.end} chooses for a structure outside of it")
        position = segment.end
        if segment.children or isinstance(segment.way, Around):
            check_cover(segment.children, segment.start, segment.end)
    if position != end:
        raise ValueError(f"segments end at equation {position} instead of {end}")
