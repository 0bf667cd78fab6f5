"""The trade-off curve of a program: peak bytes against overhead.

In: points by the evaluator. Out: ``Tradeoff``: printable, plotted, and a source of plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from remat_plan.results.shown import Shown


@dataclass(frozen=True, slots=True)
class TradeoffPoint:
    """One schedule: predicted peak bytes of the step, and recomputed over plain seconds."""

    peak_bytes: int
    overhead: float


@dataclass(frozen=True, slots=True, repr=False)
class Tradeoff(Shown):
    """Peak bytes against overhead, from least memory to most; the last point is the plain step, or what beats it.

    Recomputation may be predicted to cost nothing (arithmetic that fits between transfers); then the plain step is no
    point of the curve. It is named beside it, and shares are of it all the same.

    Attributes:
        points: predicted by the evaluator; no point is beaten by another in both.
        target: the device.
        planner: makes a plan for a budget, from the same solve; None of a curve that was unpickled.
        written: the function as written, where it has ``jax.checkpoint`` regions of its own; else None.
        plain: the step without recomputation; None of a curve without points.
    """

    points: tuple[TradeoffPoint, ...]
    target: str
    planner: Callable[..., Any] | None = field(default=None, compare=False)
    written: TradeoffPoint | None = None
    plain: TradeoffPoint | None = None

    @property
    def written_peak_bytes(self) -> int:
        """Predicted peak of the function as written, which shares (and budgets in per cent) are of."""
        step = self.written or self.plain
        return max((p.peak_bytes for p in (self.points if step is None else (step,))), default=1) or 1

    @property
    def free(self) -> TradeoffPoint | None:
        """The point that takes the plain step's place on the curve: less memory, and no more time; None without one."""
        beaten = self.plain is not None and self.points and self.plain not in self.points
        return self.points[-1] if beaten else None

    def plan(self, budget: Any, *, verify: bool = True) -> Any:
        """Return the ``Plan`` for a budget (as in ``rp.plan``), without solving again.

        Raises:
            ValueError: the curve was unpickled, and what solved it is not stored with it.
            BudgetError: the budget is below the least peak reached.
        """
        if self.planner is None:
            raise ValueError(
                "this curve was unpickled, and the program that it is of is not stored with it: ask rp.tradeoff(...) "
                "again, or rp.plan(..., budget=...), where plans are to be made. Plans themselves can be stored."
            )
        return self.planner(budget, verify)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tradeoff, (self.points, self.target, None, self.written, self.plain)

    def __deepcopy__(self, memo: Any) -> Tradeoff:
        return self  # nothing in it can be changed


def pareto(points: list[TradeoffPoint]) -> tuple[TradeoffPoint, ...]:
    """Keep the points that no other beats in both, from least memory to most."""
    best: list[TradeoffPoint] = []
    for point in sorted(points, key=lambda p: (p.overhead, p.peak_bytes)):
        if not best or point.peak_bytes < best[-1].peak_bytes:
            best.append(point)
    return tuple(reversed(best))
