"""Programs that are all inside one call, such as a ``shard_map`` over all devices.

In: the ``Rules`` and ``Limits`` of a program. Out: ``Inside``: those of the region that its equations are in, and its
schedules as schedules of the program.

A call is one equation of its program, and a chain of one block has nothing to teach: where all work is inside one, the
chain of the region is that of the program. What little is around the call stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan.cost.builder import Rules
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part, Schedule, as_is, is_planned, structured
from remat_plan.graph.structure import structure_of
from remat_plan.planning.limits import Limits
from remat_plan.planning.runs import op_seconds

_ALL = 0.99
"""A call with this share of a program's seconds is all of it."""


@dataclass(frozen=True, slots=True)
class Inside:
    """Where the equations of a program are.

    Attributes:
        rules, limits: of the region that holds them; the program itself where no call does.
        calls: from the program down to the region, a graph, the position of the call in it, and what that calls.
    """

    rules: Rules
    limits: Limits
    calls: tuple[tuple[Graph, int, Graph], ...] = ()

    @property
    def path(self) -> tuple[int, ...]:
        """The positions of the calls, which are what places in a timeline begin with there."""
        return tuple([index for _, index, _ in self.calls])

    def around(self, schedule: Schedule) -> Schedule:
        """A schedule of the region as one of the program."""
        for graph, index, _ in reversed(self.calls):
            n = len(graph.ops)
            called = structured(index, Choice((Part(1, schedule),)))
            parts = as_is(0, index), called, as_is(index + 1, n)
            schedule = tuple([s for s in parts if s.start < s.end]) if is_planned(schedule) else (as_is(0, n),)
        return schedule

    def within(self, schedule: Schedule) -> Schedule:
        """What a schedule of the program, made by ``around``, is in the region."""
        for _, index, region in self.calls:
            choice = next((c for s in schedule if (c := s.choice(index)) is not None), None)
            schedule = (as_is(0, len(region.ops)),) if choice is None else choice.parts[0].schedule
        return schedule


def find_inside(rules: Rules, limits: Limits) -> Inside:
    """Return where the equations of a program are."""
    calls: list[tuple[Graph, int, Graph]] = []
    while (call := _whole_call(rules)) is not None:
        op, region = call
        calls.append((rules.graph, op.index, region))
        rules, limits = rules.inside(region, is_body=False), limits.inside(region)
    return Inside(rules, limits, tuple(calls))


def _whole_call(rules: Rules) -> tuple[Op, Graph] | None:
    """The call that a program is all of, and its region; None where there is none."""
    graph = rules.graph
    seconds = op_seconds(graph, rules.hardware)
    op = max(graph.ops, key=lambda op: seconds[op.index], default=None)
    structure = None if op is None or seconds[op.index] < _ALL * sum(seconds) else structure_of(op)
    if op is None or structure is None or structure.loop(graph, op) is not None:
        return None
    regions = structure.regions(graph, op)
    return (op, regions[0]) if len(regions) == 1 and tuple(structure.run_counts(op)) == (1.0,) else None
