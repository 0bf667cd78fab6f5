"""Charts as data: points over two axes, or bars. ``svg`` and ``plots`` draw them, each in its medium.

In: nothing. Out: ``Chart`` and ``BarChart``, with the colours and markers that all media share.

The colours are those of Okabe and Ito (2008, "Color universal design"), which readers with any of the common colour
deficiencies can tell apart, less yellow (pale on white) and black (gone on black), and with grey. Markers tell points
apart in print and where there are more series than colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from remat_plan.small.budget import format_bytes

COLOURS = BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c8c8c"),
)
"""One for each series, in turn."""
BEFORE, AFTER = VERMILION, BLUE
"""Of the plain step and of the planned one, everywhere."""
MARKERS = "osD^v"
"""Circle, square, diamond, triangles, in turn, as matplotlib names them."""
_SIZES = (5.0, 9.0)
"""The smallest and the largest marker of points that may coincide."""
_MARGIN = 0.04
"""Free space at either end of an axis, as a share of the span of its values."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a series is drawn: its colour, the width of its line in points (0: they are not joined), its markers.

    Markers (of ``MARKERS``; "": none) are hollow, so that another one of the same place is seen through them.
    """

    colour: str
    width: float = 1.8
    marker: str = "o"
    size: float = 7.0


PLAIN, PLANNED = Look(BEFORE, 3.0, ""), Look(AFTER, 1.6, "")
"""Lines of the two steps of a plan; the planned one is drawn over the plain one, and leaves it in sight."""


def point_look(number: int, count: int) -> Look:
    """Return the look of the points of a strategy, one of so many in a chart.

    They are not joined: between two budgets that were asked for, other plans are possible. The first have the largest
    markers, the last the smallest: where points coincide, each can be seen around the one that is drawn over it.

    >>> [point_look(n, 3).size for n in range(3)]
    [9.0, 7.0, 5.0]
    """
    left = (count - 1 - number) / max(count - 1, 1)
    size = round(_SIZES[0] + left * (_SIZES[1] - _SIZES[0]), 2)
    return Look(COLOURS[number % len(COLOURS)], 0.0, MARKERS[number % len(MARKERS)], size)


@dataclass(frozen=True, slots=True)
class Series:
    """Points in one look, with what each tells when it is pointed at, where a medium can.

    Of ``stairs`` the height stays until the next point, instead of rising to it.
    """

    label: str
    look: Look
    xs: Sequence[float]
    ys: Sequence[float]
    hints: Sequence[str] = ()
    stairs: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis from ``low`` to ``high``; ``tick`` writes its numbers."""

    label: str
    low: float
    high: float
    tick: Callable[[float], str]

    @staticmethod
    def around(label: str, values: Iterable[float], tick: Callable[[float], str], zero: bool = True) -> Axis:
        """Return an axis with room for all values, from 0 on, or with ``zero=False`` around the values alone.

        >>> Axis.around("", [3.0, 8.0], str).low, Axis.around("", [], str).high
        (0.0, 0.04)
        """
        known = [*([0.0] if zero else []), *values] or [0.0]
        low, high = min(known), max(known)
        margin = _MARGIN * ((high - low) or high or 1.0)
        return Axis(label, low if zero and low == 0 else low - margin, high + margin, tick)

    def place(self, value: float) -> float:
        """Return where a value stands, 0 to 1."""
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self, most: int = 6) -> list[float]:
        span = (self.high - self.low) or 1.0
        power = 10.0 ** math.floor(math.log10(span / most))
        step = next(power * m for m in (1, 2, 5, 10, 20) if span / (power * m) <= most)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def bytes_axis(label: str, values: Iterable[float], zero: bool = True) -> Axis:
    """An axis of bytes."""
    return Axis.around(label, values, format_bytes, zero)


def overhead_axis(label: str, overheads: Iterable[float]) -> Axis:
    """An axis of overheads, from nothing, or from the least where plans save time."""
    return Axis.around(label, [1e-3, *overheads], lambda value: f"{100 * value:.3g}%")


@dataclass(frozen=True, slots=True)
class Rule:
    """A dashed line across a chart, at a height or, if ``vertical``, at a place of the x axis."""

    label: str
    at: float
    vertical: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over two axes, drawn in this order, with lines across.

    Attributes:
        floor: the chart is shaded from the bottom to this rule.
        columns: texts for equal stretches of the x axis, told where it is pointed at.
        unseen: what the legend of a page tells of what is not in sight.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()
    floor: Rule | None = None
    columns: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not any(len(s.xs) for s in self.series)


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars side by side, from the top, each of parts that follow each other; ``label`` says what their lengths are.

    Attributes:
        parts: (label, colour, length in each bar); no legend for a label "".
        tick: writes lengths.
        spreads: what is drawn to either side of the end of each bar; empty for nothing.
    """

    title: str
    names: tuple[str, ...]
    label: str
    parts: tuple[tuple[str, str, tuple[float, ...]], ...]
    tick: Callable[[float], str] = format_bytes
    spreads: tuple[float, ...] = ()
    rule: Rule | None = None
