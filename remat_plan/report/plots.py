"""Pictures by matplotlib: memory over the step, peak against overhead.

In: ``Plan``, ``Tradeoff``, perhaps axes to draw on. Out: ``matplotlib.axes.Axes``. matplotlib is
imported when something is drawn, not before.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from remat_plan.report.rows import memory_high, shares
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from remat_plan.plan import Plan
    from remat_plan.report.tradeoff import Tradeoff

BEFORE, AFTER, BUDGET, OWNED = "#d97706", "#2563eb", "#111827", "#9ca3af"
_SIZE = (8.0, 4.2)


def plot_plan(plan: Plan, ax: Axes | None = None) -> Axes:
    """Draw live bytes over the gradient step, plain and planned, and the budget.

    Args:
        plan: what to draw; all values are by the evaluator.
        ax: axes to draw on; by default those of a new figure (``plan.plot().figure.savefig("memory.png")``).

    Returns:
        The axes. The x axis is the share of the step's instructions, since the planned step has more of them.

    Raises:
        ImportError: matplotlib is not installed.
    """
    ax = _axes(ax)
    before, after = plan.timeline()
    owned = f"arguments and results: {format_bytes(after.owned_bytes)}"
    ax.axhspan(0, after.owned_bytes, color=OWNED, alpha=0.35, linewidth=0, label=owned)
    for trace, colour, word in ((before, BEFORE, "plain"), (after, AFTER, "planned")):
        label = f"{word}: peak {format_bytes(trace.peak_bytes)}"
        ax.plot(shares(trace), trace.live_bytes, color=colour, linewidth=1.6, label=label)
    high = memory_high(plan)
    if plan.budget_bytes <= high:
        label = f"budget: {format_bytes(plan.budget_bytes)}"
        ax.axhline(plan.budget_bytes, color=BUDGET, linewidth=1.2, linestyle=(0, (6, 3)), label=label)
    ax.set_xlim(0, 100)
    ax.set_ylim(0, high)
    ax.set_xlabel("position in the gradient step (% of its instructions)")
    ax.set_ylabel("live memory (predicted)")
    ax.set_title(f"Memory over a gradient step: {plan.overhead:.1%} overhead")
    _finish(ax, ax.yaxis)
    return ax


def plot_tradeoff(curve: Tradeoff, ax: Axes | None = None) -> Axes:
    """Draw overhead against peak bytes, as stairs: what a budget between two points costs.

    Args:
        curve: what to draw.
        ax: axes to draw on; by default those of a new figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    ax = _axes(ax)
    from matplotlib.ticker import PercentFormatter

    peaks = [p.peak_bytes for p in curve.points]
    overheads = [p.overhead for p in curve.points]
    label = "least overhead within a budget"
    ax.plot(peaks, overheads, color=AFTER, drawstyle="steps-post", marker="o", markersize=4.5, label=label)
    if peaks:
        label = f"plain step: {format_bytes(peaks[-1])}"
        ax.plot(peaks[-1:], overheads[-1:], "o", color=BEFORE, clip_on=False, zorder=3, label=label)
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    ax.set_xlabel("peak memory of the gradient step (predicted)")
    ax.set_ylabel("overhead (% of plain seconds, predicted)")
    ax.set_title(f"Memory against time for {curve.target}")
    _finish(ax, ax.xaxis)
    return ax


def _axes(ax: Axes | None) -> Axes:
    """Axes to draw on: those given, or new ones.

    pyplot keeps every figure that it makes until it is closed, and chooses a display. So it makes the figure
    only where it is in use already, or in a notebook, which shows pyplot's figures by itself.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "remat_plan[plot]"') from error
    if ax is not None:
        return ax
    if "matplotlib.pyplot" in sys.modules or "ipykernel" in sys.modules:
        from matplotlib import pyplot

        return pyplot.subplots(figsize=_SIZE, layout="constrained")[1]
    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def _finish(ax: Axes, bytes_axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    bytes_axis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    ax.grid(visible=True, alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=True, framealpha=0.85, fontsize="small")
