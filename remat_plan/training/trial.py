"""Running the marks of a training step under schedules.

In: the ``Site``s of a step, a schedule for each. Out: ``Trial``, a runner of marks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from remat_plan.graph.schedule import WRITTEN, Schedule
from remat_plan.program import Program, Traced
from remat_plan.reuse import Emissions
from remat_plan.search.candidates import Request
from remat_plan.training.sites import Site, find_site


class Trial:
    """Marks under schedules; a mark that is none of the sites (no gradient is taken of it) is left as it is.

    Attributes:
        sites: the programs that are marked.
        schedules: one for each of them.
    """

    def __init__(self, sites: Sequence[Site], schedules: Sequence[Schedule]):
        self.sites, self.schedules = tuple(sites), tuple(schedules)
        self._emissions: dict[tuple[int, str], Emissions] = {}

    def runs(self, sites: Sequence[Site]) -> bool:
        """Whether all of some marks are among the sites, and differentiated as these are."""
        known = [find_site(self.sites, site.traced) for site in sites]
        return all(
            one is not None and (one.moved, one.pulled) == (site.moved, site.pulled)
            for one, site in zip(known, sites, strict=True)
        )

    def run_mark(self, trace: Callable[[], Traced], request: Request) -> Any:
        """Run a marked call under its schedule."""
        traced = trace()
        site = find_site(self.sites, traced)
        number = -1 if site is None else self.sites.index(site)
        described = traced if site is None else site.described(traced)
        return self._emission(number, request.existing)(described)

    def _emission(self, number: int, existing: str) -> Emissions:
        """What runs one site; the same for all its calls, so that equal ones are emitted once."""
        key = number, existing
        if key not in self._emissions:
            schedule = WRITTEN if number < 0 else self.schedules[number]

            def schedule_of(program: Program) -> Schedule:
                return schedule

            self._emissions[key] = Emissions(schedule_of, existing)
        return self._emissions[key]
