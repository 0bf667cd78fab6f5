"""The screen of figures that matter most: each is in its table, and the screen says what the table says."""

from pathlib import Path

import pytest

from benchmarks.common import RESULTS
from benchmarks.summary import NUMBERS, Number


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{number.table}: {number.question[:20]}")
def test_figures_are_those_of_the_tables(number: Number) -> None:
    figure = number.read(RESULTS)
    assert f"| {number.question} | {figure} | [{number.table}]" in (RESULTS / "README.md").read_text(encoding="utf-8")


def test_a_table_that_lost_its_figure_is_named(tmp_path: Path) -> None:
    (tmp_path / "hands.md").write_text("* nothing", encoding="utf-8")
    with pytest.raises(ValueError, match=r"results/hands.md has no line that matches"):
        Number("Is a hand faster?", "hands", r"^\* (\d+ rows)").read(tmp_path)
