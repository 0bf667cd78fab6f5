"""Whether a schedule can run the graph that it is given for.

In: ``Graph``, a schedule that somebody wrote, or stored. Out: nothing, or ``ValueError`` that names the place.

``schedule.check_cover`` looks at segments alone; here is what only the graph tells: which values a segment makes,
which equations are structures, what regions they have and how often these run, along which axes a segment can be split.
"""

from __future__ import annotations

from remat_plan.graph.apart import find_apart
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Schedule, Segment, check_cover, is_written
from remat_plan.graph.slices import sliced
from remat_plan.graph.structure import adds_up, structure_of
from remat_plan.graph.uses import Borders
from remat_plan.graph.ways import Split


def check_schedule(graph: Graph, schedule: Schedule) -> None:
    """Raise ``ValueError`` unless a schedule can run a graph, at every level; ``WRITTEN`` always can."""
    if not is_written(schedule):
        _check_region(graph, schedule)


def _check_region(graph: Graph, schedule: Schedule) -> None:
    check_cover(schedule, 0, len(graph.ops))
    borders = Borders(graph)
    for segment in schedule:
        _check_segment(borders, segment)


def _check_segment(borders: Borders, segment: Segment) -> None:
    graph = borders.graph
    place = f"segment {segment.start}..{segment.end}"
    if segment.checkpointed and (again := graph.apart.intersection(range(segment.start, segment.end))):
        raise ValueError(f"{place} runs equation {min(again)} again, which has an effect that must happen once")
    given = segment.hosted.intersection(borders.interface(segment)[0])
    for v in sorted({*segment.saved} - given):
        if segment.children or not _makes(borders, segment, v):
            raise ValueError(f"{place} saves value {v}, which it does not compute")
    for index, choice in segment.choices:
        _check_choice(graph, graph.ops[index], choice)
    for child in segment.children:
        _check_segment(borders, child)
    if isinstance(segment.way, Split):
        _check_split(borders, segment, segment.way, place)


def _makes(borders: Borders, segment: Segment, v: int) -> bool:
    producer = borders.graph.values[v].producer if 0 <= v < len(borders.graph.values) else -1
    return segment.start <= producer < segment.end and producer not in borders.free


def _check_split(borders: Borders, segment: Segment, way: Split, place: str) -> None:
    """Check that a segment can be split as its way says, and that what is said of its region fits that."""
    graph, v, d = borders.graph, way.value, way.dimension
    if not _makes(borders, segment, v):
        raise ValueError(f"{place} is split by value {v}, which it does not compute")
    text, shape = graph.values[v].text, getattr(graph.values[v].aval, "shape", ())
    if not 0 <= d < len(shape):
        raise ValueError(f"{place} is split along dimension {d} of value {v}, which is {text}")
    axis = f"dimension {d} of value {v} ({text})"
    apart = find_apart(borders, segment, v, d)
    if apart is None:
        raise ValueError(f"{place} cannot be split along {axis}: its equations do not keep that axis apart")
    if not 2 <= way.slices <= apart.units:
        raise ValueError(
            f"{place} cannot run in {way.slices} slices along {axis}, which has room for 2 to {apart.units}"
        )
    found = sliced(borders, segment, way)
    if found is None:
        why = "no gradient goes through what slices make, or devices would sum it in each slice"
        raise ValueError(f"{place} cannot run in slices along {axis}: {why}")
    try:
        _check_region(found.region, way.sliced)
    except ValueError as error:
        raise ValueError(f"{place}, run in slices: {error}") from None


def _check_choice(graph: Graph, op: Op, choice: Choice) -> None:
    structure, place = structure_of(op), f"equation {op.index} ({op.primitive})"
    if structure is None:
        raise ValueError(f"{place} is not a loop, branch or call that can be planned inside")
    regions, loop = structure.regions(graph, op), structure.loop(graph, op)
    if loop is None:
        if len(choice.parts) != len(regions) or choice.repeats or choice.gradient_first:
            raise ValueError(f"{place} has {len(regions)} regions and no steps, which this choice does not fit")
    else:
        _check_steps(choice, loop.count, place)
        if choice.gradient_first and (choice.repeats or len(choice.parts) > 1 or not adds_up(loop)):
            why = "its steps are not run alike, once each" if adds_up(loop) else "it does more than add up one scalar"
            raise ValueError(f"{place} cannot make its gradient in the forward pass: {why}")
        if op.effectful and choice.repeats:
            raise ValueError(f"{place} has an effect that must happen once, but groups and slots would repeat it")
    for number, part in enumerate(choice.parts):
        if not part.schedule:
            raise ValueError(f"{place} has a part without a schedule")
        _check_region(regions[number if len(regions) > 1 else 0], part.schedule)


def _check_steps(choice: Choice, count: int, place: str) -> None:
    """Check that the parts of a loop are all of its steps, in groups that there are steps for."""
    planned = [part.count for part in choice.parts]
    if min(planned) < 1 or sum(planned) != count:
        raise ValueError(f"{place} runs {count} steps, but its parts have {planned}")
    if choice.slots < 0 or (choice.slots and len(planned) > 1):
        raise ValueError(f"{place} cannot run {len(planned)} parts in {choice.slots} slots")
    for part in choice.parts:
        steps = part.count
        for groups in part.groups:
            if not 1 <= groups <= steps:
                raise ValueError(f"{place} has {steps} steps, which cannot be divided into {groups} groups")
            steps = -(-steps // groups)
