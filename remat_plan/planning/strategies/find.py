"""The schedules of a strategy for one program, its structures run by the strategy's law too.

In: ``Graph``, ``Hardware``, ``Constraints``, ``Settings``; a ``Strategy``. Out: ``Task``, which is what a strategy is
given, and ``Found``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from remat_plan.cost.hardware import Hardware
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import as_is, closed
from remat_plan.graph.structure import holds_structure, is_loop, structure_of
from remat_plan.planning.constraints import Constraints
from remat_plan.planning.cuts import find_cuts, without_loss
from remat_plan.planning.honours import honours
from remat_plan.planning.limits import resolve
from remat_plan.planning.strategies.laws import apply_law
from remat_plan.planning.strategies.records import Found, Schedule, Settings, Strategy, Task
from remat_plan.planning.strategies.registry import lookup

BY_HAND = ("each_block", "dots", "dots_no_batch")
"""What people write on every block."""


def make_task(
    graph: Graph, hardware: Hardware, constraints: Constraints, settings: Settings, spread: bool = False
) -> Task:
    """Return what a strategy is given.

    Raises:
        ValueError: constraints that the program does not allow.
    """
    cuts = without_loss(graph, find_cuts(graph, resolve(graph, constraints)))
    return Task(graph, cuts, hardware, settings, spread=spread)


def find_schedules(strategy: Strategy, task: Task) -> Found | None:
    """Return the schedules of a strategy, structures included; None for those that are the planner's own search.

    Those that do not respect the user's constraints are left out: there may be none.
    """
    if strategy.find is None:
        return None
    if not task.graph.ops:
        return Found(((as_is(0, 0),),))
    found = _with_structures(strategy, task, strategy.find(task))
    return replace(found, schedules=tuple([s for s in found.schedules if honours(task.graph, task.cuts.limits, s)]))


def named_schedules(task: Task, names: Iterable[str]) -> list[Schedule]:
    """Return the schedules of strategies by name."""
    found = [find_schedules(lookup(name), task) for name in names]
    return [schedule for one in found if one is not None for schedule in one.schedules]


def schedules_by_names(
    task: Task, names: Iterable[str], cost: Callable[[Schedule], tuple[int, float]]
) -> list[Schedule]:
    """Return schedules that keep named values, as people do by policies: one name, then ever more, first those that
    gain most for a byte.

    Args:
        cost: the peak and the price of a schedule.
    """

    def keeping(*kept: str) -> tuple[Schedule, ...]:
        found = find_schedules(lookup("collection"), replace(task, settings=replace(task.settings, names=kept)))
        return () if found is None else found.schedules[:1]

    alone = {name: schedule for name in names for schedule in keeping(name)}
    costs = {name: cost(schedule) for name, schedule in alone.items()}
    peak, price = min(map(cost, named_schedules(task, ["each_block"])), default=(0, math.inf))
    ratio = {name: (price - own[1]) / max(own[0] - peak, 1) for name, own in costs.items()}
    order = sorted((name for name in alone if ratio[name] > 0), key=lambda name: (-ratio[name], name))
    more = [schedule for count in range(2, len(order) + 1) for schedule in keeping(*order[:count])]
    return [*alone.values(), *more]


def _may_hold_layers(region: Graph) -> bool:
    """Whether several layers may be in a structure of a region: in a loop or branches, or in what a call of it calls.

    What is only called is a part of its layer: attention in a ``shard_map``, say.
    """
    for op in region.ops:
        structure = structure_of(op)
        if structure is not None:
            inner = structure.regions(region, op)
            if len(inner) > 1 or is_loop(op) or any(map(_may_hold_layers, inner)):
                return True
    return False


def _with_structures(strategy: Strategy, task: Task, found: Found) -> Found:
    """Return schedules in which structures are run by the strategy's law too, at any depth."""

    def make(region: Graph, in_loop: bool) -> tuple[Task, tuple[Schedule, ...]]:
        cuts = find_cuts(region, task.cuts.limits.inside(region))
        spread = task.spread and region.in_place is None  # inside a map over the devices all is on one
        inner = Task(region, cuts, task.hardware, task.settings, True, spread)
        one = in_loop or len(cuts.positions) == 2  # a branch may hold many layers, one after another
        layer = strategy.layer is not None and one and not _may_hold_layers(region)
        find = strategy.layer if layer else strategy.find
        assert find is not None
        if not region.ops:
            return inner, ((as_is(0, 0),),)
        found = (find(inner) if layer else _with_structures(strategy, inner, find(inner))).schedules
        return inner, found if one else tuple([closed(s, region.apart) for s in found])

    if strategy.law is None or not holds_structure(task.graph):
        return found
    return Found(apply_law(task, found.schedules, strategy.law, make), found.notes)
