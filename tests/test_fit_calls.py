"""Calls of a fitted step: what they compile, arguments by name, what changed between two of them."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_plan as rp
from tests.compiles import counting_compiles
from tests.helpers import assert_trees_close

pytestmark = pytest.mark.usefixtures("quick_search")

WIDTH, ROWS = 32, 1024


def loss(params, x):
    for w in params:
        x = x + jnp.tanh(x @ w)
    return jnp.mean(x**2)


def step_with(wrap):
    def train_step(params, count, x, scale=0.1, *, clip=None, train=True):
        value, grads = jax.value_and_grad(wrap(loss))(params, x)
        grads = grads if clip is None else [jnp.clip(g, -clip, clip) for g in grads]
        scale = scale if train else 0.0
        return [w - scale * g for w, g in zip(params, grads, strict=True)], count + 1, value

    return train_step


def start(rows=ROWS):
    return [jnp.eye(WIDTH) / n for n in range(4, 8)], jnp.zeros((), jnp.int32), jnp.ones((rows, WIDTH))


def fit(*args, budget="70%", **options):
    return rp.fit(step_with(rp.remat), *args, budget=budget, **options)


def plain(*args, **kwargs):
    return step_with(lambda f: f)(*args, **kwargs)


@functools.cache
def fitted():
    return fit(*start())


@pytest.fixture
def said(caplog):
    """What is logged of fitting again."""
    caplog.set_level(logging.INFO, "remat_plan")
    return lambda: [r.getMessage() for r in caplog.records if r.getMessage().startswith("fitting again")]


def test_a_loop_compiles_nothing():
    state, want = start(), start()
    step = fit(*state, donate_argnums=0)
    with counting_compiles() as compiles:
        for _ in range(3):
            *new, _ = step(*state)
            state = (*new, state[2])
        assert compiles() == 0
    for _ in range(3):
        *new, _ = plain(*want)
        want = (*new, want[2])
    assert_trees_close(state, want, 1e-4)


def test_shapes_alone_are_compiled_once_when_called():
    step = fit(*jax.eval_shape(start))
    with counting_compiles() as compiles:
        args = start()
        before = compiles()
        step(*args)
        step(*args)
        assert compiles() - before == 1


def test_values_that_are_no_arrays_of_jax():
    params, _, x = start()
    args = params, 0, np.asarray(x, np.float64)
    step = fit(*args, kwargs={"scale": 0.5})
    with counting_compiles() as compiles:
        new, count, _ = step(*args, scale=0.25)
        step(new, count, args[2], 0.5)
        assert compiles() == 0
    assert_trees_close(new, plain(*args, 0.25)[0], 1e-4)


@pytest.mark.parametrize(
    "static",
    [pytest.param({"static_argnames": ("train", "scale")}, marks=pytest.mark.slow), {"static_argnames": "train"}],
)
def test_arguments_by_name(static, said):
    params, count, x = start()
    step = rp.fit(
        step_with(rp.remat), params, count, kwargs={"x": x, "train": True}, budget="70%", donate_argnums=0, **static
    )
    assert step.report.planned.peak_bytes <= step.report.budget_bytes
    copy = functools.partial(jax.tree.map, jnp.copy, params)
    ways = [
        ((copy(), count), {"x": x, "train": True}),
        ((), {"train": True, "x": x, "count": count, "params": copy()}),
        ((copy(), count, x), {"train": True}),
    ]
    with counting_compiles() as compiles:
        got = [step(*args, **kwargs) for args, kwargs in ways]
        assert compiles() == 0
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves([ways[0][0][0], ways[1][1]["params"]]))
    assert said() == []
    for result in got:
        assert_trees_close(result, plain(params, count, x), 1e-4)
    frozen = step(copy(), count, x, train=False)
    assert_trees_close(frozen[0], params)
    assert said() == ["fitting again: train changed from True to False"]


@pytest.mark.slow
def test_static_positions_by_name_and_left_out():
    params, count, x = start()
    step = fit(params, count, x, static_argnums=3)
    want = plain(params, count, x, 0.5)
    for got in (step(params, count, x, 0.5), step(params, count, x, scale=0.5), step(params, count, scale=0.5, x=x)):
        assert_trees_close(got, want, 1e-4)
    assert_trees_close(step(params, count, x), plain(params, count, x), 1e-4)


@pytest.mark.slow
def test_a_keyword_that_only_one_call_has():
    params, count, x = start()
    got = fitted()(params, count, x, clip=1e-3)
    assert_trees_close(got, plain(params, count, x, clip=1e-3), 1e-4)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"static_argnames": "trian"}, ValueError, "static_argnames: the step has no parameter 'trian'"),
        ({"static_argnums": 4}, ValueError, r"static_argnums=\(4,\): the function gets 3 positional"),
        ({"kwargs": 3}, TypeError, "kwargs=3: give a mapping"),
        ({"kwargs": {"other": 3}}, TypeError, "other"),
        (
            {"static_argnames": "params", "donate_argnums": 0},
            ValueError,
            "argument 0 is in both static_argnums and don",
        ),
    ],
)
def test_what_no_parameter_has(options, error, text):
    with pytest.raises(error, match=text):
        fit(*start(), **options)


@pytest.mark.slow
def test_a_weak_type_is_the_same_schedule(said):
    params, count, x = start()
    step = fit(params, count, x)
    with counting_compiles() as compiles:
        got = step(params, 0, x)
        assert compiles() == 1
        step(params, 0, x)
        assert compiles() == 1
    assert said() == ["fitting again: count changed from int32[] to int32[] (weak type)"]
    assert_trees_close(got, plain(params, 0, x), 1e-4)


def test_other_shapes_are_searched_and_told(said):
    step = fit(*start())
    params, count, x = start(64)
    assert_trees_close(step(params, count, x), plain(params, count, x), 1e-4)
    assert said() == [f"fitting again: x changed from float32[{ROWS},32] to float32[64,32]"]
    step([*params, jnp.eye(WIDTH)], count, x)
    assert said()[1:] == ["fitting again: the structure of the arguments changed"]
    with pytest.raises(rp.BudgetError) as caught:
        step(*start(64 * ROWS))
    assert "fitted before and is being fitted again: the structure of the arguments" in caught.value.__notes__[0]


@pytest.mark.slow
def test_schedules_that_no_longer_fit_are_searched_anew(said):
    """What is outside of the marks grew: the schedules are checked against the budget, and others are found."""

    def train_step(params, x, pool):
        value, grads = jax.value_and_grad(rp.remat(loss))(params, x)
        return [w - g for w, g in zip(params, grads, strict=True)], value, jnp.mean(pool)

    params, _, x = start()
    step = rp.fit(train_step, params, x, jnp.ones((8, WIDTH)), budget="80%")
    first = step.report
    grown = int(first.budget_bytes - first.planned.peak_bytes) // 4 + 2000
    step(params, x, jnp.ones(grown))
    before, after = (fits[0].found for fits in step._found.values())
    assert after.trial.schedules != before.trial.schedules
    assert after.report.planned.peak_bytes <= first.budget_bytes
    assert len(said()) == 1


@pytest.mark.slow
def test_other_precision_is_another_program():
    args = start()
    step = fit(*args)
    with jax.default_matmul_precision("highest"):
        assert "HIGHEST" in step.lower(*args).as_text()


def test_inside_another_trace():
    params, count, x = start()
    step = fitted()

    def epoch(params, count, xs):
        def one(carry, x):
            *carry, value = step(*carry, x=x)
            return tuple(carry), value

        return jax.lax.scan(one, (params, count), xs)

    got = jax.jit(epoch, compiler_options=rp.compiler_options() or None)(params, count, jnp.stack([x, 2 * x]))
    want = plain(*plain(params, count, x)[:2], 2 * x)
    assert_trees_close(got[0], want[:2], 1e-4)
    with counting_compiles() as compiles:
        step(params, count, x)
        assert compiles() == 0
    assert "remat" in str(jax.make_jaxpr(step)(params, count, x))
