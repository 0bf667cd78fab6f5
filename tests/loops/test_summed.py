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


def step(consts, carry, row):
    return [carry[0] + part(*consts, *row)]


def ours(w, x, start=0.5, reverse=False, unroll=1):
    return summed_scan(step, 0, [w], [jnp.float32(start)], [x, COUNTS], length=STEPS, reverse=reverse, unroll=unroll)[0]


def plain(w, x, start=0.5, reverse=False, unroll=1):
    def add(total, row):
        return step([w], [total], row)[0], None

    return jax.lax.scan(add, jnp.float32(start), (x, COUNTS), reverse=reverse, unroll=unroll)[0]


def beside(consts, carry, row):
    """A sum beside other things: what was seen, a running maximum, the rows, whether they are large."""
    seen, total, most = carry
    w, (x, count) = consts[0], row
    made = jnp.tanh(x @ w)
    large = jnp.max(made)
    return [seen + (large > 0.5), total + part(w, x, count), jnp.maximum(most, large), made @ w.T, made > 0]


START = [jnp.int32(2), jnp.float32(0.5), jnp.float32(-1.0)]


def ours_beside(w, x):
    return summed_scan(beside, 1, [w], START, [x, COUNTS])


def plain_beside(w, x):
    def add(carry, row):
        made = beside([w], carry, row)
        return made[:3], made[3:]

    carry, rows = jax.lax.scan(add, START, (x, COUNTS))
    return [*carry, *rows]


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


def derivatives_beside(fn):
    """Of the sum alone, as others are mostly: then nothing else is differentiated. And of all that there is."""
    shift, batch = (jnp.cos(W), jnp.cos(X)), jnp.stack([W, 2 * W])

    def alone(w, x):
        made = fn(w, x)
        return made[1], made

    def all_of_it(w, x):
        _, total, most, rows, _ = fn(w, x)
        return total**2 + jnp.sin(most) + jnp.sum(jnp.cos(rows))

    def slope(w, x):
        return jnp.vdot(jax.grad(all_of_it)(w, x), shift[0])

    return {
        "value": fn(W, X),
        "gradient": jax.value_and_grad(alone, (0, 1), has_aux=True)(W, X),
        "of all": jax.value_and_grad(all_of_it, (0, 1))(W, X),
        "forward": jax.jvp(all_of_it, (W, X), shift),
        "second": jax.grad(slope, (0, 1))(W, X),
        "batch": jax.vmap(jax.value_and_grad(alone, has_aux=True), (0, None))(batch, X),
    }


def test_what_else_steps_make_is_right_too():
    found, wanted = (
        jax.jit(lambda: derivatives_beside(ours_beside))(),
        jax.jit(lambda: derivatives_beside(plain_beside))(),
    )
    assert_trees_close(found, wanted, 1e-4, 1e-4)


def test_what_else_steps_make_costs_nothing_where_nobody_asks():
    """One loop, in which nothing runs twice; nothing is kept for the derivatives of the rest."""

    def compiled(fn):
        def loss(w, x):
            _, total, _, *rows = fn(w, x)
            return total, rows

        step = jax.value_and_grad(loss, has_aux=True)
        return jax.jit(step).lower(W, jnp.zeros((STEPS, 512, 6))).compile()

    ours, theirs = (compiled(fn) for fn in (ours_beside, plain_beside))
    assert ours.as_text().count(" while(") == 1
    assert ours.memory_analysis().temp_size_in_bytes < 0.5 * theirs.memory_analysis().temp_size_in_bytes


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
        def step(consts, carry, row):
            return [carry[0] + jax.checkpoint(part)(*consts, *row)]

        return summed_scan(step, 0, [w], [jnp.float32(0)], [x, COUNTS])[0]

    text = str(jax.make_jaxpr(transform(lean))(W, X))
    assert any(name in text.lower() for name in ("checkpoint", "remat"))
    assert_trees_close(transform(lean)(W, X), jax.grad(lambda w: plain(w, X, 0.0))(W), 1e-5, 1e-5)


def test_gradients_are_added_up_in_32_bits():
    w, x = jnp.ones((), jnp.bfloat16), jnp.full((1000,), 0.01, jnp.bfloat16)

    def loss(w):
        step = lambda consts, carry, row: [carry[0] + (consts[0] * row[0]).astype(jnp.float32)]  # noqa: E731
        return summed_scan(step, 0, [w], [jnp.float32(0)], [x])[0]

    gradient = jax.grad(loss)(w)
    assert gradient.dtype == jnp.bfloat16
    assert abs(float(gradient) - 10.0) < 0.05, "a sum in 16 bits ends where a part is below its rounding"


def test_complex_weights():
    def loss(w, loop):
        step = lambda consts, carry, row: [carry[0] + jnp.sum(jnp.abs(jnp.sin(row[0] @ consts[0])) ** 2)]  # noqa: E731
        if loop is summed_scan:
            return summed_scan(step, 0, [w], [jnp.float32(0)], [X])[0]
        return jax.lax.scan(lambda total, x: (step([w], [total], [x])[0], None), jnp.float32(0), X)[0]

    w = W * (1 + 0.5j)
    assert_trees_close(jax.grad(loss)(w, summed_scan), jax.grad(loss)(w, jax.lax.scan), 1e-4, 1e-4)
