"""Lines can be told apart: by readers with colour deficiencies, on white and on black, and where they coincide."""

import itertools
import re
from html import escape

import numpy as np
import pytest

from remat_plan.report.charts import COLOURS, PLAIN, PLANNED, Axis, point_look
from tests.helpers import few

SEEN = {
    "all cones": np.eye(3),
    # Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritanopia": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])
NOTICEABLE = 8.0
"""Distance in CIELAB that is seen at a glance; neighbours that can just be told apart side by side are at 2.3."""


def linear(colour):
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    x, y, z = np.cbrt(np.maximum(TO_XYZ @ np.clip(rgb, 0, 1), 0.0089 * WHITE) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_colours_are_seven_and_all_different_whatever_cones_there_are():
    assert len(set(COLOURS)) == 7
    for name, matrix in SEEN.items():
        for one, other in itertools.combinations(COLOURS, 2):
            distance = np.linalg.norm(lab(matrix @ linear(one)) - lab(matrix @ linear(other)))
            assert distance > NOTICEABLE, (name, one, other, distance)


def test_colours_can_be_seen_on_white_and_on_black():
    for colour in COLOURS:
        bright = TO_XYZ[1] @ linear(colour)
        assert 1.05 / (bright + 0.05) > 2, colour
        assert (bright + 0.05) / 0.05 > 2, colour


def test_no_two_strategies_of_one_chart_look_alike():
    looks = [point_look(n, 35) for n in range(35)]
    assert len({(x.colour, x.marker) for x in looks}) == 35


def test_points_drawn_later_leave_the_ones_below_in_sight():
    looks = [point_look(n, 6) for n in range(6)]
    assert all(a.size > b.size for a, b in itertools.pairwise(looks))
    assert PLAIN.width > PLANNED.width


def test_axes_have_room_for_all_values():
    for values in ([], [0.0], [5.0], [-2.0, 8.0], [3e9, 4e9]):
        for zero in (True, False):
            axis = Axis.around("", values, str, zero)
            assert all(axis.low <= value <= axis.high for value in values)
            assert axis.low < axis.high
    assert Axis.around("", [2.0, 5.0], str).low == 0


@pytest.mark.parametrize("name", few(["plan", "verified", "curve", "comparison"], ["verified", "curve"]))
def test_all_media_draw_one_chart(name, request):
    """The same title, axes, labels and number of points, by matplotlib and as SVG."""
    thing = request.getfixturevalue(name)
    ax, page = thing.plot(), thing._repr_html_()
    for text in (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()):
        assert escape(text) in page
    legend, drawing = page.split('role="img"')
    for label in (text.get_text() for text in ax.get_legend().get_texts()):
        assert f"{escape(label)}</span>" in legend
    marked = sum(len(line.get_xdata()) for line in ax.get_lines() if line.get_marker() not in ("", "None"))
    assert len(re.findall("<circle|<polygon", drawing)) == marked
