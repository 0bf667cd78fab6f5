"""Pictures by matplotlib: memory over the step, peak against overhead, the largest residuals.

In: ``Plan``, ``Tradeoff``, ``Comparison``, ``Analysis``, perhaps axes to draw on. Out: ``matplotlib.axes.Axes``.
matplotlib is imported when something is drawn, not before.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from remat_plan.report.palette import AFTER, BEFORE, GREY, PLAIN, PLANNED, Look, point_look
from remat_plan.report.residuals import residual_groups
from remat_plan.report.rows import best_overhead, compiled_peaks, memory_high, shares
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from remat_plan.results.analysis import Analysis
    from remat_plan.results.comparison import Comparison
    from remat_plan.results.plan import Plan
    from remat_plan.results.tradeoff import Tradeoff

OWNED = GREY
"""What is there all the time, and what is compared with."""
RULE = (0, (6, 3))
"""Dashes of straight lines across, such as the budget."""
_SIZE = (8.0, 4.2)
_BARS = 15


def plot_plan(plan: Plan, ax: Axes | None = None) -> Axes:
    """Draw live bytes over the gradient step, plain and planned, and the budget.

    Args:
        plan: what to draw.
        ax: axes to draw on; by default those of a new figure (``plan.plot().figure.savefig("memory.png")``).

    Lines are live bytes as the evaluator predicts them; markers are the peaks that the compiler reports, where the plan
    was compiled.

    Returns:
        The axes. The x axis is the share of the step's instructions, since the planned step has more of them.

    Raises:
        ImportError: matplotlib is not installed.
    """
    ax = new_axes(ax)
    before, after = plan.plain_timeline, plan.planned_timeline
    owned = f"arguments and results: {format_bytes(after.owned_bytes)}"
    ax.axhspan(0, after.owned_bytes, color=OWNED, alpha=0.35, linewidth=0, label=owned)
    for trace, drawn, word in ((before, PLAIN, "plain"), (after, PLANNED, "planned")):
        label = f"{word}: predicted peak {format_bytes(trace.peak_bytes)}"
        ax.plot(shares(trace), trace.live_bytes, color=drawn.colour, linewidth=drawn.width, label=label)
    for (place, size_bytes, word), drawn in zip(compiled_peaks(plan), (PLAIN, PLANNED), strict=False):
        label = f"{word}: compiled peak {format_bytes(size_bytes)}"
        ax.plot(place, size_bytes, clip_on=False, label=label, **markers(drawn))
    high = memory_high(plan)
    if plan.budget_bytes is not None and plan.budget_bytes <= high:
        label = f"budget: {format_bytes(plan.budget_bytes)}"
        ax.axhline(plan.budget_bytes, color=ink(), linewidth=1.2, linestyle=RULE, label=label)
    ax.set_xlim(0, 100)
    ax.set_ylim(0, high)
    ax.set_xlabel("position in the gradient step (% of its instructions)")
    ax.set_ylabel("live memory (predicted)")
    overhead, source = best_overhead(plan)
    ax.set_title(f"Memory over a gradient step: {overhead:.1%} overhead ({source})")
    finish(ax, ax.yaxis)
    return ax


def plot_tradeoff(curve: Tradeoff, ax: Axes | None = None) -> Axes:
    """Draw overhead against peak bytes, as stairs: what a budget between two points costs.

    Args:
        curve: what to draw.
        ax: axes to draw on; by default those of a new figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    ax = new_axes(ax)
    peaks = [p.peak_bytes for p in curve.points]
    overheads = [p.overhead for p in curve.points]
    label = "least overhead within a budget"
    ax.plot(peaks, overheads, color=AFTER, drawstyle="steps-post", marker="o", markersize=4.5, label=label)
    plain = curve.plain or next(reversed(curve.points), None)
    if plain is not None:
        label = f"plain step: {format_bytes(plain.peak_bytes)}"
        ax.plot([plain.peak_bytes], [plain.overhead], "o", color=BEFORE, clip_on=False, zorder=3, label=label)
    if curve.written is not None:
        label = f"as written: {format_bytes(curve.written.peak_bytes)}"
        ax.plot(curve.written.peak_bytes, curve.written.overhead, "s", color=OWNED, clip_on=False, label=label)
    if min(overheads, default=0.0) >= 0:  # below 0: it saves time
        ax.set_ylim(bottom=0)
    return _label_overhead(ax, "predicted", f"Memory against time for {curve.target}")


