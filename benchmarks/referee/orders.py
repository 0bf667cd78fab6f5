"""Orders of equations that schedules, and the rules of others, lead to.

In: ``Game``, schedules of the package or sets of saved values. Out: ``Order``s.

Limits: of segments inside segments, what JAX runs again although nobody reads it is not in the order, so nested
schedules may cost more than it says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from benchmarks.referee.model import Game, Stage
from benchmarks.referee.play import Order
from remat_plan.graph.schedule import Schedule, Segment

_Event = tuple[int, bool]
"""An operation of the graph, and whether it is its backward equation."""


def order_of(game: Game, schedule: Schedule) -> Order:
    """Return the order in which JAX runs a schedule: a segment's forward pass again, then its backward equations."""
    backward = {stage.op: stage for stage in game.stages if stage.equation < 0}
    order: list[tuple[Sequence[int], Stage]] = [((), s) for s in game.stages if s.equation >= 0]
    again: list[int] = []
    for op, is_backward in _backward(game, schedule):
        if not is_backward:
            again.append(game.number[op])
        elif op in backward:
            order.append((tuple(again), backward[op]))
            again = []
    return order


def _backward(game: Game, segments: Sequence[Segment]) -> Iterator[_Event]:
    """The backward pass of segments, the last one first."""
    for segment in reversed(segments):
        if segment.children:
            for child in segment.children:
                yield from _forward(game, child)
            yield from _backward(game, segment.children)
            continue
        if segment.checkpointed:
            yield from _forward(game, segment)
        for op in reversed(range(segment.start, segment.end)):
            yield op, True


def _forward(game: Game, segment: Segment) -> Iterator[_Event]:
    """The forward pass of one segment where it runs again, but for what it saves."""
    saved = {game.producers[v] for v in segment.saved}
    for op in range(segment.start, segment.end):
        if op in game.number and op not in saved:
            yield op, False


def lazy_order(game: Game, saved: Collection[int]) -> Order:
    """Return the order in which what is missing runs again just before it is read, once, and then stays.

    So PyTorch's compiler orders the backward pass that it was given a set of saved values for.
    """
    there = set(saved)
    order = []
    for stage in game.stages:
        again: list[int] = []
        if stage.equation < 0:
            for value in stage.reads:
                _fetch(game, value, there, again)
        order.append((tuple(again), stage))
    return order


def _fetch(game: Game, value: int, there: set[int], again: list[int]) -> None:
    if value in there:
        return
    for read in game.reads[value]:
        _fetch(game, read, there, again)
    there.add(value)
    again.append(value)
