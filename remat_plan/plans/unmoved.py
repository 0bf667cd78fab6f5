"""Why nothing is kept in the host's memory though a request allows it, in words.

In: a ``Judge``, the ``Task`` of a ``Request``, the schedule that was chosen. Out: a note; none where something is kept
there, or nothing may be.
"""

from __future__ import annotations

from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Schedule, is_planned, is_written
from remat_plan.graph.structure import is_loop
from remat_plan.planning.limits import Limits
from remat_plan.planning.names import structures_in
from remat_plan.planning.strategies.records import Task
from remat_plan.search.candidates import TIME, Request
from remat_plan.search.judge import Judge


def unmoved_notes(judge: Judge, task: Task, request: Request, schedule: Schedule) -> list[str]:
    """Return what is to be said where values may go to the host and none does."""
    asked, strategy = request.constraints, request.strategy
    if not asked.may_offload or judge.timeline(schedule).host_bytes:
        return []
    if not strategy.sources:
        why = f"only a search moves values there, and strategy {strategy.name!r} is none"
    elif request.goal != TIME and (is_written(schedule) or not is_planned(schedule)):
        why = "the budget is met without"
    elif not judge.hardware.link_bytes_per_second:
        why = f"the memory of {judge.device} is its host's"
    elif not _may_move(judge.rules.graph, task.cuts.limits):
        none = "there is no loop" if asked.may_offload is True else "may_offload names none of that"
        why = f"only what steps of loops keep is moved, and {none}"
    else:
        within = "" if asked.host_bytes is None else " within host_budget"
        why = f"no schedule that moves values there{within} is predicted to be clearly faster"
    return [f"nothing is kept in the host's memory: {why}"]


def _may_move(graph: Graph, limits: Limits) -> bool:
    """Whether a loop has steps some of whose values may be moved."""
    return any(
        (is_loop(op) and limits.inside(region).movable != frozenset()) or _may_move(region, limits.inside(region))
        for op, region, _ in structures_in(graph)
    )
