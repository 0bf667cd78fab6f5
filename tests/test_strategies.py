"""Strategies by name as a user meets them: the table, plans without a budget, budgets, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from benchmarks.models import small
from remat_plan.cost.memory import evaluate
from remat_plan.planning.strategies.records import CHECKED, NEEDED
from tests.helpers import CPU, assert_trees_close, few

pytestmark = pytest.mark.usefixtures("quick_search")

LAYERS = 8
W = jnp.asarray(np.random.default_rng(0).normal(size=(LAYERS, 16, 16)) / 4, jnp.float32)
X = jnp.asarray(np.random.default_rng(1).normal(size=(2048, 16)), jnp.float32)
GIVEN = {"binomial": rp.Binomial(slots=2), "mirror": rp.Mirror(counts={"state": 0})}


def layer(w, x):
    return x + jnp.sin(jnp.tanh(x @ w) @ w)


def loss(w, x):
    for i in range(LAYERS):
        x = layer(w[i], checkpoint_name(x, "state"))
    return jnp.mean(x**2)


WANT = jax.grad(loss)(W, X)


@functools.cache
def plan_by(name, verify=False):
    row = rp.strategies()[name]
    more = {"budget": "70%"} if row.budget == NEEDED else {}
    return rp.plan(loss, W, X, strategy=GIVEN.get(name, name), verify=verify, **more)


def test_without_budget_and_slots_binomial_is_what_needs_least():
    alone = rp.plan(loss, W, X, strategy="binomial", verify=False)
    assert alone.predicted_peak_bytes <= plan_by("binomial").predicted_peak_bytes
    with pytest.raises(rp.BudgetError) as caught:
        rp.plan(loss, W, X, strategy="binomial", budget=1, verify=False)
    assert alone.predicted_peak_bytes == caught.value.minimum_bytes


def test_the_table():
    table = rp.strategies()
    names = [row.name for row in table]
    assert len(set(names)) == len(names) == len(table) == 16
    for row in table:
        assert row.name in table
        assert table[row.name] is row
        assert all((row.source, row.summary, row.when_not_to_use))
        assert not row.summary.endswith(".")
        assert not row.settings or isinstance(getattr(rp, row.settings), type)
    text = str(table)
    assert all(name in text for name in names)
    assert max(map(len, text.splitlines())) <= 110
    assert f"{len(table)} strategies: auto, chain" in repr(table)
    assert ">memory</td>" in table._repr_html_()
    assert "nobody" not in table


FEW = ("memory", "binomial", "budgeted", "each_block")
"""Of all others gradients are compared in ``planning/test_strategies_gradients.py``, plans here with ``slow``."""


@pytest.mark.parametrize("name", few([row.name for row in rp.strategies()], FEW))
def test_plans_of_all_strategies(name):
    plan = plan_by(name)
    row = rp.strategies()[name]
    assert plan.strategy == name
    assert 0 <= plan.lower_bound <= plan.overhead
    if row.budget != NEEDED:
        assert plan.budget == "none"
        assert plan.budget_bytes is None
        assert f"source: {row.source}" in plan.notes
    got = jax.jit(jax.grad(plan.apply(loss)))(W, X)
    assert_trees_close(got, WANT, 1e-4, 1e-5)


@pytest.mark.parametrize("name", few(["memory", "log", "binomial", "each_block", "collection", "mirror"], FEW))
def test_peaks_fall(name):
    plan = plan_by(name)
    assert plan.predicted_peak_bytes < 0.8 * plan.written_peak_bytes


def test_a_plan_without_a_budget_is_shown_and_stored():
    plan = plan_by("memory", verify=True)
    assert plan.compiled_peak_bytes < plan.written_peak_bytes
    text = str(plan)
    assert "asked for" not in text
    assert "strategy memory" in text
    assert ("at this peak" in text) == (plan.lower_bound > 0)
    assert "to spare" not in text
    assert "budget none" in repr(plan)
    assert "budget: none" in plan._repr_html_()
    again = rp.Plan.from_json(plan.to_json())
    assert again == plan
    assert_trees_close(jax.grad(again.apply(loss))(W, X), WANT, 1e-4, 1e-5)
    pytest.importorskip("matplotlib").use("Agg")
    labels = [line.get_label() for line in plan.plot().get_lines()]
    assert not any("budget" in str(label) for label in labels)


def test_planning_again_gives_the_same_plan():
    for name in ("memory", "binomial", "log"):
        again = rp.plan(loss, W, X, strategy=GIVEN.get(name, name), verify=False)
        assert again.to_json() == plan_by(name).to_json()


@pytest.mark.parametrize(
    "name", ["budgeted", "memory", *(pytest.param(n, marks=pytest.mark.slow) for n in ("binomial", "chain", "milp"))]
)
def test_a_search_finds_the_fastest_that_fits(name):
    verify = name == "memory"
    roomy, tight = (rp.plan(loss, W, X, strategy=name, budget=b, verify=verify) for b in ("75%", "60%"))
    for plan in (roomy, tight):
        assert (plan.compiled_peak_bytes or plan.predicted_peak_bytes) <= plan.budget_bytes
        assert plan.budget in ("75%", "60%")
    assert roomy.overhead <= tight.overhead + 1e-9
    assert rp.plan(loss, W, X, strategy=name, budget="2GB", verify=False).is_identity


@pytest.mark.parametrize("name", few(["each_block", "budgeted", "milp", "binomial"], ["each_block", "budgeted"]))
def test_a_budget_that_a_strategy_cannot_meet(name):
    with pytest.raises(rp.BudgetError, match="below the lowest predicted peak found") as caught:
        rp.plan(loss, W, X, strategy=name, budget="300kB", verify=False)
    least = caught.value.minimum_bytes
    plan = rp.plan(loss, W, X, strategy=name, budget=least, verify=False)
    assert plan.predicted_peak_bytes <= least
    if rp.strategies()[name].budget == CHECKED:
        assert "another strategy ('auto' searches for one that fits)" in str(caught.value)


def test_one_schedule_is_taken_as_it_is_and_checked():
    free = plan_by("each_block")
    given = rp.plan(loss, W, X, strategy="each_block", budget="2GB", verify=False)
    assert given.schedule == free.schedule
    assert not given.is_identity


@pytest.mark.parametrize("name", ["auto", "chain", "milp"])
def test_strategies_that_need_a_budget(name):
    with pytest.raises(ValueError, match=f"strategy='{name}' needs a budget.*use strategy='memory'"):
        rp.plan(loss, W, X, strategy=name)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"strategy": "magic"}, ValueError, "strategy='magic' is unknown. Choose one of 'auto', 'chain', 'memory'"),
        ({"strategy": 3}, TypeError, "strategy=3: give a name of rp.strategies()"),
        ({"strategy": "memry"}, ValueError, "Did you mean 'memory'"),
        ({"strategy": rp.Collection(["a"])}, ValueError, "names: no value is named 'a'. Names .*: 'state'"),
        ({"strategy": "mirror"}, ValueError, "strategy='mirror' needs counts"),
        ({"strategy": rp.Mirror({"a": 1})}, ValueError, "counts: no value is named 'a'"),
        ({"strategy": "memory", "must_save": ["a"]}, ValueError, "must_save: no value is named 'a'"),
        ({"strategy": "memory", "must_save": "state"}, TypeError, "must_save='state': give a list of names"),
        (
            {"strategy": "memory", "never_recompute": ["psum"]},
            ValueError,
            "the program has no primitive 'psum'. It has:",
        ),
        ({"budget": "2GB", "must_save": ["a"]}, ValueError, "must_save: no value is named 'a'"),
        (
            {"strategy": "collection", "must_recompute": ["state"]},
            ValueError,
            "must be saved, but must_recompute forbids it",
        ),
    ],
)
def test_what_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        rp.plan(loss, W, X, **options)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: rp.Binomial(slots=0), ValueError, "slots=0: give an integer of at least 1"),
        (lambda: rp.Binomial(slots=True), TypeError, "slots=True: give an integer of at least 1"),
        (lambda: rp.Collection(names="state"), TypeError, r"names='state': give a list of names, \['state'\]"),
        (lambda: rp.Mirror(counts={"state": -1}), ValueError, "counts: -1 is not a count"),
        (lambda: rp.Mirror(counts=["state"]), TypeError, "give a mapping of names to numbers"),
    ],
)
def test_settings_that_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_an_explicit_schedule_is_a_strategy():
    plan = plan_by("memory")
    again = rp.plan(loss, W, X, strategy=plan.schedule, verify=False)
    assert again.schedule == plan.schedule
    assert again.strategy == "explicit"
    with pytest.raises(ValueError, match="this schedule does not fit this program, which has .* equations"):
        rp.plan(lambda w, x: jnp.sum(layer(w[0], x)), W, X, strategy=plan.schedule, verify=False)


def test_collection_without_names_in_the_program():
    with pytest.raises(ValueError, match="saves named values, and this program has none"):
        rp.plan(lambda w, x: jnp.sum(layer(w[0], x)), W, X, strategy="collection")


def test_milp_refuses_large_programs():
    def deep(w, x):
        for _ in range(400):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    with pytest.raises(ValueError, match=r"up to 600 equations; this program has 80\d\. Use strategy='auto'"):
        rp.plan(deep, W[0], X, strategy="milp", budget="50%", verify=False)


def test_binomial_refuses_what_jax_cannot_trace():
    def deep(w, x):
        for _ in range(200):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    with pytest.raises(ValueError, match="slots=1: .* nested .* deep.*Give slots=2 or more"):
        rp.plan(deep, W[0], X, strategy=rp.Binomial(slots=1), verify=False)


def test_a_program_with_nothing_to_do():
    plan = rp.plan(lambda v: v, jnp.float32(1.0), strategy="memory", verify=False)
    assert plan.is_identity


def test_constraints_work_with_budgets():
    plan = rp.plan(loss, W, X, budget="75%", must_save=["state"], never_recompute=["tanh"], verify=False)
    assert plan.predicted_peak_bytes <= plan.budget_bytes
    assert_trees_close(jax.grad(plan.apply(loss))(W, X), WANT, 1e-4, 1e-5)
    with pytest.raises(rp.BudgetError) as caught:
        rp.plan(loss, W, X, budget="300kB", verify=False, never_recompute=["tanh"])
    with pytest.raises(rp.BudgetError) as free:
        rp.plan(loss, W, X, budget="300kB", verify=False)
    assert caught.value.minimum_bytes > free.value.minimum_bytes


def test_what_must_be_recomputed_is_so_with_any_budget():
    plan = rp.plan(loss, W, X, budget="2GB", verify=False, must_recompute=["state"])
    assert not plan.is_identity
    assert plan.overhead > 0
    assert_trees_close(jax.grad(plan.apply(loss))(W, X), WANT, 1e-4, 1e-5)


@pytest.mark.parametrize(("name", "policy"), [("dots", "dots_saveable"), ("each_block", "nothing_saveable")])
def test_stock_strategies_are_what_one_writes_by_hand(name, policy):
    """The FLOPs and peak of a checkpoint on each layer (all but the last: ours leaves that as it is).

    Borders of blocks may be beside element-wise work that the hand has inside, up to 1 % of the FLOPs.
    """
    wrapped = rp.checkpoint(layer, policy=getattr(jax.checkpoint_policies, policy))

    def by_hand(w, x):
        for i in range(LAYERS):
            x = (wrapped if i < LAYERS - 1 else layer)(w[i], x)
        return jnp.mean(x**2)

    def unnamed(w, x):
        for i in range(LAYERS):
            x = layer(w[i], x)
        return jnp.mean(x**2)

    timeline = evaluate(jax.make_jaxpr(jax.value_and_grad(by_hand))(W, X), CPU)
    plan = rp.plan(unnamed, W, X, strategy=name, verify=False)
    assert 0.989 <= plan.step_flops / timeline.flops <= 1.006
    assert plan.predicted_peak_bytes == pytest.approx(timeline.peak_bytes, rel=0.1)


@pytest.mark.parametrize("name", few(["unet", "densenet", "cyclegan"], ["cyclegan"]))
def test_memory_needs_no_articulation_points(name):
    model = small(name)
    plan = rp.plan(model.loss, model.params, model.batch, strategy="memory", verify=False)
    assert plan.predicted_peak_bytes < 0.8 * plan.written_peak_bytes
    assert plan.step_flops < 1.4 * plan.plain_flops, "one more forward pass at most"


def test_remat_takes_strategies():
    planned = rp.remat(loss, strategy="memory", verify=False)
    assert_trees_close(jax.jit(jax.grad(planned))(W, X), WANT, 1e-4, 1e-5)
