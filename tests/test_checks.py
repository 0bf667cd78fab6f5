"""Checks that JAX makes of a program on request: ``checkify`` and the search for random keys that are used twice."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify

import remat_plan as rp
from tests.helpers import assert_trees_close, few

pytestmark = pytest.mark.usefixtures("quick_search")

W, X = jnp.eye(16) / 2, jnp.ones((256, 16))


def checked(w, x):
    for _ in range(6):
        x = jnp.tanh(x @ w)
        checkify.check(jnp.all(x < 0.9), "x must be small")
    return jnp.sum(x**2)


def checked_in_a_loop(w, x):
    def step(x, _):
        x = jnp.tanh(x @ w)
        checkify.check(jnp.all(x < 0.9), "x must be small")
        return x, None

    return jnp.sum(jax.lax.scan(step, x, None, length=6)[0] ** 2)


BUDGET, STRATEGY = {"budget": "80%"}, {"strategy": "each_block", "verify": False}
CASES = [(options, loss) for options in (BUDGET, STRATEGY) for loss in (checked, checked_in_a_loop)]


@pytest.mark.parametrize(
    ("options", "loss"),
    few(CASES, [(BUDGET, checked_in_a_loop), (STRATEGY, checked)]),
    ids=lambda case: case.__name__ if callable(case) else str(case),
)
def test_checks_are_reported_from_planned_functions(loss, options):
    """Of a loop that is differentiated too, where JAX itself reports nothing: what runs the checks is planned around."""

    def run(fn, w):
        return checkify.checkify(jax.jit(fn), errors=checkify.user_checks)(w, X)

    planned = rp.remat(loss, **options)
    for of in (lambda fn: fn, jax.value_and_grad):
        error, got = run(of(planned), W)
        assert error.get() is None
        assert_trees_close(got, run(of(loss), W)[1], 2e-4, 1e-6)
        message = str(run(of(planned), W * 100)[0].get())
        assert "x must be small" in message
        assert str(run(of(loss), W * 100)[0].get()) in (message, "None")
    assert not any(plan.is_identity for plan in planned.plans.values())


def noisy(w, x, key):
    for k in jax.random.split(key, 4):
        x = jnp.tanh(x @ w) * jax.random.bernoulli(k, 0.9, x.shape)
    return jnp.sum(x)


def noisy_loop(w, x, key):
    def step(x, i):
        return jnp.tanh(x @ w) * jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, x.shape), None

    return jnp.sum(jax.lax.scan(step, x, jnp.arange(9))[0])


def careless(w, x, key):
    return noisy(w, x, key) + noisy(w, x, key)


@pytest.mark.parametrize("options", few([{"budget": "80%"}, {}, {"strategy": "log"}], [{"budget": "80%"}]), ids=str)
def test_keys_are_checked_in_the_function_as_it_is(options):
    key = jax.random.key(0)
    for loss in (noisy, noisy_loop):
        want = jax.grad(loss)(W, X, key)
        with jax.debug_key_reuse(True), pytest.warns(UserWarning, match="jax_debug_key_reuse is on"):
            got = jax.jit(jax.grad(rp.remat(loss, **options)))(W, X, key)
        assert_trees_close(got, want, 2e-4, 1e-6)
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        jax.jit(jax.grad(rp.remat(careless, **options)))(W, X, jax.random.key(1))


@pytest.mark.slow
def test_plans_are_made_while_keys_are_checked():
    with jax.debug_key_reuse(True):
        assert not rp.plan(noisy_loop, W, X, jax.random.key(0), budget="60%").is_identity
        assert jax.grad(rp.remat(keyless, budget="95%"))(W, X).shape == W.shape


def keyless(w, x):
    """No keys: nothing is to be said."""
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return jnp.sum(x)
