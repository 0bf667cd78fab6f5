"""Schedules one step away from a schedule.

In: ``Graph``, ``Cuts``, a ``Schedule``. Out: ``Edit``s: functions, each of which makes one neighbour of it, or ``None``
where the result would not do what the user asked for.

A step keeps or drops one value, or one instead of another; moves a border between segments, adds or removes one; puts a
segment around others, or takes one away. So from any schedule of segments any other can be reached. Segments are built
as every strategy builds them (``planning.saving``): a value that nothing reads is not kept.

Limits: structures are neither opened nor given another choice; a program that has some is left to the chain.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from remat_plan.cost.rules import Kind, kind_of
from remat_plan.graph.action import SAVE
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Schedule, Segment, around
from remat_plan.graph.structure import holds_structure
from remat_plan.planning.blend import joined
from remat_plan.planning.cuts import Cuts
from remat_plan.planning.honours import honours
from remat_plan.planning.saving import (
    distinct_values,
    may_nest,
    plain_segment,
    read_values,
    save_segment,
    stays_plain,
)

Edit = Callable[[], "Schedule | None"]
"""Makes a neighbour."""

_DEEPEST = 3
"""Steps do not nest segments deeper: what is further inside runs again so many times."""

_VALUES, _BORDERS, _NESTS = range(3)
"""Kinds of steps, in the order in which they are tried: of a hundred that keep or drop a value some five are better
than what was known, of those that move a border two, of those that nest or exchange values less than one."""


def can_move(graph: Graph) -> bool:
    """Tell whether the schedules of a program can be changed by these steps: it has equations, and no structures."""
    return bool(graph.ops) and not holds_structure(graph)


class _Step(NamedTuple):
    """Segments ``first .. last-1`` of a schedule replaced by what ``make`` returns."""

    kind: int
    first: int
    last: int
    make: Callable[[], Schedule | None]


class Moves:
    """Makes the neighbours of schedules of one program."""

    def __init__(self, graph: Graph, cuts: Cuts):
        self.graph, self.cuts = graph, cuts
        made = [op.index for op in graph.ops if op.index not in cuts.free and kind_of(op.eqn) != Kind.ALIAS]
        self.borders = [index + 1 for index in made if index + 1 < len(graph.ops)]

    def neighbours(self, schedule: Schedule) -> list[Edit]:
        """All steps from a schedule, the promising kinds first; those of a kind in an order that has no pattern."""
        steps = list(self._steps(schedule, 0))
        random.Random(len(steps)).shuffle(steps)
        return [partial(self._honoured, schedule, step) for step in sorted(steps, key=lambda step: step.kind)]

    def _taken(self, schedule: Schedule, step: _Step) -> Schedule | None:
        made = step.make()
        return None if made is None else joined((*schedule[: step.first], *made, *schedule[step.last :]))

    def _honoured(self, schedule: Schedule, step: _Step) -> Schedule | None:
        made = self._taken(schedule, step)
        return made if made is not None and honours(self.graph, self.cuts.limits, made) else None

    def _steps(self, schedule: Schedule, depth: int) -> Iterator[_Step]:
        """The steps from the segments at one level, and from those inside them."""
        for i, segment in enumerate(schedule):
            if segment.children:
                yield _Step(_BORDERS, i, i + 1, lambda s=segment: s.children)
                for step in self._steps(segment.children, depth + 1):
                    yield _Step(step.kind, i, i + 1, partial(self._inside, segment, step))
            else:
                yield from self._values(i, segment)
                yield from self._halves(i, segment, depth)
            if i + 1 < len(schedule):
                yield from self._shared_border(i, segment, schedule[i + 1])
            if depth < _DEEPEST:
                for j in range(i + 2, len(schedule) + 1):
                    yield _Step(_NESTS, i, j, partial(self._around, schedule[i:j]))

    def _inside(self, segment: Segment, step: _Step) -> Schedule | None:
        children = self._taken(segment.children, step)
        return None if children is None else self._around(children)

    def _around(self, children: Schedule) -> Schedule | None:
        """A segment around others; what would be around one alone is that one."""
        start, end = children[0].start, children[-1].end
        if len(children) == 1:
            return children
        return (around(start, end, children),) if may_nest(self.graph, self.cuts, start, end) else None

    def _values(self, i: int, segment: Segment) -> Iterator[_Step]:
        """One value more or less, or by another action; one instead of another; or all, by leaving it as it is."""
        start, end = segment.start, segment.end
        if not segment.checkpointed:
            yield _Step(_BORDERS, i, i + 1, partial(self._saving, start, end, {}))
            return
        yield _Step(_BORDERS, i, i + 1, partial(self._plain, start, end))
        read = read_values(self.graph, start, end, segment.saved)
        saved = dict(segment.actions)
        less = {v: {u: action for u, action in saved.items() if u != v} for v in frozenset(saved)}
        others = [v for v in distinct_values(self.graph, self.cuts, start, end) if v in read and v not in saved]
        more = [{**saved, v: SAVE} for v in others]
        by_others = [{**saved, v: a} for v in saved for a in (SAVE, *self.cuts.limits.priced) if a != saved[v]]
        for kept in (*less.values(), *more, *by_others):
            yield _Step(_VALUES, i, i + 1, partial(self._saving, start, end, kept))
        for v in sorted(saved):
            for u in others:
                yield _Step(_NESTS, i, i + 1, partial(self._saving, start, end, {**less[v], u: SAVE}))

    def _halves(self, i: int, segment: Segment, depth: int) -> Iterator[_Step]:
        """Two segments instead of one, each as it was, as it is, or nothing saved; and a segment around two."""
        for border in self.borders:
            if segment.start < border < segment.end:
                for left, right in ((True, True), (True, False), (False, True)):
                    halves = partial(self._two, segment, border, left, right)
                    yield _Step(_BORDERS, i, i + 1, halves)
                    if segment.checkpointed and depth < _DEEPEST:
                        yield _Step(_NESTS, i, i + 1, partial(self._nested, halves))

    def _two(self, segment: Segment, border: int, left: bool, right: bool) -> Schedule | None:
        halves = []
        for start, end, again in ((segment.start, border, left), (border, segment.end, right)):
            halves.append(self._saving(start, end, dict(segment.actions)) if again else self._plain(start, end))
        return _all_of(halves)

    def _nested(self, make: Callable[[], Schedule | None]) -> Schedule | None:
        children = make()
        return None if children is None else self._around(children)

    def _shared_border(self, i: int, left: Segment, right: Segment) -> Iterator[_Step]:
        """The border between two segments elsewhere, or nowhere."""
        for border in self.borders:
            if left.start < border < right.end and border != left.end:
                yield _Step(_BORDERS, i, i + 2, partial(self._moved, left, right, border))
        if not left.children and not right.children:
            saved = dict((*left.actions, *right.actions))
            yield _Step(_BORDERS, i, i + 2, partial(self._saving, left.start, right.end, saved))
            yield _Step(_BORDERS, i, i + 2, partial(self._plain, left.start, right.end))

    def _moved(self, left: Segment, right: Segment, border: int) -> Schedule | None:
        return _all_of([self._resized(left, left.start, border), self._resized(right, border, right.end)])

    def _resized(self, segment: Segment, start: int, end: int) -> Schedule | None:
        """A segment with another start or end; of segments inside, the outermost give or take."""
        if not segment.children:
            return self._saving(start, end, dict(segment.actions)) if segment.checkpointed else self._plain(start, end)
        inside = [c for c in segment.children if c.start < end and start < c.end]
        if not inside:
            return None
        last = len(inside) - 1
        ends = [(start if k == 0 else c.start, end if k == last else c.end) for k, c in enumerate(inside)]
        children = _all_of([self._resized(c, s, e) for c, (s, e) in zip(inside, ends, strict=True)])
        return None if children is None else self._around(children)

    def _saving(self, start: int, end: int, wanted: Mapping[int, str]) -> Schedule | None:
        if stays_plain(self.graph, self.cuts, start, end):
            return None
        return (save_segment(self.graph, self.cuts, start, end, wanted),)

    def _plain(self, start: int, end: int) -> Schedule:
        return (plain_segment(self.graph, self.cuts, start, end),)


def _all_of(parts: Sequence[Schedule | None]) -> Schedule | None:
    """Parts one after another; nothing where one of them is."""
    found: list[Segment] = []
    for part in parts:
        if part is None:
            return None
        found += part
    return tuple(found)
