"""Strategies and budgets side by side: the same plans that each would be by itself."""

import json

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan import comparing
from remat_plan.search import known

pytestmark = pytest.mark.usefixtures("quick_search")

SHAPES = jax.ShapeDtypeStruct((32, 32), "float32"), jax.ShapeDtypeStruct((2048, 32), "float32")


def loss(w, x):
    for _ in range(6):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def what_is_planned(plan):
    """A plan without what is said of the search for it, which depends on what was compiled before."""
    return {key: value for key, value in json.loads(plan.to_json()).items() if key not in ("search", "notes", "digest")}


@pytest.mark.slow
@pytest.mark.parametrize("verify", [False, True])
def test_rows_are_the_plans_that_each_would_be_by_itself(verify):
    """All but how they were found: what was compiled for the other budgets is not compiled again."""
    found = rp.compare(loss, *SHAPES, budgets=["80%", "65%"], verify=verify)
    assert found.verified is verify
    for row, budget in zip(found.rows, ["80%", "65%"], strict=True):
        known.forget()
        alone = rp.plan(loss, *SHAPES, budget=budget, verify=verify)
        assert what_is_planned(row.plan) == what_is_planned(alone)
        assert verify or row.plan == alone
        assert (row.plan.compiled_overhead is not None) is verify
        assert row.peak_bytes == (alone.compiled_peak_bytes if verify else alone.predicted_peak_bytes)
        assert found.written_peak_bytes == alone.written_peak_bytes


def test_a_budget_that_cannot_be_met_is_a_row():
    (row,) = rp.compare(loss, *SHAPES, budgets=[1000], verify=False).rows
    assert row.plan is None
    assert row.peak_bytes is None
    with pytest.raises(rp.BudgetError) as caught:
        rp.plan(loss, *SHAPES, budget=1000, verify=False)
    assert (row.minimum_bytes, row.problem) == (caught.value.minimum_bytes, str(caught.value))


@pytest.mark.slow
def test_every_schedule_is_compiled_once(monkeypatch):
    from remat_plan.search import judge

    compiled = []

    def count(step, *args, **kwargs):
        compiled.append(step)
        return original(step, *args, **kwargs)

    original = judge.compile_memory
    monkeypatch.setattr(judge, "compile_memory", count)
    rp.compare(loss, *SHAPES, budgets=["70%"])
    once = len(compiled)
    known.forget()
    rp.compare(loss, *SHAPES, budgets=["70%", "70%", "70%"])
    assert len(compiled) - once < 2 * once  # a later row goes on where the first one stopped


def test_json_has_whole_plans():
    found = rp.compare(loss, *SHAPES, budgets=["70%", "1%"], verify=False)
    data = json.loads(found.to_json())
    assert (data["kind"], data["target"], data["verified"]) == ("comparison", "cpu", False)
    assert [row["compiled_overhead"] for row in data["rows"]] == [None, None]
    first, second = data["rows"]
    assert rp.Plan.from_json(json.dumps(first["plan"])) == found.rows[0].plan
    assert second["plan"] is None
    assert second["minimum_bytes"] > 0


def test_something_is_compared():
    for options in ({"budgets": []}, {"budgets": ["60%"], "strategies": ()}):
        with pytest.raises(ValueError, match="give at least one"):
            rp.compare(loss, *SHAPES, verify=False, **options)


@pytest.mark.parametrize("options", [{"budgets": ["x"]}, {"budgets": ["60%"], "strategies": ["x"]}])
def test_bad_input(options):
    with pytest.raises(ValueError, match="'x'"):
        rp.compare(loss, *SHAPES, verify=False, **options)


def test_strategies_with_one_schedule_are_planned_once_and_without_a_budget():
    found = rp.compare(loss, *SHAPES, budgets=["80%", "65%"], strategies=["auto", "each_block"], verify=False)
    assert [(row.strategy, row.budget) for row in found.rows] == [("auto", "80%"), ("auto", "65%"), ("each_block", "")]
    each = found.rows[2]
    alone = rp.plan(loss, *SHAPES, strategy="each_block", verify=False)
    assert each.plan.to_json() == alone.to_json()
    assert "each_block" in str(found)
    assert found._repr_html_().count("<circle") == 3


def test_a_strategy_that_cannot_plan_the_program_has_a_line_that_says_why():
    (row,) = rp.compare(loss, *SHAPES, budgets=["80%"], strategies=["collection"], verify=False).rows
    assert (row.plan, row.minimum_bytes) == (None, None)
    assert "checkpoint_name" in row.problem
    shown = rp.compare(loss, *SHAPES, budgets=["80%"], strategies=["mirror", "auto"], verify=False)
    assert "counts" in str(shown)
    assert "counts" in shown._repr_html_()


def test_all_plans_are_measured_in_turns_with_the_plain_step(monkeypatch):
    monkeypatch.setattr(comparing, "ROUNDS", 3)
    arrays = [jnp.ones(s.shape, s.dtype) / 32 for s in SHAPES]
    given = {"budgets": ["65%"], "strategies": ["auto", "each_block", "mirror"]}
    found = rp.compare(loss, *arrays, **given, measure=True)
    *planned, refused = found.rows
    assert refused.plan is None
    assert refused.measurement is None
    for row in planned:
        assert row.measurement.rounds == 3
        assert row.measurement.plain == planned[0].measurement.plain
        assert row.measurement.predicted_overhead == row.plan.overhead
    assert "measured " in str(found)
    assert "Measured: median of 3 rounds" in str(found)
    assert "measurement" in json.loads(found.to_json())["rows"][0]
    with pytest.raises(TypeError, match="shapes without values"):
        rp.compare(loss, *SHAPES, **given, measure=True)
    with pytest.raises(ValueError, match="gpu:h100, which is not attached"):
        rp.compare(loss, *arrays, **given, measure=True, target="gpu:h100")
