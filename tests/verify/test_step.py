"""The gradient step of a function that is no loss is its VJP."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remat_plan.verify.step import GradientStep, PullbackStep
from tests.helpers import assert_trees_close


def fn(w, n, x):
    y = jnp.tanh(x @ w) * n
    return [y, jnp.argmax(y), jnp.sum(y, axis=0)]


W = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)), jnp.float32)
X = jnp.asarray(np.random.default_rng(1).normal(size=(8, 4)), jnp.float32)


def test_outputs_and_gradients_are_those_of_vjp():
    step = jax.jit(PullbackStep(fn, (True, False, True)))
    cotangents = [jnp.ones((8, 4)), jnp.arange(4.0)]
    floats, others, gradients = step(W, 2, X, *cotangents)
    (y, total), pull = jax.vjp(lambda w, x: tuple(fn(w, 2, x)[::2]), W, X)
    assert_trees_close(floats, [y, total])
    assert_trees_close(others, [jnp.argmax(y)])
    assert_trees_close(gradients, list(pull(tuple(cotangents))))


def test_a_missing_cotangent_is_not_made_up():
    with pytest.raises(ValueError, match="Expected|expected"):
        PullbackStep(fn, (True, False, True))(W, 2, X, jnp.ones((8, 4)))


def test_a_loss_has_the_cotangent_one():
    step = GradientStep(lambda w, x: [jnp.sum(fn(w, 1.0, x)[0]), 3], (True, False))
    loss, others, (gradient,) = step(W, X)
    want = jax.value_and_grad(lambda w: jnp.sum(fn(w, 1.0, X)[0]))(W)
    assert_trees_close((loss, gradient), want)
    assert others == [3]
