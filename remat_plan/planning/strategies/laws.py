"""What each strategy makes of a structure: the same law for scanned layers as for layers written out.

In: a structure, the schedules that the strategy makes of the regions inside it. Out: ``Choice``s to compare.

    strategy                        layers written out                  layers under a scan
    each_block, dots(_no_batch)     a segment for each layer            a segment for each step
    speed, collection, mirror       segments between cuts or names      the same inside each step
    split                           the largest blocks in slices        the same inside each step
    memory                          about sqrt(n) frontiers             groups of steps, about sqrt(n) of them
    budgeted                        frontiers whenever b bytes gather   groups of steps of any size
    log                             recursive halving                   groups in groups, about log(n) levels
    binomial                        the fewest blocks for s slots       the fewest steps for s slots
    milp                            integer programs                    integer programs of a step, and mixtures

Branches and calls take the schedules of their regions as they are, up to their ends: layers in a branch have no loss
behind them, which would stay open. A region that holds structures itself is no layer: it stays open, and what is inside
it is treated by the same law. Where something in a step must not run again
(an effect, or what a user keeps), steps are in no groups: each is run by the strategy's schedules of the body.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Choice, Part, Schedule, Segment, as_is
from remat_plan.graph.structure import holds_structure, structure_of
from remat_plan.loops.nested import log_factors
from remat_plan.planning.honours import honours_choice
from remat_plan.planning.strategies.records import Task
from remat_plan.solve.binomial import advances, slots_for

_DEEPEST = 6
_SPREAD = 8


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop as a law sees it.

    Attributes:
        length: the trip count.
        body: the region of a step.
        schedules: what the strategy makes of the body.
    """

    length: int
    body: Task
    schedules: tuple[Schedule, ...]

    def alike(self, schedule: Schedule) -> Choice:
        """Every step by one schedule."""
        return Choice((Part(self.length, schedule),))

    def grouped(self, size: int, schedule: Schedule) -> Choice:
        """Groups of ``size`` steps."""
        return Choice((Part(self.length, schedule, (-(-self.length // size),)),))

    @property
    def plain(self) -> Schedule:
        """A step as it is."""
        return (as_is(0, len(self.body.graph.ops)),)

    @property
    def open(self) -> bool:
        """Whether a step holds structures, so that it is no layer itself."""
        return holds_structure(self.body.graph)


Law = Callable[[Loop], Iterable[Choice]]
"""What a strategy does with a loop: choices, the preferred one first."""


def each_step(loop: Loop) -> Iterator[Choice]:
    """Each step by the strategy's schedules of the body."""
    return (loop.alike(schedule) for schedule in loop.schedules)


def square_root(loop: Loop) -> Iterator[Choice]:
    """Groups of about sqrt(n) steps, and a segment for each step where steps are light."""
    for schedule in dict.fromkeys((loop.plain, *loop.schedules)):
        for size in _sizes(loop.length, round(loop.length**0.5)):
            yield loop.grouped(size, schedule)
    yield from (loop.alike(schedule) for schedule in loop.schedules)


def _sizes(length: int, about: int) -> list[int]:
    found = {max(2, about // 2), max(2, about), min(2 * about, length // 2)}
    return sorted(size for size in found if 1 < size < length)


def any_size(loop: Loop) -> Iterator[Choice]:
    """Groups of 2, 4, 8, ... steps, and a segment for each step."""
    yield from (loop.alike(schedule) for schedule in loop.schedules)
    size = 2
    while size < loop.length:
        yield loop.grouped(size, loop.plain)
        size *= 2


def logarithmic(loop: Loop) -> Iterator[Choice]:
    """Groups in groups, down to a segment for each step."""
    groups = log_factors(loop.length)[:-1] or (2,)
    yield Choice((Part(loop.length, loop.schedules[0], groups),))


def slotted(loop: Loop) -> Iterator[Choice]:
    """Binomial checkpointing with the slots that were asked for, or a spread of slots."""
    asked = loop.body.settings.slots
    schedule = loop.schedules[0] if loop.open else loop.plain
    most = max(loop.length - 1, 1)
    if asked is not None:
        yield Choice((Part(loop.length, schedule),), slots=min(asked, most))
        return
    least = slots_for(loop.length, _DEEPEST)
    spread = {round(least * (most / least) ** (i / (_SPREAD - 1))) for i in range(_SPREAD)}
    for slots in sorted(s for s in spread if advances(loop.length, s) > 0):
        yield Choice((Part(loop.length, schedule),), slots=slots)


def mixtures(loop: Loop) -> Iterator[Choice]:
    """Each step by the strategy's schedules, and half of the steps by one, half by the next."""
    yield from each_step(loop)
    half = loop.length // 2
    for less, more in itertools.pairwise(loop.schedules):
        yield Choice((Part(loop.length - half, less), Part(half, more)))


def apply_law(
    task: Task,
    schedules: Sequence[Schedule],
    law: Law,
    make: Callable[[Graph, bool], tuple[Task, tuple[Schedule, ...]]],
) -> tuple[Schedule, ...]:
    """Put choices for all structures of a program into schedules of the rest.

    Args:
        task: the program.
        schedules: in which structures are as they are.
        law: of the strategy.
        make: the task of a region inside a structure, and the strategy's schedules of it; of a loop's body or not.

    Returns:
        For each schedule, one with the first choice for every structure, one with the second, and so on.
    """
    choices: dict[int, list[Choice]] = {}
    outside = task.graph.apart | task.cuts.limits.pinned
    for op in task.graph.ops:
        structure = structure_of(op)
        if structure is not None and op.index not in task.cuts.limits.whole:
            trips = structure.loop(task.graph, op)
            if trips is None:
                found = _as_made([make(region, False)[1] for region in structure.regions(task.graph, op)])
            else:
                loop = Loop(trips.count, *make(trips.body, True))
                found = itertools.chain(law(loop), each_step(loop) if op.index in outside else ())
            respected = [c for c in found if honours_choice(task.graph, task.cuts.limits, op, c)]
            choices[op.index] = list(dict.fromkeys(respected))
    choices = {index: found for index, found in choices.items() if found}
    if not choices:
        return tuple(schedules)
    most = max(map(len, choices.values()))
    picked = [{index: found[min(i, len(found) - 1)] for index, found in choices.items()} for i in range(most)]
    return tuple(dict.fromkeys(with_choices(s, made) for s in schedules for made in picked))


def _as_made(made: Sequence[Sequence[Schedule]]) -> Iterator[Choice]:
    """The strategy's schedules of regions that each run once, one after another."""
    for i in range(max(map(len, made))):
        yield Choice(tuple(Part(1, found[min(i, len(found) - 1)]) for found in made))


def with_choices(schedule: Schedule, choices: dict[int, Choice]) -> Schedule:
    """Return a schedule in which structures are run by choice, inside segments as well as outside."""

    def changed(segment: Segment) -> Segment:
        if segment.way.sliced:
            return segment  # its slices are run as they are
        if segment.children:
            return segment.with_parts(schedule=with_choices(segment.children, choices))
        inside = tuple((i, choice) for i, choice in choices.items() if segment.start <= i < segment.end)
        return segment.with_parts(choices=inside) if inside else segment

    return tuple(changed(segment) for segment in schedule)
