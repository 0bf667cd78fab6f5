"""The strategy ``split``: what needs most memory runs in slices, all else as it is.

In: ``Task``. Out: ``Found``: schedules for a few numbers of slices, by the ways that need least and by those that take
least time.

What sets the peak by itself is found as the planner finds it (``planning.splits``): the blocks that need most, as they
are, and around each the run that hands on fewest bytes. Equal ones are split alike, so that of layers each is. People
write so by hand for a loss head, attention or a hidden layer (Luo et al. 2024, arXiv 2407.15892).

Limits: nothing is recomputed outside of slices, so what layers keep for the backward pass stays. Unlike in a search,
small values are split too: whoever asks for this strategy has said so.
"""

from __future__ import annotations

import itertools

from remat_plan.cost.builder import Rules
from remat_plan.graph.schedule import Schedule, Segment, as_is
from remat_plan.graph.slices import region_of
from remat_plan.graph.uses import Borders
from remat_plan.graph.ways import Split
from remat_plan.planning.blend import joined
from remat_plan.planning.profile import PlainRun, plain_run
from remat_plan.planning.runs import Run, find_runs
from remat_plan.planning.saving import plain_segment
from remat_plan.planning.splits import SLICES, large_runs, narrowest, split_ways
from remat_plan.planning.strategies.records import Found, Task

Place = tuple[int, int]
"""A run of blocks, by the cuts that it begins and ends at."""

Ways = tuple[tuple[Split, PlainRun], ...]
"""The ways to split a run, each with what it takes."""


def find_split(task: Task) -> Found:
    """Split the runs that need most; a note says how many there are."""
    runs = {place: run for place, run in find_runs(task.graph, task.cuts).items() if run.values}
    places = _places(task, runs)
    if not places:
        return Found((_schedule(task, {}),), ("nothing that can run in slices needs much memory",))
    schedules = []
    for slices, fast in itertools.product(SLICES, (False, True)):
        chosen = {
            place: runs[place].segment(min(ways, key=lambda pair: _order(pair, slices, fast))[0])
            for place, ways in places.items()
        }
        schedules.append(_schedule(task, chosen))
    counted = "1 run of blocks is" if len(places) == 1 else f"{len(places)} runs of blocks are"
    return Found(tuple(dict.fromkeys(schedules)), (f"{counted} split, all else is unchanged",))


def _order(pair: tuple[Split, PlainRun], slices: int, fast: bool) -> tuple[float, ...]:
    """What comes first of ways to split a run: the number of slices, if there is a way; then bytes, or seconds."""
    way, found = pair
    cost = found.timeline.peak_bytes, found.timeline.seconds
    return abs(way.slices - slices), *(cost[::-1] if fast else cost)


def _places(task: Task, runs: dict[Place, Run]) -> dict[Place, Ways]:
    """Where to split, with the ways to: for each block that needs much a run around it, or else the block."""
    rules = Rules(task.graph, task.hardware, spread=task.spread)
    needed: dict[object, int] = {}
    ways: dict[object, Ways] = {}
    single = {place: run for place, run in runs.items() if place[1] == place[0] + 1}
    for run in single.values():
        if run.signature not in needed:
            needed[run.signature] = plain_run(rules, run).timeline.peak_bytes
    by_block = {place: needed[run.signature] for place, run in single.items()}
    found: dict[Place, Ways] = {}
    for block in sorted(large_runs(by_block), key=lambda block: (-by_block[block], block)):
        for place in dict.fromkeys((*narrowest(task.graph, runs, block), block)):
            run = runs[place]
            if any(place[0] < end and start < place[1] for start, end in found):
                continue  # it is split already, or a part of it is
            if run.signature not in ways:
                ways[run.signature] = tuple([(way, plain_run(rules, run, way)) for way in split_ways(rules, run, 0)])
            if ways[run.signature]:
                found[place] = ways[run.signature]
                break
    return found


def _schedule(task: Task, chosen: dict[Place, Segment]) -> Schedule:
    """Chosen runs as their segments, the blocks between them as they are."""
    graph, cuts = task.graph, task.cuts
    starts, borders = {start: (end, segment) for (start, end), segment in chosen.items()}, Borders(graph)
    found: list[Segment] = []
    number = 0
    while number < len(cuts.positions) - 1:
        end, segment = starts.get(number, (number + 1, None))
        first, last = cuts.positions[number], cuts.positions[end]
        if segment is None:
            found.append(plain_segment(graph, cuts, first, last))
        else:  # what depends on literals only may stand before it and behind it
            region_of(borders, segment)  # it is kept: where a map over devices runs, it could not be made
            found += [as_is(first, segment.start)] * (first < segment.start) + [segment]
            found += [as_is(segment.end, last)] * (segment.end < last)
        number = end
    return joined(tuple(found))
