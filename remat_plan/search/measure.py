"""What a search among predicted schedules came to.

In: a ``Judge``, a schedule. Out: ``Outcome``.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan.graph.schedule import Schedule
from remat_plan.search.judge import Judge


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search came to.

    Attributes:
        schedule: the one to use; where none fits, the one with the least peak.
        peak_bytes: its predicted peak.
    """

    schedule: Schedule
    peak_bytes: int


def predicted(judge: Judge, schedule: Schedule) -> Outcome:
    """A schedule with its predicted peak."""
    return Outcome(schedule, judge.predicted_bytes(schedule))
