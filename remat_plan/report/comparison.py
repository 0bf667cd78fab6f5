"""Plans side by side: several strategies, several budgets, one program.

In: per strategy and budget a ``Plan``, or the ``BudgetError`` that there was instead. Out: ``Comparison``: printed,
shown, drawn, stored as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from remat_plan.plan import Plan


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """What became of one strategy at one budget.

    Attributes:
        strategy: its name.
        budget: as it was asked for; "" for none.
        plan: the plan; None where the strategy cannot meet the budget.
        minimum_bytes: the least peak that was reached; None where there is a plan.
        problem: why there is no plan; "" where there is one.
    """

    strategy: str
    budget: str
    plan: Plan | None
    minimum_bytes: int | None = None
    problem: str = ""

    @property
    def peak_bytes(self) -> int | None:
        """The compiled peak; without verification the predicted one; None without a plan."""
        if self.plan is None:
            return None
        compiled = self.plan.compiled_peak_bytes
        return self.plan.predicted_peak_bytes if compiled is None else compiled


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Plans of one program for one device, by strategy and budget.

    Attributes:
        rows: in the order asked for.
        target: the device.
        verified: whether peaks are compiled; else they are predicted.
        baseline_peak_bytes: of the function as written, which shares are of.
        plain_peak_bytes: of the plain step, where the function has ``jax.checkpoint`` regions of its own; else None, as
            it is the baseline.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.sum(x)
        >>> shapes = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")
        >>> found = rp.compare(loss, *shapes, budgets=["75%", "60%"], verify=False)
        >>> [row.plan is not None for row in found.rows]
        [True, True]
    """

    rows: tuple[ComparisonRow, ...]
    target: str
    verified: bool
    baseline_peak_bytes: int
    plain_peak_bytes: int | None = None

    @property
    def footnotes(self) -> tuple[str, ...]:
        """What to know about the figures."""
        word = "compiled" if self.verified else "predicted"
        return (f"Peaks are {word}; overhead (of seconds) and FLOPs (planned over plain) are predicted.",)

    def to_json(self) -> str:
        """Return the comparison as JSON text; each row has its whole plan, readable by ``Plan.from_json``."""
        rows: list[dict[str, Any]] = [
            {
                "strategy": row.strategy,
                "budget": row.budget,
                "peak_bytes": row.peak_bytes,
                "overhead": None if row.plan is None else row.plan.overhead,
                "minimum_bytes": row.minimum_bytes,
                "problem": row.problem,
                "plan": None if row.plan is None else json.loads(row.plan.to_json()),
            }
            for row in self.rows
        ]
        data = {
            "kind": "comparison",
            "target": self.target,
            "verified": self.verified,
            "baseline_peak_bytes": self.baseline_peak_bytes,
            "plain_peak_bytes": self.plain_peak_bytes,
            "rows": rows,
        }
        return json.dumps(data, sort_keys=True)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw overhead against peak, a colour for each strategy (needs matplotlib)."""
        from remat_plan.report import plots

        return plots.plot_comparison(self, ax)

    def __repr__(self) -> str:
        met = sum(row.plan is not None for row in self.rows)
        return f"<Comparison for {self.target}: {met} of {len(self.rows)} budgets met>"

    def __str__(self) -> str:
        from remat_plan.report import text

        return text.comparison_text(self)

    def __rich__(self) -> Any:
        from remat_plan.report import tables, terminal

        return terminal.render(tables.comparison_table(self))

    def _repr_html_(self) -> str:
        from remat_plan.report import html

        return html.comparison_html(self)
