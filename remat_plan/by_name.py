"""Choosing among the schedules of a strategy that was asked for by name.

In: a ``Task``, the evaluator and the compiler of a session, a budget or none. Out: an ``Outcome``: the schedule to
use, or the one that comes closest.

All schedules are judged by the evaluator. With a budget, the one that recomputes the fewest seconds within it is
searched for as on any curve, by compiling; without one, the least peak is taken. A strategy with one schedule has that
one checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import Timeline
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import as_is
from remat_plan.graph.structure import structure_of
from remat_plan.planning.cuts import find_cuts
from remat_plan.planning.limits import NO_CONSTRAINTS, Constraints, resolve
from remat_plan.planning.planner import isolated_primitives
from remat_plan.planning.strategies.laws import apply_law
from remat_plan.planning.strategies.records import CHECKED, NO_SETTINGS, Found, Schedule, Settings, Strategy, Task
from remat_plan.verify.search import Found as Searched

_ADVICE = "another strategy ('auto' searches for one that fits), "


@dataclass(frozen=True, slots=True)
class Request:
    """What a plan was asked for, beside the budget and the device; arguments of ``api.plan``."""

    strategy: Strategy
    verify: bool
    argnums: tuple[int, ...]
    has_aux: bool
    static_argnums: tuple[int, ...]
    existing: str
    constraints: Constraints = NO_CONSTRAINTS
    settings: Settings = NO_SETTINGS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search came to.

    Attributes:
        schedule: the one to use; where none fits, the one with the least peak.
        peak_bytes: its peak in the words of the search: predicted, or compiled with the options that it compiles with.
        advice: what else to try where it does not fit.
    """

    schedule: Schedule
    peak_bytes: int
    advice: str = ""


class Scorer(Protocol):
    """What judges schedules: a session."""

    def timeline(self, schedule: Schedule) -> Timeline:
        """The evaluator's view of a schedule."""
        ...

    def peak(self, schedule: Schedule, verify: bool) -> int:
        """Its peak, compiled or predicted."""
        ...

    def search(self, curve: Any, owned: int, budget_bytes: int, verify: bool, start: int | None) -> Searched:
        """Search the points of a family for the one to use."""
        ...

    def least(self, tried: Sequence[tuple[Any, Searched]], verify: bool) -> Outcome:
        """The schedule with the least peak of searches that found nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """Schedules of which none needs more memory and more time than another, from least memory to most.

    Attributes:
        schedules: in that order.
        limits: per schedule its predicted peak, arguments and results left out.
        owned_bytes: these.
    """

    schedules: tuple[Schedule, ...]
    limits: tuple[int, ...]
    owned_bytes: int

    def schedule(self, point: int) -> Schedule:
        """The schedule at a point."""
        return self.schedules[point]


def make_task(graph: Graph, hardware: Hardware, constraints: Constraints, settings: Settings) -> Task:
    """Return what a strategy is given.

    Raises:
        ValueError: constraints that the program does not allow.
    """
    isolate = isolated_primitives(hardware)
    return Task(graph, find_cuts(graph, isolate, resolve(graph, constraints)), hardware, isolate, settings)


def find_schedules(strategy: Strategy, task: Task) -> Found | None:
    """Return the schedules of a strategy, structures included; None for those that are the planner's own search."""
    if strategy.find is None:
        return None
    if not task.graph.ops:
        return Found(((as_is(0, 0),),))
    return _with_structures(strategy, task, strategy.find(task))


def _with_structures(strategy: Strategy, task: Task, found: Found) -> Found:
    """Return schedules in which structures are run by the strategy's law too, at any depth."""

    def make(region: Graph) -> tuple[Task, tuple[Schedule, ...]]:
        inner = Task(region, find_cuts(region, task.isolate), task.hardware, task.isolate, task.settings, True)
        layer = strategy.layer is not None and not any(structure_of(op) for op in region.ops)
        find = strategy.layer if layer else strategy.find
        assert find is not None
        if not region.ops:
            return inner, ((as_is(0, 0),),)
        return inner, _with_structures(strategy, inner, find(inner)).schedules

    if strategy.law is None or not any(structure_of(op) for op in task.graph.ops):
        return found
    return Found(apply_law(task, found.schedules, strategy.law, make), found.notes)


def may_stay_plain(strategy: Strategy, task: Task) -> bool:
    """Whether a budget above the plain peak means that nothing is recomputed."""
    return strategy.budget != CHECKED and not task.cuts.limits.forbidden


def rank(schedules: Sequence[Schedule], scorer: Scorer) -> Family:
    """Evaluate schedules and return those that no other beats in both peak and seconds."""
    rows = []
    owned = 0
    for number, schedule in enumerate(schedules):
        timeline = scorer.timeline(schedule)
        owned = timeline.argument_bytes + timeline.output_bytes
        rows.append((timeline.peak_bytes, timeline.seconds, number))
    kept: list[tuple[int, float, int]] = []
    for row in sorted(rows):
        if not kept or (row[1] < kept[-1][1] and row[0] > kept[-1][0]):
            kept.append(row)
    return Family(tuple(schedules[row[2]] for row in kept), tuple(row[0] - owned for row in kept), owned)


def least_peak(found: Found | None, scorer: Scorer) -> Schedule:
    """The schedule with the least predicted peak; of equal ones the fastest."""
    assert found is not None, "a strategy that searches by itself needs a budget"
    return found.schedules[0] if len(found.schedules) == 1 else rank(found.schedules, scorer).schedules[0]


def fastest_within(found: Found, scorer: Scorer, budget_bytes: int, verify: bool) -> Outcome:
    """The schedule with the fewest recomputed seconds that fits, or else the one with the least peak."""
    if len(found.schedules) == 1:
        (schedule,) = found.schedules
        return Outcome(schedule, scorer.peak(schedule, verify), _ADVICE)
    family = rank(found.schedules, scorer)
    fitting = [p for p, limit in enumerate(family.limits) if limit + family.owned_bytes <= budget_bytes]
    result = scorer.search(family, family.owned_bytes, budget_bytes, verify, max(fitting, default=0))
    if result.point is None:
        return scorer.least([(family, result)], verify)
    return Outcome(family.schedules[result.point], dict(result.measured)[result.point])
