"""Charts as inline SVG with a legend: no script, no network; texts take the colour of the page around them.

In: ``Chart``. Out: HTML as a string: the legend, then one ``<svg>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from remat_plan.report.charts import Chart, Look, Series

WIDTH, HEIGHT = 720, 300
"""Pixels of a chart; it shrinks with the page."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 26, 14, 46
"""Pixels around the area between the axes, for their numbers and labels."""
_DASHED = ' stroke-dasharray="6 4"'
_SHADE = 0.2
"""Opacity of the shaded area: lines and numbers are seen through it."""
_CORNERS = {
    "s": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "D": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "^": ((0, -1.2), (1.1, 1), (-1.1, 1)),
    "v": ((0, 1.2), (1.1, -1), (-1.1, -1)),
}
"""Corners of a marker around its place, for half its size; a circle has none."""


def render(chart: Chart) -> str:
    """Return a chart below its legend."""
    return _legend(chart) + _drawing(chart)


def _legend(chart: Chart) -> str:
    keys = [] if chart.floor is None else [(_area(0, 1, 30, 10, _SHADE), chart.floor.label)]
    for series in chart.series:
        line = _path([(0, 6), (30, 6)], series.look) if series.look.width else ""
        keys.append((line + (_marker(15, 6, series.look) if series.look.marker else ""), series.label))
    keys += [(_stroke(0, 6, 30, 6, 0.9, _DASHED), rule.label) for rule in chart.rules]
    keys += [("", text) for text in chart.unseen]
    style = 'style="vertical-align:middle;margin-right:5px" fill="currentColor" aria-hidden="true"'
    told = []
    for key, label in keys:
        drawn = f'<svg width="30" height="12" {style}>{key}</svg>' if key else ""
        told.append(f'<span style="margin-right:16px;white-space:nowrap">{drawn}{escape(label)}</span>')
    return f'<div style="line-height:1.7">{"".join(told)}</div>'


def _drawing(chart: Chart) -> str:
    x, y = chart.x, chart.y
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    right, bottom = _LEFT + width, _TOP + height

    def across(value: float) -> float:
        return _LEFT + width * x.place(value)

    def down(value: float) -> float:
        return _TOP + height * (1 - y.place(value))

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}" '
        f'style="width:100%;max-width:{WIDTH}px;height:auto;display:block" font-size="12" fill="currentColor">'
    ]
    for tick in y.ticks():
        v = down(tick)
        parts += [_stroke(_LEFT, v, right, v, 0.15), _text(_LEFT - 7, v + 4, y.tick(tick), "end")]
    for tick in x.ticks(8):
        u = across(tick)
        parts += [_stroke(u, bottom, u, bottom + 4, 0.6), _text(u, bottom + 18, x.tick(tick))]
    if chart.floor is not None:
        v = down(chart.floor.at)
        parts.append(_area(_LEFT, v, width, bottom - v, _SHADE))
    for series in chart.series:
        points = [(across(px), down(py)) for px, py in zip(series.xs, series.ys, strict=True)]
        parts += _series(series, points)
    for rule in chart.rules:
        u, v = across(rule.at), down(rule.at)
        ends = (u, _TOP, u, bottom) if rule.vertical else (_LEFT, v, right, v)
        parts.append(_stroke(*ends, 0.9, _DASHED))
    parts.append(_stroke(_LEFT, bottom, right, bottom, 0.6))
    each = width / max(len(chart.columns), 1)
    parts += [_area(_LEFT + n * each, _TOP, each, height, 0, text) for n, text in enumerate(chart.columns)]
    parts.append(_text(_LEFT + width / 2, HEIGHT - 8, x.label))
    parts.append(_text(14, _TOP + height / 2, y.label, turned=True))
    return "".join([*parts, "</svg>"])


def _series(series: Series, points: Sequence[tuple[float, float]]) -> list[str]:
    """A line, if the look has a width, and a marker at each point, if it has one."""
    corners = list(points)
    if series.stairs:
        corners = [corner for one, other in pairwise(points) for corner in (one, (other[0], one[1]))]
        corners += points[-1:]
    parts = [_path(corners, series.look)] if series.look.width else []
    hints = series.hints or [""] * len(points)
    if series.look.marker:
        parts += [_marker(*point, series.look, hint) for point, hint in zip(points, hints, strict=True)]
    return parts


def _text(x: float, y: float, text: str, anchor: str = "middle", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'


def _area(x: float, y: float, width: float, height: float, opacity: float, hint: str = "") -> str:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill-opacity="{opacity}"'
    return f'<rect class="hover" {box}><title>{escape(hint)}</title></rect>' if hint else f"<rect {box}/>"


def _stroke(x1: float, y1: float, x2: float, y2: float, opacity: float, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"{more}/>'
    )


def _path(points: Sequence[tuple[float, float]], look: Look) -> str:
    places = " ".join(f"{u:.1f},{v:.1f}" for u, v in points)
    return f'<polyline points="{places}" fill="none" stroke="{look.colour}" stroke-width="{look.width}"/>'


def _marker(u: float, v: float, look: Look, hint: str = "") -> str:
    half = look.size / 2
    paint = f'fill="none" pointer-events="all" stroke="{look.colour}" stroke-width="2"'
    corners = " ".join(f"{u + half * dx:.1f},{v + half * dy:.1f}" for dx, dy in _CORNERS.get(look.marker, ()))
    shape = f'polygon points="{corners}"' if corners else f'circle cx="{u:.1f}" cy="{v:.1f}" r="{half:.1f}"'
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return f"<{shape} {paint}>{title}</{shape.partition(' ')[0]}>"
