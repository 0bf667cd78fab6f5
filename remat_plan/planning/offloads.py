"""What of the values that the steps of a loop keep goes to the host.

In: schedules of a loop's step that are worth having, ``Limits``, ``Hardware``. Out: the same with some of what they
keep moved: what a step is given by the last one, then its own values, in the order in which they are made, the first of
them or the last.

Which values are kept does not depend on where, as long as a byte costs the same wherever it comes from: those that are
worth keeping on the device are worth moving. How many of them the link carries while the kernels work is the
evaluator's word (``cost.links``), and how many steps do so is a matter of stretches.

Limits: of a step that is one segment, so that no other segment holds on to what goes. Nothing is moved outside of
loops, where XLA:GPU and XLA:TPU need more memory for it and not less (an unrolled GPT-2 on an H100: 843 MB of
temporaries, and 2504 with its products moved).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from remat_plan.cost.hardware import Hardware
from remat_plan.cost.rules import communicates
from remat_plan.graph.action import OFFLOAD, SAVE
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Schedule, Segment
from remat_plan.graph.structure import structure_of
from remat_plan.graph.uses import Borders
from remat_plan.planning.limits import Limits
from remat_plan.planning.saving import read_values

LEAST_SHARE = 1 / 64
"""Values smaller than this share of the largest one stay on the device: each transfer has to be started."""


def may_offload(limits: Limits, hardware: Hardware) -> bool:
    """Whether a request allows it, and there is another memory to go to."""
    return OFFLOAD in limits.actions and hardware.link_bytes_per_second > 0


def offloaded(region: Graph, limits: Limits, schedules: Iterable[Schedule]) -> tuple[Schedule, ...]:
    """Return what is made of schedules of a loop's step by moving some of what they keep."""
    borders = Borders(region)
    alone = [schedule[0] for schedule in schedules if len(schedule) == 1 and schedule[0].checkpointed]
    return tuple(dict.fromkeys((made,) for segment in alone for made in _moved(borders, limits, segment)))


def in_loops(graph: Graph, limits: Limits, schedule: Schedule) -> tuple[Schedule, ...]:
    """Return what is made of a whole program's schedule by moving, in the steps of all loops, what they are given, or
    all that they keep: as people do by policies."""
    return tuple(dict.fromkeys(_with_steps(graph, limits, schedule, everything) for everything in (False, True)))


def _with_steps(graph: Graph, limits: Limits, schedule: Schedule, everything: bool) -> Schedule:
    def moved(region: Graph, steps: Schedule) -> Schedule:
        found = offloaded(region, limits.inside(region), [steps]) if region.carried else ()
        return found[-1 if everything else 0] if found else steps

    def chosen(op: Op, choice: Choice) -> Choice:
        structure = structure_of(op)
        assert structure is not None
        pairs = zip(choice.parts, itertools.cycle(structure.regions(graph, op)), strict=False)
        return replace(choice, parts=tuple([replace(p, schedule=moved(region, p.schedule)) for p, region in pairs]))

    def segment(s: Segment) -> Segment:
        return s.with_parts(choices=tuple([(i, chosen(graph.ops[i], c)) for i, c in s.choices])) if s.choices else s

    return tuple(map(segment, schedule))


def _moved(borders: Borders, limits: Limits, segment: Segment) -> Iterator[Segment]:
    """Yield a segment with the first of what it keeps moved, or the last; at last all of it.

    Where values were named, one that keeps these is among them: what is named may cost less to make again than others.
    """
    named = () if limits.movable is None else limits.movable
    for keeping in dict.fromkeys([segment, _also_keeping(borders, segment, named)]):
        values = [v for v in _kept(borders, keeping) if limits.lets_move([v])]
        for count in range(1, len(values) + 1):
            for part in (values[:count], values[-count:]):
                actions = {**dict(keeping.actions), **dict.fromkeys(part, OFFLOAD)}
                yield keeping.with_parts(actions=tuple(sorted(actions.items())))


def _also_keeping(borders: Borders, segment: Segment, named: Collection[int]) -> Segment:
    """A segment that keeps values beside its own, and of all these what its backward pass reads."""
    graph, start, end = borders.graph, segment.start, segment.end
    made = {
        v for v in named if start <= graph.values[v].producer < end and graph.values[v].producer not in borders.free
    }
    if segment.children or not made:
        return segment
    wanted = {**dict.fromkeys(made, SAVE), **dict(segment.actions)}
    read = read_values(graph, start, end, wanted)
    return segment.with_parts(actions=tuple(sorted((v, action) for v, action in wanted.items() if v in read)))


def _kept(borders: Borders, segment: Segment) -> list[int]:
    """The large values that a segment keeps for its backward pass, what it was given first."""
    graph = borders.graph
    reads = set(borders.interface(segment)[0])
    given = [v for v in graph.carried if v in reads]
    made = [v for v in segment.saved if v not in given and not communicates(graph.ops[graph.values[v].producer].eqn)]
    sizes = {v: graph.values[v].size_bytes for v in (*given, *made) if hasattr(graph.values[v].aval, "shape")}
    return [v for v, size in sizes.items() if size > 0 and size >= LEAST_SHARE * max(sizes.values())]
