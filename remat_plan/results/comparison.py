"""Plans side by side: several strategies, several budgets, one program.

In: per strategy and budget a ``Plan``, or the ``BudgetError`` that there was instead. Out: ``Comparison``: printed,
shown, drawn, stored as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from remat_plan.results.measurement import Measurement
from remat_plan.results.plan import Plan
from remat_plan.results.shown import Shown


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """What became of one strategy at one budget.

    Attributes:
        strategy: its name.
        budget: as it was asked for; "" for none.
        plan: the plan; None where the strategy cannot meet the budget.
        minimum_bytes: the least peak that was reached; None where there is a plan.
        problem: why there is no plan; "" where there is one.
        measurement: of its step and the plain one, with ``measure=True``.
    """

    strategy: str
    budget: str
    plan: Plan | None
    minimum_bytes: int | None = None
    problem: str = ""
    measurement: Measurement | None = None

    @property
    def peak_bytes(self) -> int | None:
        """The compiled peak; without verification the predicted one; None without a plan."""
        if self.plan is None:
            return None
        compiled = self.plan.compiled_peak_bytes
        return self.plan.predicted_peak_bytes if compiled is None else compiled


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Plans of one program for one device, by strategy and budget.

    Attributes:
        rows: in the order asked for.
        target: the device.
        verified: whether peaks are compiled; else they are predicted.
        written_peak_bytes: of the function as written, which shares are of.
        plain_peak_bytes: of the plain step, in which nothing is recomputed.
        has_own_remat: whether the function has ``jax.checkpoint`` regions of its own that were planned anew; if not,
            both are one.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> loss = lambda w, x: jnp.sum(jax.lax.fori_loop(0, 8, lambda _, x: jnp.tanh(x @ w), x))
        >>> shapes = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")
        >>> found = rp.compare(loss, *shapes, budgets=["75%", "65%"], verify=False)
        >>> [row.plan is not None for row in found.rows]
        [True, True]
    """

    rows: tuple[ComparisonRow, ...]
    target: str
    verified: bool
    written_peak_bytes: int
    plain_peak_bytes: int
    has_own_remat: bool = False

    @property
    def footnotes(self) -> tuple[str, ...]:
        """What to know about the figures."""
        word = "compiled" if self.verified else "predicted"
        told = [f"Peaks are {word}; overhead (of seconds) and FLOPs (planned over plain) are predicted."]
        if self.verified:
            told.append("Compiled overhead is of the modules that XLA made.")
        measured = next((row.measurement for row in self.rows if row.measurement is not None), None)
        if measured is not None:
            told.append(
                f"Measured: median of {measured.rounds} rounds, plain {1e3 * measured.plain.seconds:.4g} ms, all steps "
                f"in turns; in brackets, what it is between 19 times of 20. {measured.device}; {measured.versions}"
            )
        return tuple(told)

    def to_json(self) -> str:
        """Return the comparison as JSON text; each row has its whole plan, readable by ``Plan.from_json``."""
        rows: list[dict[str, Any]] = [
            {
                "strategy": row.strategy,
                "budget": row.budget,
                "peak_bytes": row.peak_bytes,
                "overhead": None if row.plan is None else row.plan.overhead,
                "compiled_overhead": None if row.plan is None else row.plan.compiled_overhead,
                "minimum_bytes": row.minimum_bytes,
                "problem": row.problem,
                "plan": None if row.plan is None else json.loads(row.plan.to_json()),
                **({} if row.measurement is None else {"measurement": json.loads(row.measurement.to_json())}),
            }
            for row in self.rows
        ]
        data = {
            "kind": "comparison",
            "target": self.target,
            "verified": self.verified,
            "written_peak_bytes": self.written_peak_bytes,
            "plain_peak_bytes": self.plain_peak_bytes,
            "has_own_remat": self.has_own_remat,
            "rows": rows,
        }
        return json.dumps(data, sort_keys=True)
