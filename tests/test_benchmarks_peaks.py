"""The table of predicted over compiled peaks in the documentation is that of the results."""

import json
from pathlib import Path

import pytest

from benchmarks.common import RESULTS, Options
from benchmarks.peaks import DTYPES, TARGETS, run

LIMITS = Path(__file__).parents[1] / "docs" / "limits.md"


def test_the_table_of_the_limits_is_that_of_the_results():
    lines = (RESULTS / "predict.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and " - " in line]
    assert len(rows) == len(TARGETS) * len(DTYPES)
    limits = LIMITS.read_text(encoding="utf-8")
    assert [row for row in rows if row not in limits] == []


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
