"""Charts as SVG with their legends: memory over the step, the trade-off curve, strategies side by side.

In: ``Plan``, ``Tradeoff``, ``Comparison``. Out: HTML; ``html`` puts it between titles and tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from remat_plan.report.palette import AFTER, PLAIN, PLANNED, Look, point_look
from remat_plan.report.rows import budget_text, compiled_peaks, memory_high, shares
from remat_plan.report.svg import Axis, Line, area_key, line_chart, line_key, marker_key, rule_key
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.results.comparison import Comparison
    from remat_plan.results.plan import Plan
    from remat_plan.results.trace import MemoryTrace
    from remat_plan.results.tradeoff import Tradeoff

_COLUMNS = 100
"""Stretches of the step whose figures are told when they are pointed at."""


def timeline(plan: Plan) -> str:
    """Live memory over the step, plain and planned, as predicted; the compiled peaks as markers; the budget."""
    before, after = plan.plain_timeline, plan.planned_timeline
    high = memory_high(plan)
    shown = plan.budget_bytes is not None and plan.budget_bytes <= high
    lines = [Line(PLAIN, shares(before), before.live_bytes), Line(PLANNED, shares(after), after.live_bytes)]
    keys = [
        (line_key(PLAIN), f"plain: predicted peak {format_bytes(before.peak_bytes)}"),
        (line_key(PLANNED), f"planned: predicted peak {format_bytes(after.peak_bytes)}"),
    ]
    for (place, size_bytes, word), drawn in zip(compiled_peaks(plan), (PLAIN, PLANNED), strict=False):
        told = f"{word}: compiled peak {format_bytes(size_bytes)}"
        lines.append(Line(drawn, [place], [size_bytes], [told]))
        keys.append((marker_key(drawn), told))
    keys += [
        (rule_key() if shown else "", f"budget: {budget_text(plan)}"),
        (area_key(), f"arguments and results: {format_bytes(after.owned_bytes)}"),
    ]
    chart = line_chart(
        "live memory over the gradient step, plain and planned (predicted)",
        lines,
        Axis("position in the gradient step (share of its instructions)", 0, 100, lambda v: f"{v:.0f}%"),
        Axis("live memory (predicted)", 0, high, format_bytes),
        floor=after.owned_bytes,
        rule=float(plan.budget_bytes) if plan.budget_bytes is not None and shown else None,
        columns=_hints(plan),
    )
    return _legend(keys) + chart


def _hints(plan: Plan) -> list[str]:
    pairs = zip(_highest(plan.plain_timeline), _highest(plan.planned_timeline), strict=True)
    return [
        f"at {n * 100 // _COLUMNS}% of the step: plain {format_bytes(plain)}, planned {format_bytes(planned)}, "
        f"budget {budget_text(plan)}"
        for n, (plain, planned) in enumerate(pairs)
    ]


def _highest(trace: MemoryTrace) -> list[int]:
    """The most live bytes in each of ``_COLUMNS`` stretches of the step."""
    highest = [0] * _COLUMNS
    for share, size in zip(shares(trace), trace.live_bytes, strict=True):
        column = min(int(share * _COLUMNS / 100), _COLUMNS - 1)
        highest[column] = max(highest[column], size)
    for n in range(1, _COLUMNS):
        highest[n] = highest[n] or highest[n - 1]  # a step that is longer than a column
    return highest


def curve(tradeoff: Tradeoff, title: str) -> str:
    """Overhead against peak, as stairs: a budget between two points is met by the one with the smaller peak."""
    points = tradeoff.points
    xs, ys, titles = [], [], []
    for point, after in zip(points, [*points[1:], points[-1]], strict=True):
        xs += [point.peak_bytes, after.peak_bytes]
        ys += [point.overhead, point.overhead]
        titles += [f"peak {format_bytes(point.peak_bytes)}, overhead {point.overhead:.1%}", ""]
    low, high = points[0].peak_bytes, points[-1].peak_bytes
    margin = 0.04 * ((high - low) or high or 1)
    return line_chart(
        title,
        [Line(Look(AFTER), xs, ys, titles)],
        Axis("peak memory (predicted)", low - margin, high + margin, format_bytes),
        _overhead_axis(ys),
    )


def scatter(comparison: Comparison) -> str:
    """Peak and overhead of all plans, points for each strategy."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in comparison.rows:
        if row.plan is not None and row.peak_bytes is not None:
            points.setdefault(row.strategy, []).append((row.peak_bytes, row.plan.overhead))
    lines, keys = [], []
    for number, (name, found) in enumerate(points.items()):
        drawn = point_look(number, len(points))
        peaks, overheads = zip(*sorted(found), strict=True)
        told = [f"{name}: peak {format_bytes(p)}, overhead {o:.1%}" for p, o in zip(peaks, overheads, strict=True)]
        lines.append(Line(drawn, peaks, overheads, told))
        keys.append((marker_key(drawn), name))
    most = max([1, comparison.written_peak_bytes, *(x for line in lines for x in line.xs)])
    word = "compiled" if comparison.verified else "predicted"
    chart = line_chart(
        "peak and overhead of the plans compared",
        lines,
        Axis(f"peak memory ({word})", 0, 1.04 * most, format_bytes),
        _overhead_axis([y for line in lines for y in line.ys]),
    )
    return _legend(keys) + chart


def _overhead_axis(overheads: Iterable[float]) -> Axis:
    """From nothing, or from the least where plans save time, to a little above the most."""
    low, high = min([0.0, *overheads]), max([1e-3, *overheads])
    return Axis("overhead (predicted)", 1.08 * low, 1.08 * high, lambda v: f"{100 * v:.3g}%")


def _legend(items: Iterable[tuple[str, str]]) -> str:
    """A legend of (key as SVG, text)."""
    told = "".join(
        f'<span style="margin-right:16px;white-space:nowrap">{drawn}{escape(text)}</span>' for drawn, text in items
    )
    return f'<div style="line-height:1.7">{told}</div>'
