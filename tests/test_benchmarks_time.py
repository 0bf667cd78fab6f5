"""The table of measured against predicted seconds: it goes on where it stopped, and says what is off."""

from dataclasses import replace

import pytest

from benchmarks import timing
from benchmarks.common import Options
from benchmarks.timing import Row, facts
from remat_plan.clock import store
from remat_plan.cost.hardware import hardware_for

POLICY = Row("vit", "dots_saveable", 1000, 0.1, 0.10, 0.09, 0.11, 0.10, 0.30, 0.12)
SLOW = replace(POLICY, step="plan at dots_saveable", overhead=0.2, table=0.2, rates=0.25, against=(0.1, 0.02, 0.2))
NOISE = replace(SLOW, model="unet", against=(0.1, -0.02, 0.2))


@pytest.fixture(autouse=True)
def _rates(monkeypatch, tmp_path):
    """Rates of the table stand for measured ones: nothing is measured here."""
    monkeypatch.setenv("REMAT_PLAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        store, "calibrate", lambda target, table, say: replace(hardware_for("cpu", "cpu"), measured=True)
    )


def test_facts_name_the_worst_and_what_is_slower_beyond_noise():
    table, rates, _, slower, _ = facts([POLICY, SLOW, NOISE])
    assert "0.0 points in the median, 20.0 at worst (vit, dots_saveable)" in table
    assert "5.0 points in the median" in rates
    assert slower == "of 2 plans at the peak of a policy, slower beyond noise: vit, plan at dots_saveable (+10.0 %)"


def test_models_that_are_done_are_not_run_again(monkeypatch, tmp_path):
    ran = []

    def measured(case, rounds):
        ran.append(case)
        return [replace(SLOW, model=case)]

    monkeypatch.setattr(timing, "make_case", lambda name, options: name)
    monkeypatch.setattr(timing, "measure_case", measured)
    timing.run(Options(quick=True, results=tmp_path, models=("vit",)))
    timing.run(Options(quick=True, results=tmp_path))
    assert ran == ["vit", "gpt2", "resnet50", "unet", "densenet", "llama"]
    timing.run(Options(quick=True, results=tmp_path, models=("unet",)))
    assert ran[6:] == ["unet"]
    text = (tmp_path / "timing.md").read_text()
    assert text.count("| plan at dots_saveable |") == 6
    assert "Not finished" not in text


@pytest.mark.slow
def test_a_tiny_model_is_measured(tmp_path):
    report = timing.run(Options(quick=True, results=tmp_path, models=("vit", "llama")))
    assert {row[0] for row in report.rows} == {"vit", "llama"}
    assert any(row[1].startswith("plan at ") for row in report.rows)
