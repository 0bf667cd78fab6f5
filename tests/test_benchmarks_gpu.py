"""The run on a GPU: works on a CPU in a small version, and its table says what is kept."""

import json
import shutil

import pytest

from benchmarks.common import RESULTS, Options
from benchmarks.gpu import table
from benchmarks.gpu.ahead import ahead
from benchmarks.gpu.device import drive


def test_the_table_says_what_is_kept(tmp_path, capsys):
    for name in ("gpu.json", "gpu_ahead.json"):
        shutil.copy(RESULTS / name, tmp_path)
    table.run(Options(results=tmp_path))
    assert (tmp_path / "gpu.md").read_text() == (RESULTS / "gpu.md").read_text()
    assert "gpt2_scan" in capsys.readouterr().out


@pytest.mark.slow
def test_a_small_run_on_any_device(tmp_path):
    """Plans are made before, then run in processes of their own; what does not fit is a row too."""
    found = [ahead("gpt2", variant, True) for variant in ("plain", "hand", "half", "at_hand")]
    assert found[0]["ahead_bytes"] > found[1]["ahead_bytes"]
    drive(tmp_path / "gpu.json", True, 8.0, ["loss:gpt2", "step:too_large"])
    rows = {(r["kind"], r["variant"]): r for r in json.loads((tmp_path / "gpu.json").read_text())["rows"]}
    assert len(rows) == 7
    for kind in ("loss", "step"):
        assert rows[kind, "plain"]["ms"] > 0
        assert rows[kind, "plain"]["compiled_bytes"] > rows[kind, "hand"]["compiled_bytes"]
    assert rows["loss", "at_hand"]["compiled_bytes"] <= rows["loss", "at_hand"]["budget_bytes"]
    assert abs(rows["loss", "at_hand"]["value"] / rows["loss", "plain"]["value"] - 1) < 1e-5
    assert rows["step", "fit"]["compiled_bytes"] <= rows["step", "fit"]["budget_bytes"]
