"""A new strategy, made here and nowhere else: each block keeps its products."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import remat_plan as rp
from remat_plan.graph.schedule import saving

W = jnp.stack([jnp.eye(64) / 2] * 8)
X = jnp.linspace(-1, 1, 2048 * 64).reshape(2048, 64)


def layer(x, w):
    return x + jnp.tanh(jnp.sin(jnp.cos(x @ w)) @ w.T)


def unrolled(w, x):
    for i in range(8):
        x = layer(x, w[i])
    return jnp.sum(x**2)


def scanned(w, x):
    return jnp.sum(lax.scan(lambda x, w: (layer(x, w), None), x, w)[0] ** 2)


def products(task):
    blocks = itertools.pairwise(task.cuts.positions)
    made = [(s, e, [op.outputs[0] for op in task.graph.ops[s:e] if op.primitive == "dot_general"]) for s, e in blocks]
    return tuple(saving(*block) for block in made)


@pytest.fixture
def toy():
    rp.register_strategy("toy", products, source="this test", summary="keeps products", when_not_to_use="out of it")
    return rp.strategies()["toy"]


@pytest.mark.parametrize("fn", [unrolled, scanned])
def test_a_new_strategy_plans_layers_and_scans(toy, fn):
    plain = rp.plan(fn, W, X, strategy="everything", target="cpu", verify=False)
    plan = rp.plan(fn, W, X, strategy="toy", target="cpu", verify=False)
    assert plan.predicted_peak_bytes < 0.9 * plain.predicted_peak_bytes
    value, gradient = jax.jit(jax.value_and_grad(plan.apply(fn)))(W, X)
    wanted, right = jax.jit(jax.value_and_grad(fn))(W, X)
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    assert jnp.allclose(gradient, right, rtol=1e-3, atol=1e-3)


def test_the_table_shows_it_as_long_as_it_is_there(toy):
    assert toy in list(rp.strategies())
    assert "keeps products" in str(rp.strategies())
    with pytest.raises(ValueError, match="strategy 'toy' exists already"):
        rp.register_strategy("toy", products)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (5, TypeError, r"strategy='toy' returned 5 for a region of \d+ equations"),
        (None, TypeError, "returned None .* has to return a schedule, which is a tuple of Segment, or a list of"),
        ((), TypeError, r"returned \(\) for a region"),
        ([5], TypeError, r"returned \[5\] for a region"),
        ((saving(0, 1),), ValueError, r"does not fit its region of \d+ equations: segments end at equation 1"),
    ],
)
def test_what_a_strategy_must_return(returned, error, message):
    rp.register_strategy("toy", lambda task: returned)
    with pytest.raises(error, match=message):
        rp.plan(unrolled, W, X, strategy="toy", target="cpu", verify=False)
