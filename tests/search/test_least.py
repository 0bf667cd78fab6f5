"""The least that is named, and what a smaller budget gets: no name, no other budget, no other door has less for less."""

import functools

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.search import judge as judging
from remat_plan.search import known
from remat_plan.search.driver import MOST_COMPILES


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def pooled(params, x):
    """Two convolutions with mean-pooling: plain segments come out a quarter larger than predicted."""
    for w in params:
        x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x)
        x = x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).mean((2, 4))
    return (x**2).mean()


POOLED = [f32(3, 3, 1, 32), f32(3, 3, 32, 32)], f32(64, 28, 28, 1)
NAMES = ("memory", "each_block", "dots_no_batch", "log")


def least(call):
    with pytest.raises(rp.BudgetError) as told:
        call()
    return told.value.minimum_bytes


@functools.cache
def least_alone():
    """By a search that knows of no other one."""
    known.forget()
    return least(lambda: rp.plan(pooled, *POOLED, budget=1))


@pytest.mark.slow
def test_no_name_is_below_the_least_that_is_named():
    named = least_alone()
    known.forget()
    assert named <= min(rp.plan(pooled, *POOLED, strategy=name).compiled_peak_bytes for name in NAMES)
    known.forget()
    assert rp.plan(pooled, *POOLED, budget=named).compiled_peak_bytes <= named


def test_what_another_search_compiled_is_a_candidate(monkeypatch):
    """Though this one would not have come to it."""
    planned = functools.partial(rp.plan, pooled, *POOLED, never_split=True)
    wider = least(lambda: planned(budget=1))
    monkeypatch.setattr("remat_plan.search.candidates.Candidates.uniform", lambda self, request: ())
    assert least(lambda: planned(budget=1)) == wider
    assert planned(budget=wider).compiled_peak_bytes == wider
    known.forget()
    assert least(lambda: planned(budget=1)) > wider


@pytest.mark.slow
def test_a_step_reaches_the_least_of_what_is_marked_in_it():
    def step(params, x):
        loss, gradients = jax.value_and_grad(rp.remat(pooled))(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), loss

    assert least(lambda: rp.fit(step, *POOLED, budget=1)) <= 1.001 * least_alone()


def coder(params, x, key):
    """A small variational coder, whose peaks do not follow its levels."""
    w1, mean, spread, w2, w3 = params
    h = jax.nn.relu(x @ w1)
    z = h @ mean + jnp.exp(0.5 * (h @ spread)) * jax.random.normal(key, (len(x), mean.shape[1]))
    s = jax.nn.log_sigmoid(jax.nn.relu(z @ w2) @ w3)
    return -jnp.sum(x * s + (1.0 - x) * jnp.log(-jnp.expm1(s)), -1).mean() - jnp.mean(h @ mean)


CODER = (f32(784, 500), f32(500, 20), f32(500, 20), f32(20, 500), f32(500, 784)), f32(4096, 784), jax.random.key(0)


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(70, 58, 50), (50, 58, 70)], ids=["falling", "rising"])
def test_a_smaller_budget_gets_no_faster_plan(shares, monkeypatch):
    compiled = []
    original = judging.compile_memory
    monkeypatch.setattr(judging, "compile_memory", lambda *a, **k: compiled.append(1) or original(*a, **k))
    plans = {}
    for share in shares:
        compiled.clear()
        plans[share] = rp.plan(coder, *CODER, budget=f"{share}%")
        assert len(compiled) <= MOST_COMPILES
        assert plans[share].compiled_peak_bytes <= plans[share].budget_bytes
    assert plans[50].overhead >= plans[58].overhead >= plans[70].overhead
    named = least(lambda: rp.plan(coder, *CODER, budget=1))
    assert named <= min(row.compiled_peak_bytes for plan in plans.values() for row in plan.search.rows)
