"""Charts by matplotlib.

In: ``Chart`` or ``BarChart``, perhaps axes to draw on. Out: ``matplotlib.axes.Axes``. matplotlib is imported when
something is drawn, not before.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from remat_plan.report.charts import GREY, BarChart, Chart, Rule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = (0, (6, 3))
"""Of lines across, such as the budget."""
_SIZE = (8.0, 4.2)
"""Inches of a new figure."""


def draw(chart: Chart | BarChart, ax: Axes | None = None) -> Axes:
    """Draw a chart on axes, by default on those of a new figure."""
    ax = _axes(ax)
    if isinstance(chart, Chart):
        _draw_series(chart, ax)
    else:
        _draw_bars(chart, ax)
    ax.set_title(chart.title)
    ax.grid(visible=True, alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=True, framealpha=0.85, fontsize="small")
    return ax


def _axes(ax: Axes | None) -> Axes:
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


def _draw_series(chart: Chart, ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    if (floor := chart.floor) is not None:
        ax.axhspan(0, floor.at, color=GREY, alpha=0.35, linewidth=0, label=floor.label)
    for series in chart.series:
        look = series.look
        ax.plot(
            series.xs,
            series.ys,
            label=series.label,
            clip_on=not look.marker,
            color=look.colour,
            linewidth=look.width,
            linestyle="-" if look.width else "",
            drawstyle="steps-post" if series.stairs else "default",
            marker=look.marker,
            markersize=look.size,
            markerfacecolor="none",
            markeredgewidth=2,
        )
    for rule in chart.rules:
        _draw_rule(rule, ax)
    for axis, drawn in ((chart.x, ax.xaxis), (chart.y, ax.yaxis)):
        drawn.set_major_formatter(FuncFormatter(lambda value, _, tick=axis.tick: tick(value)))
        drawn.set_label_text(axis.label)
    ax.set_xlim(chart.x.low, chart.x.high)
    ax.set_ylim(chart.y.low, chart.y.high)


def _draw_rule(rule: Rule, ax: Axes) -> None:
    """A line across in the colour of text, which is seen on whatever background matplotlib was told to use."""
    import matplotlib

    across = ax.axvline if rule.vertical else ax.axhline
    across(rule.at, color=matplotlib.rcParams["text.color"], linewidth=1.2, linestyle=_DASHES, label=rule.label)


def _draw_bars(chart: BarChart, ax: Axes) -> None:
    """Bars from the left; parts of no length are left out."""
    import matplotlib
    from matplotlib.ticker import FuncFormatter

    ends = [0.0] * len(chart.names)
    for label, colour, lengths in chart.parts:
        rows = [n for n, length in enumerate(lengths) if length]
        ax.barh(rows, [lengths[n] for n in rows], left=[ends[n] for n in rows], color=colour, label=label or None)
        ends = [end + length for end, length in zip(ends, lengths, strict=True)]
    if chart.spreads:
        ink = matplotlib.rcParams["text.color"]
        ax.errorbar(ends, range(len(ends)), xerr=chart.spreads, linestyle="", ecolor=ink)
    if chart.rule is not None:
        _draw_rule(chart.rule, ax)
    ax.set_yticks(range(len(chart.names)), chart.names, fontsize="small")
    ax.invert_yaxis()
    ax.set_xlabel(chart.label)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: chart.tick(value)))
