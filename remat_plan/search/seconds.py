"""Whose word on seconds a search goes by in the end, the compiler's or the clock's; ``goal="time"`` goes by it alone.

In: a ``Judge``, schedules; ``Candidates`` and a ``Request`` where nothing else counts. Out: for each schedule the ratio
of its seconds to those of the plain step; of several the fastest.

The evaluator chooses what is compiled, the compiler has the last word on peaks, and of what fits the schedule that it
says is fastest is taken. A clock asks for arrays and a device that is attached.

Recomputing can be faster than writing and reading memory, and where that is so the plain step is not the fastest. With
``goal="time"`` the evaluator proposes schedules, among them some that need much less memory; the function as it is
stays unless another schedule is surely faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax

from remat_plan import _compat
from remat_plan.clock.steps import ones, run_of
from remat_plan.clock.turns import Ratio, time_in_turns
from remat_plan.graph.schedule import Schedule
from remat_plan.planning.strategies.records import Strategy
from remat_plan.search.candidates import Candidates, Request, may_stay_written
from remat_plan.search.front import family
from remat_plan.search.judge import Judge

T = TypeVar("T")

Seconds = Callable[[Sequence[Schedule]], Sequence[Ratio | None]]
"""Of schedules the ratio of their seconds to those of the plain step, with an interval; None where it is not known."""

SURE = 0.01
"""A schedule takes the place of another that was predicted to be faster if it saves this share of its seconds."""

MORE_WORK = 0.001
"""Within a budget, it may do so much more work at most, as a share of the FLOPs of the other one."""

_CLOCK_ROUNDS = (5, 15)
"""So often at least and at most each schedule is run by the clock."""

_CLOCK_SECONDS = 40.0
"""So long all of them are run together, unless the least rounds take longer."""

_FASTEST = 3
"""So many of the schedules with the least predicted seconds are tried."""

_SHARES = (0.8, 0.6, 0.4)
"""Of those within each of these shares of the plain peak the one with the least predicted seconds is tried too: what
memory traffic costs is what predictions know least about."""

_POINTS = 8
"""For so many budgets the schedules that are predicted to be best are judged."""


def by_compiler(judge: Judge) -> Seconds:
    """By the compiled modules; see ``Judge.compiled_overhead``."""

    def ratios(schedules: Sequence[Schedule]) -> list[Ratio | None]:
        found = [judge.compiled_overhead(s) for s in schedules]
        return [None if overhead is None else Ratio.exactly(1 + overhead) for overhead in found]

    return ratios


def by_clock(judge: Judge) -> Seconds:
    """By running the step on the arrays that the program was traced with, in turns with the plain one."""

    def ratios(schedules: Sequence[Schedule]) -> list[Ratio | None]:
        values = [*judge.program.call.leaves, *ones(judge.program.cotangents)]
        judge.progress.say("running candidates")
        runs = [run_of(judge.step(s), values, judge.target) for s in (judge.unplanned, *schedules)]
        for run in runs:
            run.seconds()  # compiles
        least, most = _CLOCK_ROUNDS
        once = sum(run.seconds()[0] for run in runs)
        rounds = max(least, min(most, int(_CLOCK_SECONDS / max(once, 1e-9))))
        plain, *others = time_in_turns(runs, rounds)
        return [Ratio.of(plain.seconds, other.seconds) for other in others]

    return ratios


def can_run(judge: Judge) -> bool:
    """Whether the step can be run: on an attached device, on arrays that hold values."""
    leaves: Sequence[Any] = judge.program.call.leaves
    values = not any(isinstance(x, jax.ShapeDtypeStruct) or _compat.is_tracer(x) for x in leaves)
    return judge.target.attached and values and not judge.promoted and not judge.mapped


def no_more_work(flops: Callable[[T], float], found: T, others: Iterable[T]) -> list[T]:
    """Return of other schedules (or choices of several) those that compute no more than one that was found.

    No plan is to have more FLOPs than what a person would write at its peak.
    """
    most = (1 + MORE_WORK) * flops(found)
    return [other for other in others if flops(other) <= most]


def faster_by(seconds: Callable[[Sequence[T]], Sequence[Ratio | None]], best: T, others: Iterable[T]) -> T:
    """Return of some schedules (or choices of several) the fastest; ``best`` unless another is surely faster."""
    every = [best, *dict.fromkeys(s for s in others if s != best)]
    own, *ratios = seconds(every)
    if own is None:
        return best
    known = [(ratio, s) for ratio, s in zip(ratios, every[1:], strict=True) if ratio is not None]
    sure = [(ratio.value, n, s) for n, (ratio, s) in enumerate(known) if ratio.high < (1 - SURE) * own.value]
    return min(sure, key=lambda row: row[:2])[2] if sure else best


def check_time(strategy: Strategy, budget: object, verify: bool) -> None:
    """Raise ``ValueError`` for arguments that contradict ``goal="time"``."""
    told = {"budget": budget is not None, "strategy": strategy.name != "auto", "verify=False": not verify}
    if wrong := next((name for name, is_there in told.items() if is_there), None):
        raise ValueError(
            f"goal='time' looks for the fastest step by compiling and running candidates, so it does not take "
            f"{wrong}. For the fastest plan within a budget, omit goal."
        )


def find_fastest(judge: Judge, candidates: Candidates, request: Request, seconds: Seconds) -> Schedule:
    """Return the fastest schedule found: the function as it is, if that respects the user's constraints, unless another
    is surely faster."""
    program = judge.program
    written = [program.written] if may_stay_written(program, request) else []
    plain = [program.plain] if candidates.may_stay_plain(request) else []
    first, *others = [*written, *plain, *proposed(judge, candidates, request)]
    return faster_by(seconds, first, others)


def proposed(judge: Judge, candidates: Candidates, request: Request) -> list[Schedule]:
    """Schedules that may be the fastest, by prediction."""
    plain = judge.predicted_bytes(judge.program.plain)
    known = [s for s in family(judge, candidates, request, _POINTS) if s != judge.program.plain]
    ordered = sorted(known, key=lambda s: (judge.figures(s).seconds, judge.predicted_bytes(s)))
    within = [next((s for s in ordered if judge.predicted_bytes(s) <= share * plain), None) for share in _SHARES]
    return list(dict.fromkeys([*ordered[:_FASTEST], *(s for s in within if s is not None)]))
