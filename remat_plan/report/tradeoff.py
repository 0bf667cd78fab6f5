"""The trade-off curve of a program: peak bytes against overhead.

In: points by the evaluator. Out: ``Tradeoff``: printable, plotted, and a source of plans.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class TradeoffPoint:
    """One schedule: predicted peak bytes of the step, and recomputed over plain seconds."""

    peak_bytes: int
    overhead: float


@dataclass(frozen=True, slots=True, repr=False)
class Tradeoff:
    """Peak bytes against overhead, from least memory to most; the last point is the plain step, or what beats it.

    Attributes:
        points: predicted by the evaluator; no point is beaten by another in both.
        target: the device.
        planner: makes a plan for a budget, from the same solve.
        written: the function as written, where it has ``jax.checkpoint`` regions of its own; else None.
    """

    points: tuple[TradeoffPoint, ...]
    target: str
    planner: Callable[..., Any]
    written: TradeoffPoint | None = None

    @property
    def baseline_peak_bytes(self) -> int:
        """What shares (and budgets in per cent) are of: the function as written."""
        return max((p.peak_bytes for p in (self.points if self.written is None else (self.written,))), default=1) or 1

    def plan(self, budget: Any, *, verify: bool = True) -> Any:
        """Return the ``Plan`` for a budget (as in ``rp.plan``), without solving again."""
        return self.planner(budget, verify)

    def to_json(self) -> str:
        """Return the points as JSON text."""
        points = [asdict(point) for point in self.points]
        written = None if self.written is None else asdict(self.written)
        data = {"kind": "tradeoff", "target": self.target, "points": points, "written": written}
        return json.dumps(data, sort_keys=True)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the curve (needs matplotlib)."""
        from remat_plan.report import plots

        return plots.plot_tradeoff(self, ax)

    def __repr__(self) -> str:
        ends = [format_bytes(p.peak_bytes) for p in (*self.points[:1], *self.points[1:][-1:])]
        return f"<Tradeoff for {self.target}: {len(self.points)} schedules, {' to '.join(ends) or 'empty'}>"

    def __str__(self) -> str:
        from remat_plan.report import text

        return text.tradeoff_text(self)

    def __rich__(self) -> Any:
        from remat_plan.report import tables, terminal

        return terminal.render(tables.tradeoff_table(self))

    def _repr_html_(self) -> str:
        from remat_plan.report import html

        return html.tradeoff_html(self)


def pareto(points: list[TradeoffPoint]) -> tuple[TradeoffPoint, ...]:
    """Keep the points that no other beats in both, from least memory to most."""
    best: list[TradeoffPoint] = []
    for point in sorted(points, key=lambda p: (p.overhead, p.peak_bytes)):
        if not best or point.peak_bytes < best[-1].peak_bytes:
            best.append(point)
    return tuple(reversed(best))
