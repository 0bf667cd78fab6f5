"""Equal equations are one value before planning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_plan as rp
from remat_plan.graph.flatten import flatten
from remat_plan.graph.merge import identity, merge_equal
from tests.helpers import assert_trees_close, check_schedules, traced

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


def primitives(fn, *args):
    return [e.eqn.primitive.name for e in merge_equal(flatten(jax.make_jaxpr(fn)(*args))).eqns]


def normalised(x):
    return (x - jnp.mean(x, -1, keepdims=True)) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5)


def test_a_normalisation_centres_its_input_once():
    ops = traced(lambda x: jnp.sum(normalised(x) ** 3), X).graph.ops
    assert len([op for op in ops if op.primitive == "sub" and op.differentiated]) == 1


def test_what_differs_stays_apart():
    assert primitives(lambda x: jnp.sin(x) + jnp.cos(x), X) == ["sin", "cos", "add"]
    assert primitives(lambda x: (x + 1.0) * (x + 2.0), X) == ["add", "add", "mul"]
    assert primitives(lambda x: jnp.sum(x, 0)[0] + jnp.sum(x, 1)[0], X).count("reduce_sum") == 2
    assert primitives(lambda x, y: jnp.sin(x) + jnp.sin(y), X, X) == ["sin", "sin", "add"]
    assert primitives(lambda x: x * 0.0 + x * -0.0, X) == ["mul", "mul", "add"]


def test_nothing_is_merged_across_products_and_calls():
    def branch(x):
        return jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)

    w = jnp.ones((4, 4))
    assert primitives(lambda x, w: jnp.sin(jnp.sin(x) @ w) + jnp.sin(x) @ w, X, w).count("sin") == 3
    assert primitives(lambda x: jnp.exp(x) + branch(x) + jnp.exp(x), X).count("exp") == 2


def test_chains_merge_and_outputs_follow():
    flat = merge_equal(flatten(jax.make_jaxpr(lambda x: (jnp.exp(jnp.sin(x)), jnp.exp(jnp.sin(x))))(X)))
    assert len(flat.eqns) == 2
    assert flat.outputs[0] == flat.outputs[1]


def test_effects_barriers_and_names_are_respected():
    def loud(x):
        jax.debug.print("{}", x[0, 0])
        jax.debug.print("{}", x[0, 0])
        return jnp.sum(x)

    assert primitives(loud, X).count("debug_print") + primitives(loud, X).count("debug_callback") == 2
    barrier = jax.lax.optimization_barrier
    assert primitives(lambda x: barrier(x) + barrier(x), X).count("optimization_barrier") == 2
    drawn = primitives(lambda a: jax.lax.rng_uniform(a, 1.0, (3,)) - jax.lax.rng_uniform(a, 1.0, (3,)), 0.0)
    assert drawn.count("rng_uniform") == 2
    name = jax.ad_checkpoint.checkpoint_name
    assert primitives(lambda x: name(x, "a") + name(x, "b"), X).count("name") == 2


@pytest.mark.slow
def test_random_numbers_of_one_key_are_one_and_of_two_keys_are_two():
    def noisy(x, key, other):
        return jnp.sum(x * jax.random.normal(key, x.shape) * jax.random.normal(other, x.shape))

    one, two = jax.random.split(jax.random.key(0))
    plan = rp.plan(noisy, X, one, two, budget="100%", target="cpu")
    assert np.array_equal(plan.apply(noisy)(X, one, two), noisy(X, one, two))
    assert np.array_equal(plan.apply(noisy)(X, one, one), noisy(X, one, one))


@pytest.mark.parametrize("out", [pytest.param(lambda y: jnp.sum(y), marks=pytest.mark.slow), lambda y: jnp.sum(y * y)])
def test_gradients_are_those_of_the_function(out):
    def loss(x, w):
        for _ in range(3):
            x = jnp.tanh(normalised(x) @ w) + normalised(x)
        return out(x)

    check_schedules(loss, X, jnp.eye(4) * 0.9, argnums=(0, 1), rtol=2e-4, atol=2e-5)


def test_keys_tell_parameters_apart_by_type_and_sign():
    eqn = jax.make_jaxpr(lambda x: jnp.sum(x, 0))(X).eqns[0]
    assert identity(eqn) == identity(jax.make_jaxpr(lambda x: jnp.sum(x, 0))(X).eqns[0])
    assert identity(eqn.replace(params={"p": 1})) != identity(eqn.replace(params={"p": True}))
    assert identity(eqn.replace(params={"p": 0.0})) != identity(eqn.replace(params={"p": -0.0}))
    assert identity(eqn.replace(params={"p": lambda: None})) is None


def test_analysis_still_tells_what_plain_jax_keeps():
    """JAX knows nothing of equal values: it keeps what both equations need."""

    def loss(x):
        return jnp.sum(jnp.sin(x) * jnp.sin(x))

    kept = [r for r in rp.analyze(loss, X).residuals if r.saved and r.why == "internal"]
    assert len(kept) == 2
    assert_trees_close(jax.grad(loss)(X), jax.grad(rp.remat(loss, budget="100%", target="cpu"))(X), 1e-6, 1e-6)
