"""What a curve or a comparison has to say, as titles and cells; ``text`` and ``html`` only lay them out.

In: ``Tradeoff``, ``Comparison``, ``Measurement``. Out: titles, headers, cells. Shares are of the function as written,
which is the plain one unless it has ``jax.checkpoint`` regions of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_plan.report.rows import number_of
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.results.comparison import Comparison, ComparisonRow
    from remat_plan.results.measurement import Measurement
    from remat_plan.results.tradeoff import Tradeoff


def share_header(has_own_remat: bool) -> str:
    """What stands above shares of the peak: of what they are."""
    return "of written" if has_own_remat else "of plain"


def tradeoff_title(curve: Tradeoff) -> str:
    """What the curve is of."""
    title = f"Peak against overhead for {curve.target}: {number_of(len(curve.points), 'schedule')}, predicted"
    if curve.written is None:
        return title
    return f"{title}; as written {format_bytes(curve.written.peak_bytes)}, overhead {curve.written.overhead:.1%}"


def free_note(curve: Tradeoff) -> tuple[str, ...]:
    """What to say where the plain step is no point of the curve, since something beats it."""
    if (free := curve.free) is None or curve.plain is None:
        return ()
    cost = "cost no time" if free.overhead >= 0 else f"save time ({free.overhead:.1%})"
    plain, less = format_bytes(curve.plain.peak_bytes), format_bytes(free.peak_bytes)
    return (f"The plain step needs {plain}; recomputing down to {less} is predicted to {cost}.",)


def comparison_title(comparison: Comparison, counted: str) -> str:
    """What is compared; ``counted`` says how many."""
    title = f"Strategies and budgets for {comparison.target}: {counted}"
    plain = format_bytes(comparison.plain_peak_bytes)
    if not comparison.has_own_remat:
        return f"{title}; plain peak {plain}"
    return f"{title}; peak as written {format_bytes(comparison.written_peak_bytes)}, plain peak {plain}"


def comparison_cells(comparison: Comparison, row: ComparisonRow) -> tuple[str, ...]:
    """Strategy, budget, peak, its share of the peak as written, both overheads, FLOPs over plain, remark."""
    budget = row.budget or "-"
    if row.plan is None or row.peak_bytes is None:
        least = f"least reached: {format_bytes(row.minimum_bytes)}" if row.minimum_bytes else row.problem
        return (row.strategy, budget, "-", "-", "-", "-", "-", least)
    plan = row.plan
    share = row.peak_bytes / max(comparison.written_peak_bytes, 1)
    flops = f"{plan.step_flops / plan.plain_flops:.1%}" if plan.plain_flops else "-"
    compiled = "-" if plan.compiled_overhead is None else f"{plan.compiled_overhead:.1%}"
    remark = "left as written" if plan.is_written else ""
    if plan.is_identity:
        remark = "its own jax.checkpoint left out" if plan.has_own_remat else "unchanged"
    if row.measurement is not None:
        remark = "; ".join(filter(None, (f"measured {overhead_text(row.measurement)}", remark)))
    return (
        *(row.strategy, budget, format_bytes(row.peak_bytes), f"{share:.1%}"),
        *(f"{plan.overhead:.1%}", compiled, flops, remark),
    )


def overhead_text(measured: Measurement) -> str:
    """The overhead with its interval: ``+3.1% (+2.0 to +4.4)``."""
    low, high = 100 * measured.overhead_low, 100 * measured.overhead_high
    return f"{measured.overhead:+.1%} ({low:+.1f} to {high:+.1f})"
