"""What a planned program gives to the user's own rules, and how it keeps mutable arrays."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from tests.helpers import assert_trees_close

W = [jnp.full((64, 64), 0.01 + i / 100) for i in range(6)]
X = jnp.ones((1024, 64))


@jax.custom_vjp
def timed(x, times):
    return x * times.sum()


def _pull(times, g):
    """The times are indexed by what is traced: they have to be an array of JAX."""
    return g * jax.lax.fori_loop(0, 3, lambda i, total: total + times[i], 0.0), jnp.zeros_like(times)


timed.defvjp(lambda x, times: (timed(x, times), times), _pull)


def with_times(w, x):
    for k in w:
        x = x + jnp.tanh(x @ k)
    return jnp.mean(timed(x, jnp.array([0.0, 0.5, 1.0])) ** 2)


@pytest.mark.parametrize("how", [{"budget": "100%"}, {"budget": "60%"}, {"strategy": "memory"}])
def test_rules_of_the_users_are_given_arrays_for_constants(how):
    plan = rp.plan(with_times, W, X, **how)
    for planned in (plan.apply(with_times), rp.remat(with_times, **how)):
        found = jax.jit(jax.value_and_grad(planned))(W, X)
        assert_trees_close(found, jax.jit(jax.value_and_grad(with_times))(W, X))


def counting(w, x):
    """Each layer adds to a mutable array."""
    total = jax.new_ref(jnp.zeros(()))
    for k in w:
        x = x + jnp.tanh(x @ k)
        total[...] += jax.lax.stop_gradient(x.mean())
    return jnp.mean(x**2) + jax.lax.stop_gradient(total[...])


@pytest.mark.parametrize("share", [100, 90, 80, 70])
def test_what_touches_a_mutable_array_runs_once(share):
    plan = rp.plan(counting, W, X, budget=f"{share}%")
    assert_trees_close(jax.jit(jax.value_and_grad(plan.apply(counting)))(W, X), jax.value_and_grad(counting)(W, X))
