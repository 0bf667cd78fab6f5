"""A line chart as inline SVG: no script, no network; texts take the colour of the page around it.

In: ``Line``, ``Axis``, marks. Out: ``<svg>`` elements as strings: a chart, and the key of a line for a legend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from remat_plan.report.palette import Look

WIDTH, HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 26, 14, 46
_DASHED = ' stroke-dasharray="6 4"'
_SHADE = 0.2
_CORNERS = {
    "s": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "D": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "^": ((0, -1.2), (1.1, 1), (-1.1, 1)),
    "v": ((0, 1.2), (1.1, -1), (-1.1, -1)),
}
"""Corners of a marker around its place, for half its size; a circle has none."""


@dataclass(frozen=True, slots=True)
class Line:
    """Points, joined by lines if the look has a width; one with a title has a marker that tells it when pointed at."""

    look: Look
    xs: Sequence[float]
    ys: Sequence[float]
    titles: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis from ``low`` to ``high``; ``tick`` writes its numbers."""

    label: str
    low: float
    high: float
    tick: Callable[[float], str]

    def place(self, value: float) -> float:
        """Return where a value stands, 0 to 1."""
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers within the axis."""
        span = (self.high - self.low) or 1.0
        power = 10.0 ** math.floor(math.log10(span / most))
        step = next(power * m for m in (1, 2, 5, 10, 20) if span / (power * m) <= most)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def line_chart(
    label: str,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    floor: float = 0.0,
    rule: float | None = None,
    columns: Sequence[str] = (),
) -> str:
    """Draw lines.

    Args:
        label: what the chart shows, for those who do not see it.
        lines: drawn in this order.
        x, y: the axes.
        floor: the chart is shaded from the bottom to this height.
        rule: height of a dashed line across.
        columns: texts for equal stretches of the x axis, shown where the pointer is.
    """
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def at(px: float, py: float) -> tuple[float, float]:
        return _LEFT + width * x.place(px), _TOP + height * (1 - y.place(py))

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" '
        f'style="width:100%;max-width:{WIDTH}px;height:auto;display:block" font-size="12" fill="currentColor">'
    ]
    for tick in y.ticks():
        _, v = at(x.low, tick)
        parts += [_stroke(_LEFT, v, _LEFT + width, v, 0.15), _text(_LEFT - 7, v + 4, y.tick(tick), "end")]
    bottom = _TOP + height
    for tick in x.ticks(8):
        u, _ = at(tick, y.low)
        parts += [_stroke(u, bottom, u, bottom + 4, 0.6), _text(u, bottom + 18, x.tick(tick))]
    if floor > y.low:
        _, v = at(x.low, floor)
        parts.append(_area(_LEFT, v, width, bottom - v, _SHADE))
    for line in lines:
        points = [at(px, py) for px, py in zip(line.xs, line.ys, strict=True)]
        parts += [_path(points, line.look)] if line.look.width else []
        parts += [_marker(*p, line.look, title) for p, title in zip(points, line.titles, strict=False) if title]
    if rule is not None:
        _, v = at(x.low, rule)
        parts.append(_stroke(_LEFT, v, _LEFT + width, v, 0.9, _DASHED))
    parts.append(_stroke(_LEFT, bottom, _LEFT + width, bottom, 0.6))
    each = width / max(len(columns), 1)
    parts += [_area(_LEFT + n * each, _TOP, each, height, 0, text) for n, text in enumerate(columns)]
    parts.append(_text(_LEFT + width / 2, HEIGHT - 8, x.label))
    parts.append(_text(14, _TOP + height / 2, y.label, turned=True))
    return "".join([*parts, "</svg>"])


def _text(x: float, y: float, text: str, anchor: str = "middle", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'


def _area(x: float, y: float, width: float, height: float, opacity: float, title: str = "") -> str:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill-opacity="{opacity}"'
    return f'<rect class="hover" {box}>{_title(title)}</rect>' if title else f"<rect {box}/>"


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _stroke(x1: float, y1: float, x2: float, y2: float, opacity: float, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"{more}/>'
    )


def _path(points: Sequence[tuple[float, float]], look: Look) -> str:
    places = " ".join(f"{u:.1f},{v:.1f}" for u, v in points)
    return f'<polyline points="{places}" fill="none" stroke="{look.colour}" stroke-width="{look.width}"/>'


def _marker(u: float, v: float, look: Look, title: str = "") -> str:
    """A hollow marker: another one of the same place can be seen through it."""
    half = look.size / 2
    paint = f'fill="none" pointer-events="all" stroke="{look.colour}" stroke-width="2"'
    corners = " ".join(f"{u + half * dx:.1f},{v + half * dy:.1f}" for dx, dy in _CORNERS.get(look.marker, ()))
    shape = f'polygon points="{corners}"' if corners else f'circle cx="{u:.1f}" cy="{v:.1f}" r="{half:.1f}"'
    return f"<{shape} {paint}>{_title(title) if title else ''}</{shape.partition(' ')[0]}>"


def line_key(look: Look) -> str:
    """A piece of a line, for a legend."""
    return _key(_path([(0, 6), (30, 6)], look))


def marker_key(look: Look) -> str:
    """A marker, for a legend."""
    return _key(_marker(15, 6, look))


def rule_key() -> str:
    """A piece of the dashed line across, for a legend."""
    return _key(_stroke(0, 6, 30, 6, 0.9, _DASHED))


def area_key() -> str:
    """A piece of the shaded area, for a legend."""
    return _key(_area(0, 1, 30, 10, _SHADE))


def _key(piece: str) -> str:
    style = 'style="vertical-align:middle;margin-right:5px" fill="currentColor" aria-hidden="true"'
    return f'<svg width="30" height="12" {style}>{piece}</svg>'
