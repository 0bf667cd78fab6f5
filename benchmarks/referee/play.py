"""What an order of equations costs.

In: ``Game``, an order: stages, and forward equations that run again before them. Out: ``Score``, or ``ValueError``.

Every contestant ends as such an order, so all are judged by this module, and none by its own solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.referee.model import Game, Stage

Order = Sequence[tuple[Sequence[int], Stage]]
"""Per stage, the forward equations that run again before what is due, in order, and what is due."""


@dataclass(frozen=True, slots=True)
class Score:
    """What an order needs.

    Attributes:
        peak_bytes: beside what the caller owns.
        again_seconds: of what runs more than once.
        again: how many equations run again.
    """

    peak_bytes: int
    again_seconds: float
    again: int


@dataclass(frozen=True, slots=True)
class _Event:
    writes: int  # value; -1 for a backward equation
    reads: tuple[int, ...]
    held_bytes: int
    is_due: bool


def play(game: Game, order: Order) -> Score:
    """Return what an order costs; what nobody reads is not run again, and values go after their last reader.

    Raises:
        ValueError: a stage is missing, or something is read that is not there.
    """
    if tuple(stage for _, stage in order) != game.stages:
        raise ValueError("an order must have all stages of the game, in their order")
    events = _needed(_events(game, order))
    _check(events)
    again = [e.writes for e in events if not e.is_due]
    return Score(_peak_bytes(game, events), sum(game.seconds[n] for n in again), len(again))


def _events(game: Game, order: Order) -> list[_Event]:
    events = []
    for again, stage in order:
        events += [_Event(n, game.reads[n], stage.held_bytes, False) for n in again]
        reads = game.reads[stage.equation] if stage.equation >= 0 else stage.reads
        events.append(_Event(stage.equation, reads, stage.during_bytes, True))
    return events


def _needed(events: list[_Event]) -> list[_Event]:
    """Leave out repeats that nobody reads."""
    wanted: set[int] = set()
    kept = []
    for event in reversed(events):
        if event.is_due or event.writes in wanted:
            wanted.discard(event.writes)
            wanted.update(event.reads)
            kept.append(event)
    kept.reverse()
    return kept


def _check(events: list[_Event]) -> None:
    made: set[int] = set()
    for event in events:
        if missing := set(event.reads) - made:
            raise ValueError(f"values {sorted(missing)} are read before they are made")
        made.add(event.writes)


def _peak_bytes(game: Game, events: list[_Event]) -> int:
    """A value is there from its equation to the last one that reads it before it is made again."""
    wanted: set[int] = set()
    peak = 0
    for event in reversed(events):  # wanted: what is there after this event
        there = wanted | set(event.reads) | ({event.writes} if event.writes >= 0 else set())
        peak = max(peak, event.held_bytes + sum(game.value_bytes[v] for v in there))
        wanted.discard(event.writes)
        wanted.update(event.reads)
    return peak


def plain_order(game: Game) -> Order:
    """Every equation once."""
    return [((), stage) for stage in game.stages]
