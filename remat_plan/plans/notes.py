"""What a plan says beside its figures: notes, each a sentence or none.

In: what is known of a program, a request, the schedule that was found. Out: texts for ``Plan.notes``.
"""

from __future__ import annotations

from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Schedule, is_planned, is_written
from remat_plan.graph.structure import is_loop
from remat_plan.planning.limits import Limits
from remat_plan.planning.names import structures_in
from remat_plan.planning.strategies.records import Task
from remat_plan.search.candidates import TIME, Candidates, Request
from remat_plan.search.front import find
from remat_plan.search.judge import Judge, is_spread, may_be_spread
from remat_plan.small.budget import format_bytes

_SPREAD = (
    "arguments are sharded over several devices along automatic axes: compiled peaks are per device, predicted "
    "ones are totals of all devices"
)
_MAYBE_SPREAD = (
    "a trace does not show shardings along automatic axes: if arguments have any, all bytes are totals of all "
    "devices; rp.fit, or rp.plan with sharded arguments, counts bytes per device"
)


def slow_notes(judge: Judge, candidates: Candidates, request: Request, schedule: Schedule) -> list[str]:
    """What is to be said where a step takes twice as long as the plain one: the least memory that halves its seconds.

    The last bytes may have no price in proportion: on a CPU a small convolution in slices takes 40 times as long.
    """
    if candidates.named(request) is not None or judge.overhead(schedule) < 1:
        return []
    low, high = map(judge.predicted_bytes, (schedule, judge.program.plain))
    for tenth in range(1, 10):
        faster = find(judge, candidates, low + tenth * (high - low) // 10, request)
        if 1 + judge.overhead(faster) < (1 + judge.overhead(schedule)) / 2:
            needed, overhead = format_bytes(judge.predicted_bytes(faster)), judge.overhead(faster)
            return [f"this budget is slow to meet: at a peak of {needed} the predicted overhead is {overhead:.1%}"]
    return []


def unborne_notes(compiled: int | None, plain: int, predicted: int) -> list[str]:
    """What is to be said where the compiled step has less than half of the savings that were predicted."""
    if compiled is None or 2 * (compiled - predicted) <= plain - predicted or predicted >= plain:
        return []
    hoped, needed, before = map(format_bytes, (predicted, compiled, plain))
    return [f"the compiled step needs {needed} instead of {before}; {hoped} was predicted"] * (hoped != before)


def spread_notes(judge: Judge) -> list[str]:
    """What is to be said of programs that the compiler spreads over devices as it sees fit."""
    call = judge.program.call
    if is_spread(call.structs):
        return [_SPREAD]
    return [_MAYBE_SPREAD] if may_be_spread(call.leaves, judge.target) and not judge.mapped else []


def source_notes(candidates: Candidates, request: Request) -> list[str]:
    """What a strategy by name has to say; nothing for the planner's own search."""
    named = candidates.named(request)
    source = [f"source: {request.strategy.source}"] if request.strategy.source else []
    return [] if named is None else [*source, *named.notes]


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
        why = f"no schedule that moves values there{within} is clearly faster"
    return [f"nothing is kept in the host's memory: {why}"]


def _may_move(graph: Graph, limits: Limits) -> bool:
    """Whether a loop has steps some of whose values may be moved."""
    return any(
        (is_loop(op) and limits.inside(region).movable != frozenset()) or _may_move(region, limits.inside(region))
        for op, region, _ in structures_in(graph)
    )
