"""Ways to run a region inside a structure, and what each costs.

In: schedules of the region, the passes of a run by each. Out: ``Way``s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_plan.cost.hardware import Hardware
from remat_plan.cost.passes import Passes
from remat_plan.cost.price import pricing
from remat_plan.graph.schedule import Schedule
from remat_plan.solve.pareto import undominated


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a region.

    Attributes:
        schedule: of the region.
        kept_bytes: residuals of one run, a loop's carry included where it is kept.
        inside_bytes: needed while one run's backward pass is under way.
        price: of both passes of one run (see ``cost.price``).
    """

    schedule: Schedule
    kept_bytes: int
    inside_bytes: int
    price: float


def ways_of(schedules: Sequence[Schedule], passes: Sequence[Passes], hardware: Hardware) -> list[Way]:
    """Return what a run costs by each schedule, from its passes; the first schedule runs the region as it is."""
    seconds = [p.forward.region.seconds + p.backward.region.seconds for p in passes]
    flops = [p.forward.flops + p.backward.flops for p in passes]
    price = pricing(hardware)
    return [
        Way(schedule, sum(p.residual_bytes), p.backward.region.transient_bytes, price(s, f, seconds[0], flops[0]))
        for schedule, p, s, f in zip(schedules, passes, seconds, flops, strict=True)
    ]


def worth_having(ways: Sequence[Way]) -> list[Way]:
    """Keep the ways that no other one beats in bytes (kept, needed) and price, from fewest kept bytes to most."""
    return undominated(ways, lambda w: (w.kept_bytes, w.price, w.inside_bytes))
