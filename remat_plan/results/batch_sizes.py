"""The largest batches of a training step that fit in a budget.

In: what was compiled. Out: ``BatchSizes``: printed, shown, drawn, stored as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan.results.shown import Shown


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The largest batch within a limit on overhead.

    Attributes:
        batch: the number of examples; 0 where not even the smallest batch fits.
        peak_bytes: of the compiled step on one device; None for 0.
        overhead: recomputed seconds over plain seconds, by the evaluator.
        limit: the overhead that was allowed; 0 for the step as it is; None for any.
    """

    batch: int
    peak_bytes: int | None
    overhead: float
    limit: float | None


@dataclass(frozen=True, slots=True, repr=False)
class BatchSizes(Shown):
    """How large a batch may be, by the overhead that is allowed.

    Attributes:
        name: of the user's function.
        target: the device.
        budget: as it was asked for.
        budget_bytes: in bytes on one device.
        multiple_of: what batches are multiples of.
        rows: one for each limit on overhead, the step as it is first.
        compiles: how often a step was compiled.
    """

    name: str
    target: str
    budget: str
    budget_bytes: int
    multiple_of: int
    rows: tuple[BatchSize, ...]
    compiles: int

    @property
    def plain(self) -> int:
        """The largest batch of the step as it is."""
        return self.rows[0].batch

    @property
    def largest(self) -> int:
        """The largest batch of all."""
        return max(row.batch for row in self.rows)
