"""The table of predicted over compiled peaks in the documentation is that of the results."""

import json
from pathlib import Path

import pytest

from benchmarks.common import RESULTS, Options
from benchmarks.peaks import ranges, run

LIMITS = Path(__file__).parents[1] / "docs" / "limits.md"


def test_the_table_of_the_limits_is_that_of_the_results():
    assert ranges(RESULTS / "peaks.md") in LIMITS.read_text(encoding="utf-8")


def test_ranges_are_least_and_most_and_nothing_where_there_is_no_row(tmp_path):
    path = tmp_path / "peaks.md"
    head = "| model | dtype | target | schedule | predicted MB | compiled MB | predicted / compiled |"
    rows = [f"| vit | float32 | gpu:h100 | {name} | 1 | 1 | {ratio} |" for name, ratio in (("a", 0.9), ("b", 1.02))]
    path.write_text("\n".join([head, *rows]))
    table = ranges(path).splitlines()
    assert table[0] == "| | gpt2 | gpt2_scan | resnet50 | unet | vit | densenet | mlp |"
    assert table[2] == "| gpu:h100, float32 |  |  |  |  | 0.90 - 1.02 |  |  |"


@pytest.mark.slow
def test_a_schedule_that_is_the_same_is_not_compiled_again(tmp_path):
    options = Options(quick=True, models=("mlp",), targets=("cpu",), results=tmp_path)
    first = run(options)
    kept = tmp_path / "peaks.json"
    rows = json.loads(kept.read_text())
    compiled = rows[1]["peak_bytes"]
    rows[0]["peak_bytes"] = rows[1]["peak_bytes"] = 1_000_000
    rows[1]["schedule"] = rows[0]["schedule"]
    kept.write_text(json.dumps(rows))
    again = run(options)
    assert [row[5] for row in again.rows[:1]] == ["1"], "what is kept is believed"
    assert again.rows[1:] == first.rows[1:], "another schedule than the one kept is compiled"
    assert json.loads(kept.read_text())[-1]["peak_bytes"] == compiled
