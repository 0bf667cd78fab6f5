"""Better schedules of small programs: a local search from those that the chain and the rules have.

In: schedules, their neighbours (``planning.moves``), a function that judges one: bytes and seconds. Out: schedules of
which none needs less memory and less time than another, none worse than those it began with.

The chain chooses among options that were found run by run, whose costs it adds up. Of a small program every value is a
large part, so what is missed by that is: a value kept by one segment only because another needs it, a border that is
good for one budget only, bytes that two instants do not need at once. Here whole schedules are judged, so nothing is
added up. It is a Pareto local search (Paquete, Chiarandini, Stuetzle 2004): of the schedules whose neighbours are not
all known, those that no other such one beats (in memory or in time) have a few neighbours judged each, in turn, so that
no budget is favoured. What is better takes its place among them at once; when all neighbours of the best are known, it
is the turn of those that only these beat. So a step that makes things worse may be the way to a better schedule.

Limits: it ends when so many were judged; what is far from where it began is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from remat_plan.graph.schedule import Schedule
from remat_plan.planning.moves import Edit

Judged = Callable[[Schedule], tuple[int, float]]
"""Bytes and seconds of a schedule."""

_TURN = 8
"""So many neighbours of a schedule are judged before it is the next one's turn."""

_GAIN = 1e-6
"""Less time by this share or less is no less: what rounding leaves."""


class _Row(NamedTuple):
    """A schedule that was judged; rows sort as the front needs them."""

    size_bytes: int
    seconds: float
    number: int
    schedule: Schedule


def improved(
    seeds: Iterable[Schedule], neighbours: Callable[[Schedule], Iterable[Edit]], judged: Judged, most: int
) -> tuple[Schedule, ...]:
    """Return schedules of which none beats another, from the least bytes to the least seconds.

    Args:
        seeds: where the search begins; all are judged.
        neighbours: of a schedule.
        judged: says what a schedule costs.
        most: so many neighbours are judged at most.
    """
    rows: list[_Row] = []
    known: set[Schedule] = set()

    def judge(schedule: Schedule) -> None:
        known.add(schedule)
        rows.append(_Row(*judged(schedule), len(rows), schedule))

    for schedule in dict.fromkeys(seeds):
        judge(schedule)
    most += len(rows)
    ways: dict[int, Iterator[Edit]] = {}
    done: set[int] = set()
    while len(rows) < most and (turn := front(row for row in rows if row.number not in done)):
        for row in turn:
            way = ways.setdefault(row.number, iter(neighbours(row.schedule)))
            near = _next_unknown(way, known, min(_TURN, most - len(rows)))
            for schedule in near:
                judge(schedule)
            if len(near) < _TURN:
                done.add(row.number)
    return tuple([row.schedule for row in front(rows)])


def front(rows: Iterable[_Row]) -> list[_Row]:
    """Return the rows that no other beats; of equal ones the first."""
    found: list[_Row] = []
    for row in sorted(rows):
        if not found or row.seconds < (1 - _GAIN) * found[-1].seconds:
            found.append(row)
    return found


def _next_unknown(ways: Iterator[Edit], known: set[Schedule], most: int) -> list[Schedule]:
    """Go some of the ways to schedules that are not known yet."""
    found: dict[Schedule, None] = {}
    for edit in ways:
        near = edit()
        if near is not None and near not in known:
            found[near] = None
        if len(found) >= most:
            break
    return list(found)
