"""A line chart as inline SVG: no script, no network; texts take the colour of the page around it.

In: ``Line``, ``Axis``, marks. Out: an ``<svg>`` element as a string.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 26, 14, 46


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined by straight lines; a point with a title is a dot that tells it when pointed at."""

    colour: str
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
        f'style="width:100%;max-width:{WIDTH}px;height:auto" font-size="12" fill="currentColor">'
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
        parts.append(_area(_LEFT, v, width, bottom - v, 0.12))
    for line in lines:
        points = [at(px, py) for px, py in zip(line.xs, line.ys, strict=True)]
        path = " ".join(f"{u:.1f},{v:.1f}" for u, v in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.8"/>')
        for (u, v), title in zip(points, line.titles, strict=False):
            if title:
                dot = f'<circle cx="{u:.1f}" cy="{v:.1f}" r="4.5" fill="{line.colour}">'
                parts.append(f"{dot}{_title(title)}</circle>")
    if rule is not None:
        _, v = at(x.low, rule)
        parts.append(_stroke(_LEFT, v, _LEFT + width, v, 0.9, ' stroke-dasharray="6 4"'))
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
