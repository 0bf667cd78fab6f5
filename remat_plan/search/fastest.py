"""The fastest schedule, whatever memory it needs: ``goal="time"``.

In: a ``Judge``, ``Candidates``, a ``Request``, whose word on seconds counts. Out: the schedule.

Recomputing can be faster than writing and reading memory, and where that is so the plain step is not the fastest. The
evaluator proposes schedules, among them some that need much less memory; the compiler or the clock decides. The
function as it is stays unless another schedule is surely faster.
"""

from __future__ import annotations

from remat_plan.graph.schedule import Schedule
from remat_plan.planning.strategies.records import Strategy
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.judge import Judge
from remat_plan.search.seconds import Seconds, faster_by

_FASTEST = 3
"""So many of the schedules with the least predicted seconds are tried."""

_SHARES = (0.8, 0.6, 0.4)
"""Of those within each of these shares of the plain peak the one with the least predicted seconds is tried too: what
memory traffic costs is what predictions know least about."""

_POINTS = 8
"""So many points of each of the planner's curves are judged."""


def check_time(strategy: Strategy, budget: object, verify: bool) -> None:
    """Raise ``ValueError`` for arguments that contradict ``goal="time"``."""
    told = {"budget": budget is not None, "strategy": strategy.name != "auto", "verify=False": not verify}
    if wrong := next((name for name, is_there in told.items() if is_there), None):
        raise ValueError(
            "goal='time' looks for the fastest step by compiling and running candidates, so it does not take "
            f"{wrong}. For the fastest plan within a budget, omit goal."
        )


def find_fastest(judge: Judge, candidates: Candidates, request: Request, seconds: Seconds) -> Schedule:
    """Return the fastest schedule found; the one that recomputes nothing unless another is surely faster."""
    program = judge.program
    start = program.written if program.has_own_remat else program.plain
    return faster_by(seconds, start, [program.plain, *proposed(judge, candidates, request)])


def proposed(judge: Judge, candidates: Candidates, request: Request) -> list[Schedule]:
    """Schedules that may be the fastest, by prediction."""
    curves = candidates.planner(request.constraints).curves
    points = [s for curve in curves for s in curve.spread(_POINTS)]
    known = {
        (judge.predicted_bytes(s), judge.timeline(s).seconds): s
        for s in (*points, *candidates.uniform(request))
        if s != judge.program.plain
    }
    ordered = [known[key] for key in sorted(known, key=lambda key: (key[1], key[0]))]
    plain = judge.predicted_bytes(judge.program.plain)
    within = [next((s for s in ordered if judge.predicted_bytes(s) <= share * plain), None) for share in _SHARES]
    return list(dict.fromkeys([*ordered[:_FASTEST], *(s for s in within if s is not None)]))
