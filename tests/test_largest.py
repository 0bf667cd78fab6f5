"""The largest batches, sequences and models that fit: compiled, in order, and no larger one does."""

import functools
import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import remat_plan as rp
from benchmarks.models import small
from remat_plan.clock import store
from remat_plan.cost.hardware import hardware_for
from remat_plan.training.sizes import where_met
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
    batches = [row.size for row in sizes.rows]
    assert batches == sorted(batches)
    assert sizes.plain < sizes.largest
    for row in sizes.rows:
        assert row.size % UNIT == 0
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
    assert table.rows[1].size < measured.rows[1].size
    assert measured.rows[1].overhead <= 0


@pytest.mark.slow
def test_nothing_fits():
    sizes = found("150kB", overheads=())
    assert sizes.plain == sizes.largest == 0
    assert "no more planned" in repr(sizes)


def test_scores_grow_as_the_square_of_a_sequence():
    def attend(w, x):
        for _ in range(4):
            x = x + jax.nn.softmax(x @ w @ x.T) @ x
        return jnp.mean(x**2)

    def train_step(w, x):
        return w - jax.grad(rp.mark(attend))(w, x)

    def of_length(length):
        return f32(WIDTH, WIDTH), f32(length, WIDTH)

    found = rp.largest(
        train_step, of_length, budget="16MB", dimension="sequence", multiple_of=UNIT, overheads=(), donate_argnums=0
    )
    assert found.compiles <= 12
    assert found.rows[-1].peak_bytes <= found.budget_bytes
    assert found.largest > 1.5 * found.plain
    longer = compile_memory(train_step, of_length(found.plain + UNIT), resolve(None), donate_argnums=(0,))
    assert found.rows[0].peak_bytes <= found.budget_bytes < longer.total_bytes
    assert str(found).startswith("Largest sequence of train_step for cpu, in multiples of 128")


@pytest.mark.slow
def test_a_model_may_have_more_layers():
    def of_depth(layers):
        return make_args(4 * UNIT, layers)

    found = rp.largest(step_with(rp.remat), of_depth, budget="4MB", dimension="layers", multiple_of=2, overheads=())
    assert 0 < found.plain < found.largest
    assert found.dimension == "layers"


@given(st.lists(st.integers(1, 10**4), min_size=3, max_size=6, unique=True), st.floats(1e-3, 10), st.floats(0, 1e5))
def test_a_parabola_is_met_where_it_meets_the_budget(sizes, bend, slope):
    peaks = {n: 1e6 + slope * n + bend * n * n for n in sizes}
    goal = 5000
    assert where_met(peaks, 1e6 + slope * goal + bend * goal**2) == pytest.approx(goal, rel=1e-3)


def test_peaks_that_do_not_grow_are_never_met():
    assert where_met({1: 5.0, 2: 5.0, 4: 4.0}, 10.0) == math.inf


def test_small_sizes_of_one_peak_say_little_of_large_ones():
    """The peak of a step on few rows is that of the optimizer's update, whatever their number."""

    def peak(size):
        return max(2.36e6 + 256 * size, 2e6 + 11_600 * size)

    peaks = {size: peak(size) for size in (8, 16)}
    for _ in range(3):
        size = int(where_met(peaks, 16e6))
        peaks[size] = peak(size)
    assert 0.95 * 16e6 < peaks[size] <= 16e6


def test_sizes_are_shown():
    sizes = found()
    text = str(sizes)
    assert "none: the step as written" in text
    assert max(map(len, text.splitlines())) <= 110
    assert f"{sizes.plain} plain; " in repr(sizes)
    assert "<td" in sizes._repr_html_()
    assert "batch" in sizes.plot().get_ylabel()
    assert json.loads(sizes.to_json())["rows"][0]["size"] == sizes.plain


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"budget": "50%"}, ValueError, "a share has no meaning"),
        ({"cost": "guessed"}, ValueError, "cost='guessed'"),
        ({"dimension": ""}, ValueError, "dimension='': say what the size is called"),
        ({"multiple_of": 0}, ValueError, "multiple_of=0: give an integer of at least 1"),
        ({"overheads": 0.1}, ValueError, "overheads=0.1: give a list of shares"),
        ({"overheads": ["10%"]}, ValueError, "give a list of shares"),
        ({"overheads": [-0.1]}, ValueError, "give a list of shares"),
        ({"make_args": 8}, TypeError, "make_args must be a function, not int"),
        ({"make_args": lambda n: make_args(n)[1]}, TypeError, r"make_args\(8\) returned .*return a tuple"),
        ({"make_args": lambda _: make_args(64)}, ValueError, "arguments of the same shapes with size 8 and 16"),
        ({"train_step": step_with(lambda f: f)}, ValueError, r"no gradient is taken through a marked function"),
    ],
)
def test_bad_arguments(changes, error, text):
    given = {"train_step": step_with(rp.remat), "make_args": make_args, "budget": "8MB", **changes}
    with pytest.raises(error, match=text):
        rp.largest(given.pop("train_step"), given.pop("make_args"), **given)


def test_what_a_batch_does_not_take_is_told_of_max_batch():
    with pytest.raises(TypeError, match=r"'dimension' is not an argument of rp\.max_batch. It takes multiple_of"):
        rp.max_batch(step_with(rp.mark), make_args, budget="8MB", dimension="rows")
