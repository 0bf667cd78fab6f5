"""``benchmarks targets``: rows come from children, are kept, and say what is wrong."""

import contextlib
import dataclasses

import pytest

from benchmarks import targets
from benchmarks.common import Options, Session
from benchmarks.models import small
from remat_plan.search import driver
from remat_plan.small.budget import BudgetError

ROW = targets.Row("gpt2", "float32", "cpu", "75%", 1000, 2000, 990, 970, 0.02, 3, 12.0)


def test_rows_that_are_kept_are_not_made_again(tmp_path, monkeypatch):
    """One child of four rows for each dtype; the second run asks for none."""
    rows = [dataclasses.replace(ROW, budget=budget) for budget in (*targets.SHARES, targets.MINIMUM)]
    asked = []

    def child(name, dtype, target, options):
        asked.append((name, dtype, target))
        return [dataclasses.replace(row, dtype=dtype) for row in rows], ""

    monkeypatch.setattr(targets, "_child", child)
    options = Options(models=("gpt2",), targets=("cpu",), results=tmp_path)
    first = targets.run(options)
    assert asked == [("gpt2", "float32", "cpu"), ("gpt2", "bfloat16", "cpu")]
    assert len(first.rows) == 8
    again = targets.run(options)
    assert len(asked) == 2
    assert again.text() == first.text()


def test_a_child_that_stops_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "_child", lambda *given: ([ROW], "out of time after 9 s"))
    report = targets.run(Options(models=("gpt2",), targets=("cpu",), results=tmp_path))
    assert "gpt2 float32 cpu (1 of 4 rows: out of time after 9 s)" in report.facts[2]


def test_what_must_hold_is_checked():
    over = dataclasses.replace(ROW, budget="50%", compiled_bytes=1100, predicted_bytes=900)
    refused = dataclasses.replace(ROW, budget="30%", compiled_bytes=None)
    found = targets.facts([ROW, over, refused], [])
    assert found[0] == "over the budget: gpt2 float32 cpu 50% (2 plans)"
    assert found[1] == "prediction more than 10 % off: gpt2 float32 cpu 50% (0.82)"
    assert "minimum is 0.002" in refused.cells()
    assert all(len(row.cells()) == len(targets._COLUMNS) for row in (ROW, over, refused))


@pytest.mark.slow
def test_the_child_plans(tmp_path):
    report = targets.run(Options(quick=True, models=("gpt2",), targets=("cpu",), results=tmp_path))
    assert len(report.rows) == 8
    assert report.facts[0].startswith("over the budget: none (")
    assert report.facts[2] == "missing: none"


def test_each_budget_of_a_session_compiles_as_often_as_a_plan_by_itself(monkeypatch):
    """The plain step counts, though it was compiled for the budget before."""
    monkeypatch.setattr(driver, "MOST_COMPILES", 3)
    session = Session(small("mlp"))
    for budget in ("80%", 1, 1):
        begun = len(session.judge.asked)
        with contextlib.suppress(BudgetError):
            session.plan(budget)
        assert len(set(session.judge.asked[begun:])) <= 3
    assert session.judge.compiles > 3
