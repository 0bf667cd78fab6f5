"""Plans and analyses as plain text for a terminal.

In: ``Plan``, ``Analysis``, ``Tradeoff``. Out: strings, at most ``WIDTH`` columns wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.plan import Plan

WIDTH = 110


def summary_line(plan: Plan) -> str:
    """One line: peak before and after, budget, overhead."""
    peak = plan.compiled_peak_bytes if plan.compiled_peak_bytes is not None else plan.predicted_peak_bytes
    word = "compiled" if plan.compiled_peak_bytes is not None else "predicted"
    return (
        f"{format_bytes(plan.baseline_peak_bytes)} -> {format_bytes(peak)} {word}, budget "
        f"{format_bytes(plan.budget_bytes)}, overhead {plan.overhead:.1%}"
    )


def plan_text(plan: Plan) -> str:
    """The whole plan: summary and table of decisions."""
    return summary_line(plan)
