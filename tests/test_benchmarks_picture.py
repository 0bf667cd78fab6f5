"""The picture of README: drawn from the kept table, and readable."""

import pytest

from benchmarks.picture import PICTURE, Pair, draw, pairs, picture


def test_the_kept_picture_is_of_the_kept_table(tmp_path):
    draw(tmp_path / "measured.svg")
    text = PICTURE.read_text()
    for drawn in (text, (tmp_path / "measured.svg").read_text()):
        for pair in pairs():
            assert f"<!-- {pair.hand_overhead:+.0f}% in {pair.hand_megabytes:.0f} MB -->" in drawn
            assert f"<!-- {pair.plan_overhead:+.0f}% in {pair.plan_megabytes:.0f} MB -->" in drawn


@pytest.mark.parametrize("near", [-9.0, -5.0, -0.4, 0.0, 0.4, 5.0, 9.0])
def test_no_label_lies_on_the_line_of_plain_jax(near):
    rows = [Pair("wide", 21.4, 259, -7.4, 250), Pair("near", near, 717, -20.0, 263), Pair("behind", 20.0, 9, near, 8)]
    figure = picture(rows)
    figure.canvas.draw()
    (ax,) = figure.axes
    (line,) = [c for c in ax.collections if len(c.get_segments() if hasattr(c, "get_segments") else ()) == 4]
    for text in ax.texts:
        box = text.get_window_extent()
        for (x, low), (_, high) in map(ax.transData.transform, line.get_segments()):
            assert not (box.x0 < x < box.x1 and box.y0 < high and low < box.y1), text.get_text()