def plot_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw overhead against peak bytes of all plans, points for each strategy, which are not joined.

    Args:
        comparison: what to draw; strategies and budgets without a plan are left out.
        ax: axes to draw on; by default those of a new figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    ax = new_axes(ax)
    points: dict[str, list[tuple[int, float]]] = {}
    for row in comparison.rows:
        if row.plan is not None and row.peak_bytes is not None:
            points.setdefault(row.strategy, []).append((row.peak_bytes, row.plan.overhead))
    for number, (name, found) in enumerate(points.items()):
        peaks, overheads = zip(*sorted(found), strict=True)
        ax.plot(peaks, overheads, clip_on=False, label=name, **markers(point_look(number, len(points))))
    word = "as written" if comparison.has_own_remat else "plain step"
    label = f"{word}: {format_bytes(comparison.written_peak_bytes)}"
    ax.axvline(comparison.written_peak_bytes, color=OWNED, linewidth=1.2, linestyle=RULE, label=label)
    word = "compiled" if comparison.verified else "predicted"
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=min([0.0, *(o for found in points.values() for _, o in found)]))  # below 0: it saves time
    return _label_overhead(ax, word, f"Strategies and budgets for {comparison.target}")


def _label_overhead(ax: Axes, word: str, title: str) -> Axes:
    """Say what the axes of overhead against peak bytes are; where the peaks are from in a ``word``."""
    from matplotlib.ticker import PercentFormatter

    ax.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    ax.set_xlabel(f"peak memory of the gradient step ({word})")
    ax.set_ylabel("overhead (% of plain seconds, predicted)")
    ax.set_title(title)
    finish(ax, ax.xaxis)
    return ax


def plot_analysis(analysis: Analysis, ax: Axes | None = None) -> Axes:
    """Draw the bytes of the largest residuals as bars, the largest on top.

    Args:
        analysis: what to draw; arguments and constants are left out, since they are there anyway.
        ax: axes to draw on; by default those of a new figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    ax = new_axes(ax)
    from matplotlib.patches import Patch

    groups = residual_groups(analysis)[0][:_BARS]
    places = range(len(groups))
    colours = [OWNED if g.row.why == "internal" else BEFORE for g in groups]
    ax.barh(places, [g.size_bytes for g in groups], color=colours)
    counts = [f"{g.count} x " if g.count > 1 else "" for g in groups]
    texts = [f"{count}{g.label} {g.type}  {g.place}" for count, g in zip(counts, groups, strict=True)]
    ax.set_yticks(places, texts, fontsize="small")
    ax.invert_yaxis()
    ax.set_xlabel("bytes between forward and backward pass, without rematerialisation")
    ax.set_title(f"Plain JAX saves {format_bytes(analysis.saved_bytes)} beside the arguments")
    finish(ax, ax.xaxis)
    kinds = (BEFORE, "a value of the program"), (OWNED, "internal of a derivative rule")
    ax.legend(handles=[Patch(color=colour, label=word) for colour, word in kinds], loc="lower right", fontsize="small")
    return ax


def new_axes(ax: Axes | None) -> Axes:
    """Axes to draw on: those given, or new ones.

    pyplot keeps every figure that it makes until it is closed, and chooses a display. So it makes the figure
    only where it is in use already, or in a notebook, which shows pyplot's figures by itself.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError('plots need matplotlib: pip install "remat_plan[plot]"') from error
    if ax is not None:
        return ax
    if "matplotlib.pyplot" in sys.modules or "ipykernel" in sys.modules:
        from matplotlib import pyplot

        return pyplot.subplots(figsize=_SIZE, layout="constrained")[1]
    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def ink() -> str:
    """The colour of text: what is drawn in it can be seen on whatever background matplotlib was told to use."""
    import matplotlib

    return matplotlib.rcParams["text.color"]


def markers(drawn: Look) -> dict[str, Any]:
    """The arguments of ``Axes.plot`` for the markers of a look."""
    return {
        "linestyle": "",
        "marker": drawn.marker,
        "markersize": drawn.size,
        "markeredgecolor": drawn.colour,
        "markerfacecolor": "none",
        "markeredgewidth": 2,
    }


def finish(ax: Axes, bytes_axis: Any) -> None:
    """Label an axis in bytes; add grid and legend."""
    from matplotlib.ticker import FuncFormatter

    bytes_axis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    ax.grid(visible=True, alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=True, framealpha=0.85, fontsize="small")
