"""The largest batches that fit: compiled, in order, and no larger one does."""

import functools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from benchmarks.models import small
from remat_plan.clock import store
from remat_plan.cost.hardware import hardware_for
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve

pytestmark = pytest.mark.usefixtures("quick_search")

WIDTH, UNIT = 64, 128


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def loss(params, x):
    for w in params:
        x = x + jnp.tanh(x @ w)
    return jnp.mean(x**2)


def step_with(wrap):
    def train_step(params, x):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(wrap(loss))(params, x))

    return train_step


def make_args(batch, layers=4):
    return [f32(WIDTH, WIDTH)] * layers, f32(batch, WIDTH)


@functools.cache
def found(budget="8MB", overheads=(0.3,), layers=4):
    make = functools.partial(make_args, layers=layers)
    made = {"multiple_of": UNIT, "donate_argnums": 0, "overheads": overheads}
    return rp.max_batch(step_with(rp.remat), make, budget=budget, **made)


@pytest.mark.slow
def test_every_batch_fits_and_is_as_large_as_its_limit_allows():
    sizes = found(overheads=(0.1, 0.3), layers=6)
    assert [row.limit for row in sizes.rows] == [0.0, 0.1, 0.3, None]
    assert sizes.compiles <= 25
    batches = [row.batch for row in sizes.rows]
    assert batches == sorted(batches)
    assert sizes.plain < sizes.largest
    for row in sizes.rows:
        assert row.batch % UNIT == 0
        assert row.peak_bytes <= sizes.budget_bytes
        assert row.limit is None or row.overhead <= row.limit


def test_the_plain_batch_is_the_largest():
    sizes = found()
    plain = step_with(lambda f: f)
    peaks = [
        compile_memory(plain, make_args(n), resolve(None), donate_argnums=(0,)).total_bytes
        for n in (sizes.plain, sizes.plain + UNIT)
    ]
    assert peaks[0] <= sizes.budget_bytes < peaks[1]


def test_fit_reaches_the_largest_batch():
    sizes = found()
    args = make_args(sizes.largest)
    report = rp.fit(step_with(rp.remat), *args, budget=sizes.budget_bytes, donate_argnums=0).report
    assert report.planned.peak_bytes <= sizes.budget_bytes < report.plain.peak_bytes


def test_few_compiles():
    assert found().compiles <= 20


@pytest.mark.slow
def test_a_step_that_needs_more_than_is_predicted():
    """In bfloat16 XLA:CPU needs a third more at the low end: batches that do not fit must lead to one that does."""
    model = small("gpt2", dtype=jnp.bfloat16)

    def train_step(params, batch):
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(rp.remat(model.loss))(params, batch))

    def make(batch):
        return model.params, jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype), model.batch)

    sizes = rp.max_batch(train_step, make, budget="4MB", donate_argnums=0, overheads=())
    assert sizes.largest >= 3 * sizes.plain > 0
    assert sizes.rows[-1].peak_bytes <= sizes.budget_bytes
    assert sizes.compiles <= 12


@pytest.mark.slow
def test_limits_on_overhead_go_by_measured_rates_where_asked(monkeypatch, tmp_path):
    """With arithmetic that takes hardly any time, recomputing saves memory traffic: no limit is in the way."""
    monkeypatch.setenv("REMAT_PLAN_CACHE", str(tmp_path))
    rates = replace(hardware_for("cpu", "cpu"), matrix_flops=1e16, vector_flops=1e16, measured=True, rates={"x": 1e16})
    asked = []
    monkeypatch.setattr(store, "calibrate", lambda target, table, say: asked.append(table) or rates)
    search = functools.partial(rp.max_batch, budget="2MB", multiple_of=UNIT, overheads=(0.0,))
    make = functools.partial(make_args, layers=4)
    table = search(step_with(rp.remat), make)
    assert not asked
    measured = search(step_with(rp.remat), make, cost="measured")
    assert len(asked) == 1
    assert table.rows[1].batch < measured.rows[1].batch
    assert measured.rows[1].overhead <= 0


@pytest.mark.slow
def test_nothing_fits():
    sizes = found("150kB", overheads=())
    assert sizes.plain == sizes.largest == 0
    assert "no more planned" in repr(sizes)


def test_sizes_are_shown():
    sizes = found()
    text = str(sizes)
    assert "none: the step as written" in text
    assert max(map(len, text.splitlines())) <= 110
    assert f"{sizes.plain} plain; " in repr(sizes)
    assert "<td" in sizes._repr_html_()
    assert "batch" in sizes.plot().get_ylabel()
    assert json.loads(sizes.to_json())["rows"][0]["batch"] == sizes.plain


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"budget": "50%"}, ValueError, "a share has no meaning"),
        ({"cost": "guessed"}, ValueError, "cost='guessed'"),
        ({"multiple_of": 0}, ValueError, "multiple_of=0: give a positive integer"),
        ({"make_args": 8}, TypeError, r"rp\.max_batch needs two functions"),
        ({"train_step": step_with(lambda f: f)}, ValueError, r"no gradient is taken through a marked function"),
    ],
)
def test_bad_arguments(changes, error, text):
    given = {"train_step": step_with(rp.remat), "make_args": make_args, "budget": "8MB", **changes}
    with pytest.raises(error, match=text):
        rp.max_batch(given.pop("train_step"), given.pop("make_args"), **given)
