"""Whether a schedule can run the graph that it is given for.

In: ``Graph``, a schedule that somebody wrote, or stored. Out: nothing, or ``ValueError`` that names the place.

``schedule.check_cover`` looks at segments alone; here is what only the graph tells: which values a segment makes,
which equations are structures, what regions they have and how often these run.
"""

from __future__ import annotations

from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Schedule, Segment, check_cover, is_written
from remat_plan.graph.structure import structure_of
from remat_plan.graph.uses import free_ops


def check_schedule(graph: Graph, schedule: Schedule) -> None:
    """Raise ``ValueError`` unless a schedule can run a graph, at every level; ``WRITTEN`` always can."""
    if not is_written(schedule):
        _check_region(graph, schedule)


def _check_region(graph: Graph, schedule: Schedule) -> None:
    check_cover(schedule, 0, len(graph.ops))
    free = free_ops(graph)
    for segment in schedule:
        _check_segment(graph, free, segment)


def _check_segment(graph: Graph, free: frozenset[int], segment: Segment) -> None:
    place = f"segment {segment.start}..{segment.end}"
    if segment.checkpointed and (again := graph.apart.intersection(range(segment.start, segment.end))):
        raise ValueError(f"{place} runs equation {min(again)} again, which has an effect that must happen once")
    for v in segment.saved:
        producer = graph.values[v].producer if 0 <= v < len(graph.values) else -1
        if not segment.start <= producer < segment.end or producer in free:
            raise ValueError(f"{place} saves value {v}, which it does not compute")
    for index, choice in segment.choices:
        _check_choice(graph, graph.ops[index], choice)
    for child in segment.children:
        _check_segment(graph, free, child)


def _check_choice(graph: Graph, op: Op, choice: Choice) -> None:
    structure, place = structure_of(op), f"equation {op.index} ({op.primitive})"
    if structure is None:
        raise ValueError(f"{place} is not a loop, branch or call that can be planned inside")
    regions, loop = structure.regions(graph, op), structure.loop(graph, op)
    if loop is None:
        if len(choice.parts) != len(regions) or choice.slots or any(part.groups for part in choice.parts):
            raise ValueError(f"{place} has {len(regions)} regions and no steps, which this choice does not fit")
    else:
        _check_steps(choice, loop.count, place)
        if op.effectful and (choice.slots or any(part.groups for part in choice.parts)):
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
