"""Loops that add up a scalar with their gradients: equal to the plain scan in every derivative, and nothing twice."""

import jax
import jax.numpy as jnp
import pytest

from remat_plan.loops.summed import summed_scan
from tests.helpers import assert_trees_close

STEPS = 5
W = jax.random.normal(jax.random.key(0), (6, 7))
X = jax.random.normal(jax.random.key(1), (STEPS, 4, 6))
COUNTS = jnp.arange(STEPS)


def part(w, x, count):
    return jnp.sum(jnp.sin(jnp.tanh(x @ w) @ w.T)) * (1 + count)


def step(consts, total, row):
    return total + part(*consts, *row)


def ours(w, x, start=0.5, reverse=False, unroll=1):
    return summed_scan(step, [w], jnp.float32(start), [x, COUNTS], STEPS, reverse, unroll)


def plain(w, x, start=0.5, reverse=False, unroll=1):
    def add(total, row):
        return step([w], total, row), None

    return jax.lax.scan(add, jnp.float32(start), (x, COUNTS), reverse=reverse, unroll=unroll)[0]


def derivatives(fn):
    """The value, both modes, second derivatives, a batch, a cotangent that is not one, by one argument alone."""
    shift, batch = (jnp.cos(W), jnp.cos(X)), jnp.stack([W, 2 * W])

    def slope(w, x):
        return sum(map(jnp.vdot, jax.grad(fn, (0, 1))(w, x), shift))

    return {
        "value": fn(W, X),
        "forward": jax.jvp(fn, (W, X), shift),
        "gradient": jax.grad(fn, (0, 1, 2))(W, X, 2.0),
        "second": jax.grad(slope, (0, 1))(W, X),
        "forward over reverse": jax.jvp(jax.grad(fn, (0, 1)), (W, X), shift),
        "batch": jax.vmap(jax.value_and_grad(fn), (0, None))(batch, X),
        "batch forward": jax.vmap(lambda w: jax.jvp(fn, (w, X), shift))(batch),
        "scaled": jax.grad(lambda w: fn(w, X) ** 2 + fn(w, 2 * X))(W),
        "in a checkpoint": jax.grad(jax.checkpoint(fn))(W, X),
        "in a loop": jax.grad(lambda w: jax.lax.scan(lambda c, x: (c + fn(w, x), None), 0.0, jnp.stack([X, -X]))[0])(W),
    }


def test_all_derivatives_are_those_of_the_plain_scan():
    found, wanted = jax.jit(lambda: derivatives(ours))(), jax.jit(lambda: derivatives(plain))()
    assert_trees_close(found, wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("how", [{"reverse": True}, {"unroll": 2}, {"start": -3.0}], ids=lambda how: next(iter(how)))
def test_as_the_plain_scan_runs(how):
    found, wanted = (jax.value_and_grad(lambda w, fn=fn: fn(w, X, **how))(W) for fn in (ours, plain))
    assert_trees_close(found, wanted, 1e-5, 1e-5)


def products(fn):
    return str(jax.make_jaxpr(fn)(W, X)).count("dot_general[")


def test_nothing_runs_twice_or_in_vain():
    """What no derivative is taken by has none made: the rows have none where only that by the weights is asked for."""
    assert products(ours) == products(plain) == 2
    both, one = (jax.value_and_grad(lambda w, x: part(w, x[0], 0), argnums) for argnums in ((0, 1), 0))
    assert products(jax.value_and_grad(ours, (0, 1))) == products(both)
    assert products(jax.value_and_grad(ours)) == products(one) < products(both)
    assert str(jax.make_jaxpr(jax.grad(ours))(W, X)).count(" scan[") == 1


@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.grad(jax.jit(f)), lambda f: jax.jit(jax.grad(f))])
def test_what_a_step_recomputes_is_recomputed(transform):
    """JAX would evaluate a loop of known values partially, and take ``jax.checkpoint`` away in it."""

    def lean(w, x):
        def step(consts, total, row):
            return total + jax.checkpoint(part)(*consts, *row)

        return summed_scan(step, [w], jnp.float32(0), [x, COUNTS], STEPS, False, 1)

    text = str(jax.make_jaxpr(transform(lean))(W, X))
    assert any(name in text.lower() for name in ("checkpoint", "remat"))
    assert_trees_close(transform(lean)(W, X), jax.grad(lambda w: plain(w, X, 0.0))(W), 1e-5, 1e-5)


def test_gradients_are_added_up_in_32_bits():
    w, x = jnp.ones((), jnp.bfloat16), jnp.full((1000,), 0.01, jnp.bfloat16)

    def loss(w):
        step = lambda consts, total, row: total + (consts[0] * row[0]).astype(jnp.float32)  # noqa: E731
        return summed_scan(step, [w], jnp.float32(0), [x], len(x), False, 1)

    gradient = jax.grad(loss)(w)
    assert gradient.dtype == jnp.bfloat16
    assert abs(float(gradient) - 10.0) < 0.05, "a sum in 16 bits ends where a part is below its rounding"


def test_complex_weights():
    def loss(w, loop):
        step = lambda consts, total, row: total + jnp.sum(jnp.abs(jnp.sin(row[0] @ consts[0])) ** 2)  # noqa: E731
        if loop is summed_scan:
            return summed_scan(step, [w], jnp.float32(0), [X], STEPS, False, 1)
        return jax.lax.scan(lambda total, x: (step([w], total, [x]), None), jnp.float32(0), X)[0]

    w = W * (1 + 0.5j)
    assert_trees_close(jax.grad(loss)(w, summed_scan), jax.grad(loss)(w, jax.lax.scan), 1e-4, 1e-4)
