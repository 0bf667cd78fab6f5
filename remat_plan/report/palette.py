"""How lines and points of charts look: colour, marker, width.

In: the number of a strategy. Out: ``Look``, for matplotlib and for SVG alike.

The colours are those of Okabe and Ito (2008, "Color universal design"), which readers with any of the common colour
deficiencies can tell apart, less yellow (pale on white) and black (gone on black), and with grey. Markers tell points
apart in print and where there are more strategies than colours.
"""

from __future__ import annotations

from dataclasses import dataclass

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c8c8c"),
)
COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY)
"""One for each line, in turn."""
BEFORE, AFTER = VERMILION, BLUE
"""Of the plain step and of the planned one, everywhere."""
MARKERS = "osD^v"
"""Circle, square, diamond, triangles, in turn, as matplotlib names them."""
_SIZES = (5.0, 9.0)


@dataclass(frozen=True, slots=True)
class Look:
    """How a line, or points, are drawn.

    Attributes:
        colour: as ``#rrggbb``.
        width: of the line, in points; 0: the points are not joined.
        marker: one of ``MARKERS``; they are hollow.
        size: of the markers, in points.
    """

    colour: str
    width: float = 1.8
    marker: str = "o"
    size: float = 7.0


PLAIN, PLANNED = Look(BEFORE, 3.0, "D", 9.0), Look(AFTER, 1.6, "D", 9.0)
"""Of the two steps of a plan; the planned one is drawn over the plain one, and leaves it in sight."""


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
