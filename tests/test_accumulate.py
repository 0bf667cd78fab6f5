"""Gradient accumulation: the values of the whole batch, in less memory."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve
from tests.helpers import assert_trees_close

W, X = jax.random.normal(jax.random.key(0), (16, 16)), jax.random.normal(jax.random.key(1), (24, 16))


def loss(w, x, y):
    hidden = jnp.tanh(x @ w)
    return jnp.mean((hidden - y) ** 2), {"hidden": jnp.mean(hidden), "count": jnp.int32(x.shape[0])}


@pytest.mark.parametrize("microbatches", [1, 2, 8, 24])
def test_values_are_those_of_the_whole_batch(microbatches):
    whole = jax.value_and_grad(loss, has_aux=True)
    assert_trees_close(rp.accumulate(whole, microbatches)(W, X, 2 * X), whole(W, X, 2 * X), 1e-5)


def test_gradients_alone_and_second_derivatives():
    def alone(w, x):
        return jnp.mean(jnp.sin(x @ w))

    assert_trees_close(rp.accumulate(jax.grad(alone), 4)(W, X), jax.grad(alone)(W, X), 1e-5)

    def of_gradient(gradient):
        return jax.grad(lambda w: jnp.sum(gradient(w, X) ** 2))(W)

    assert_trees_close(of_gradient(rp.accumulate(jax.grad(alone), 4)), of_gradient(jax.grad(alone)), 1e-4, 1e-5)


def test_it_needs_less_memory():
    args = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((8192, 64), "float32")

    def deep(w, x):
        for _ in range(6):
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    steps = [jax.grad(deep), rp.accumulate(jax.grad(deep), 8)]
    plain, sliced = (compile_memory(step, args, resolve(None)).temp_bytes for step in steps)
    # One eighth of what is saved, and the batch once more: its slices lie one after another.
    assert sliced < plain / 8 + 2.5 * 8192 * 64 * 4


def test_state_of_modules_goes_from_slice_to_slice():
    nnx = pytest.importorskip("flax.nnx")

    def make():
        return nnx.BatchNorm(16, rngs=nnx.Rngs(0))

    def norm_loss(model, x):
        return jnp.mean(model(x) ** 3)

    model, by_hand = make(), make()
    rp.accumulate(nnx.value_and_grad(norm_loss), 2)(model, X)
    for part in (X[::2], X[1::2]):
        norm_loss(by_hand, part)
    assert_trees_close(*(jax.tree.leaves(nnx.state(m)) for m in (model, by_hand)), 1e-5)


def test_a_batch_may_be_given_by_name():
    whole = jax.value_and_grad(loss, has_aux=True)
    assert_trees_close(rp.accumulate(whole, 2)(W, X, y=2 * X), whole(W, X, 2 * X), 1e-5)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: rp.accumulate(3, 4), TypeError, r"rp\.accumulate needs a function, not int"),
        (lambda: rp.accumulate(loss, 2.0), TypeError, r"microbatches=2\.0: give an integer of at least 1"),
        (lambda: rp.accumulate(loss, True), TypeError, "microbatches=True: give an integer of at least 1"),
        (lambda: rp.accumulate(loss, 0), ValueError, "microbatches=0: give an integer of at least 1"),
        (
            lambda: rp.accumulate(loss, 5)(W, X, X),
            ValueError,
            r"microbatches=5 does not divide the first axis of argument 1, of shape \(24, 16\)",
        ),
        (
            lambda: rp.accumulate(loss, 2)(W, 3.0, X),
            ValueError,
            r"microbatches=2: argument 1, of shape \(\), has no axis of examples\. .* one for each example",
        ),
        (
            lambda: rp.accumulate(loss, 4)(W, X, W),
            ValueError,
            r"microbatches=4: argument 1, of shape \(24, 16\), and argument 2, of shape \(16, 16\), have different "
            "numbers of examples .* Put what all microbatches share with the parameters",
        ),
    ],
)
def test_what_is_wrong(make, error, text):
    with pytest.raises(error, match=text):
        make()
