"""The schedule as data: a tree of segments over the equations of a region.

In: nothing. Out: ``Segment``, ``Choice``, ``Part``: what a strategy returns, a plan stores, the evaluator lowers and
``rewrite.emit`` runs.

    Segment   equations start .. end-1, under one ``jax.checkpoint`` or not: what is done with the values made there
              (``actions``; a value without one is recomputed), segments inside (``children``), and how the structures
              among them are run (``choices``)
    Choice    how one structure (a loop, a branch) is run: schedules of the regions inside it

A schedule is a tuple of segments that cover a region. It nests, compares by value, hashes, and is plain data (stored by
``results.codec``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from remat_plan.graph.action import SAVE


@dataclass(frozen=True, slots=True)
class Part:
    """Runs of an inner region that are alike.

    Attributes:
        count: how many; of a loop, steps that follow each other.
        schedule: of the region.
        groups: of a loop, how many groups the steps are in, at each level from the outermost; each group is under
            ``jax.checkpoint``, so that one carry is kept for it. A count that does not divide leaves a shorter group.
    """

    count: int
    schedule: Schedule
    groups: tuple[int, ...] = ()

    @property
    def factors(self) -> tuple[int, ...]:
        """The groups at each level, then the most steps of an innermost one.

        >>> Part(10, (), (2, 2)).factors
        (2, 2, 3)
        """
        size = self.count
        for groups in self.groups:
            size = -(-size // groups)
        return (*self.groups, size)


@dataclass(frozen=True, slots=True)
class Choice:
    """How a structure is run.

    Attributes:
        parts: its inner regions under schedules: the branches of a branch, in order; of a loop, stretches of steps in
            the order of the rows.
        slots: of a loop, how many carries binomial checkpointing may keep; 0 where it is not used.
    """

    parts: tuple[Part, ...]
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Equations ``start .. end-1`` of a region and how they are run.

    Attributes:
        start, end: equation numbers.
        checkpointed: whether they are under one ``jax.checkpoint``; otherwise JAX keeps what it keeps by itself.
        actions: (value, action) for the values that are not recomputed, by number (checkpointed only).
        children: segments inside, covering the same equations (checkpointed only; it saves nothing itself then).
        choices: (equation, choice) for the structures that are not run as they are, where there are no children.
    """

    start: int
    end: int
    checkpointed: bool = False
    actions: tuple[tuple[int, str], ...] = ()
    children: Schedule = ()
    choices: tuple[tuple[int, Choice], ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        content = self.start, self.end, self.checkpointed, self.actions, self.children, self.choices
        object.__setattr__(self, "_hash", hash(content))

    def __hash__(self) -> int:
        """Made once: a search looks schedules up millions of times."""
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies hash anew: hashes of strings differ from process to process."""
        return Segment, (self.start, self.end, self.checkpointed, self.actions, self.children, self.choices)

    @property
    def saved(self) -> tuple[int, ...]:
        """The values that are not recomputed, in order."""
        return tuple([v for v, _ in self.actions])

    def choice(self, index: int) -> Choice | None:
        """How the structure at an equation is run; None: as it is."""
        return next((choice for equation, choice in self.choices if equation == index), None)

    def leaves(self) -> Iterator[Segment]:
        """Yield the segments without children, in order."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


Schedule = tuple[Segment, ...]
"""Segments that cover a region."""


WRITTEN: Schedule = ()
"""The schedule that leaves a function as its author wrote it, with ``jax.checkpoint`` regions of its own in place."""


def is_written(schedule: Sequence[Segment]) -> bool:
    """Tell whether a schedule leaves the function as its author wrote it.

    >>> is_written(WRITTEN), is_written((as_is(0, 7),))
    (True, False)
    """
    return not schedule


def is_planned(schedule: Sequence[Segment]) -> bool:
    """Tell whether a schedule runs anything otherwise than JAX does by itself."""
    return any(s.checkpointed or s.choices for s in schedule)


def as_is(start: int, end: int) -> Segment:
    """Return equations as JAX runs them by itself."""
    return Segment(start, end)


def saving(start: int, end: int, saved: Sequence[int] = (), action: str = SAVE) -> Segment:
    """Return equations under one ``jax.checkpoint`` that saves some values and recomputes the others."""
    return Segment(start, end, True, tuple((v, action) for v in saved))


def around(start: int, end: int, children: Schedule) -> Segment:
    """Return equations under one ``jax.checkpoint`` that saves nothing, around segments.

    Where all inside is left as it is there is nothing to be around:

    >>> around(0, 4, (as_is(0, 2), as_is(2, 4))) == saving(0, 4)
    True
    """
    matters = is_planned(children)
    return Segment(start, end, True, (), children if matters else ())


def structured(index: int, choice: Choice) -> Segment:
    """Return one structure that is run by choice, by itself."""
    return Segment(index, index + 1, choices=((index, choice),))


def closed(segments: Schedule, apart: Set[int] = frozenset()) -> Schedule:
    """Return a schedule with one segment in place of what it leaves as it is at its end, behind equations ``apart``.

    At the end of a program that is read at once; inside a loop or a branch it is kept until its backward pass comes.

    >>> closed((saving(0, 4), as_is(4, 6), as_is(6, 9)))[1] == saving(4, 9)
    True
    """
    rest = list(segments)
    while rest and not (rest[-1].checkpointed or rest[-1].choices or _holds(rest[-1], apart)):
        rest.pop()
    start = rest[-1].end if rest else 0
    return (*rest, saving(start, segments[-1].end)) if len(rest) < len(segments) else segments


def _holds(segment: Segment, indices: Set[int]) -> bool:
    return any(segment.start <= index < segment.end for index in indices)


def check_cover(segments: Schedule, start: int, end: int) -> None:
    """Raise ``ValueError`` unless segments follow each other from equation ``start`` to ``end``, at every level.

    None at all (``WRITTEN``) stand for all.
    """
    if not segments:
        return
    position = start
    for segment in segments:
        if segment.start != position or segment.end < segment.start:
            raise ValueError(f"segment {segment.start}..{segment.end} cannot follow equation {position - 1}")
        if (segment.actions or segment.children) and not segment.checkpointed:
            raise ValueError(f"segment {segment.start}..{segment.end} saves values or nests without a checkpoint")
        if segment.children and (segment.actions or segment.choices):
            raise ValueError(
                f"segment {segment.start}..{segment.end} has children, which save and choose by themselves"
            )
        if any(not segment.start <= index < segment.end for index, _ in segment.choices):
            raise ValueError(f"segment {segment.start}..{segment.end} chooses for a structure outside of it")
        position = segment.end
        if segment.children:
            check_cover(segment.children, segment.start, segment.end)
    if position != end:
        raise ValueError(f"segments end at equation {position} instead of {end}")
