"""The table of measured against predicted seconds: it goes on where it stopped, and says what is off."""

import json
from dataclasses import replace

import pytest

from benchmarks import timing, timing_again
from benchmarks.common import Options
from benchmarks.timing import Measured, Row, Store, facts
from remat_plan.clock import store
from remat_plan.cost.hardware import Hardware

HARDWARE = Hardware("cpu", 1e11, 2.5e10, 2e10, measured=True, rates={"exp float32": 1e9})
POLICY = Measured("vit", "dots_saveable", 1000, 0.1, 0.10, 0.09, 0.11, 0.10)
SLOW = replace(POLICY, step="plan at dots_saveable", overhead=0.2, against=(0.1, 0.02, 0.2))
NOISE = replace(SLOW, model="unet", against=(0.1, -0.02, 0.2))


@pytest.fixture(autouse=True)
def _rates(monkeypatch, tmp_path):
    """Rates of the table stand for measured ones: nothing is measured here."""
    monkeypatch.setenv("REMAT_PLAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "calibrate", lambda target, table, say: HARDWARE)


def stored(*names, steps=()):
    return Store(
        dict.fromkeys(names, "a CPU"), dict.fromkeys(names, HARDWARE), dict.fromkeys(names, "today"), list(steps)
    )


def test_facts_name_the_worst_and_what_is_slower_beyond_noise():
    rows = [Row(POLICY, 0.30, 0.12), Row(SLOW, 0.2, 0.25), Row(NOISE, 0.2, 0.25)]
    table, rates, _, slower, vit, unet = facts(rows, stored("vit", "unet"))
    assert "0.0 points in the median of 3 steps, 20.0 at worst (vit, dots_saveable)" in table
    assert "5.0 points in the median" in rates
    assert slower == "of 2 plans at the peak of a policy, slower beyond noise: vit, plan at dots_saveable (+10.0 %)"
    assert vit == "vit: today, on a CPU: memory 20.0 GB/s, large products 100 GFLOP/s, fresh memory 0.00 ns/byte"
    assert unet.startswith("unet: today, on a CPU")


def test_models_that_are_done_are_not_run_again(monkeypatch, tmp_path):
    ran = []

    def measured(steps, rounds):
        ran.append(steps)
        return [replace(SLOW, model=steps)]

    monkeypatch.setattr(timing, "steps_of", lambda name, options, sizes: name)
    monkeypatch.setattr(timing, "measure_case", measured)
    monkeypatch.setattr(timing, "predict", lambda steps, rows, rates: [Row(row, 0.1, 0.2) for row in rows])
    timing.run(Options(quick=True, results=tmp_path, models=("vit",)))
    timing.run(Options(quick=True, results=tmp_path))
    assert ran == ["vit", "gpt2", "resnet50", "unet", "densenet", "llama"]
    timing.run(Options(quick=True, results=tmp_path))
    assert len(ran) == 6
    timing.run(Options(quick=True, results=tmp_path, models=("unet",)))
    assert ran[6:] == ["unet"]
    text = (tmp_path / "timing.md").read_text()
    assert text.count("| plan at dots_saveable |") == 6
    assert "Not finished" not in text


@pytest.mark.slow
def test_predictions_are_made_anew_by_the_rates_that_are_stored(monkeypatch, tmp_path):
    """Where ``exp`` is slower, recomputing it costs more, but not by the table; nothing is run."""
    monkeypatch.setattr(timing, "measure_case", lambda steps, rounds: pytest.fail("measured again"))
    unknown = replace(POLICY, step="plan at 50%")
    steps = [replace(POLICY, step="nothing_saveable"), unknown]
    path = tmp_path / "timing.json"
    stored("vit", steps=steps).write(path)
    assert Store.read(path) == stored("vit", steps=steps)
    (before, _) = timing_again.run(Options(quick=True, results=tmp_path)).rows
    data = json.loads(path.read_text())
    data["hardware"]["vit"]["rates"]["exp float32"] = 1e6
    path.write_text(json.dumps(data))
    (after, plan) = timing_again.run(Options(quick=True, results=tmp_path)).rows
    assert before[:8] == after[:8]
    assert before[8] != after[8]
    assert plan[7:] == ("", "", "", "")


def test_there_must_be_something_to_predict_again(tmp_path):
    with pytest.raises(FileNotFoundError, match="benchmarks time"):
        timing_again.run(Options(results=tmp_path))


@pytest.mark.slow
def test_a_tiny_model_is_measured(tmp_path):
    report = timing.run(Options(quick=True, results=tmp_path, models=("vit", "llama")))
    assert {row[0] for row in report.rows} == {"vit", "llama"}
    assert any(row[1].startswith("plan at ") for row in report.rows)
    again = timing_again.run(Options(quick=True, results=tmp_path))
    assert any(row[1].startswith("plan at ") for row in again.rows)
