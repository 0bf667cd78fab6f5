"""Which reductions of rows a kernel of XLA:GPU makes on its way, and which are kernels of their own."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from remat_plan.cost.backends.gpu import GPU
from remat_plan.cost.backends.gpu_rows import launched_with_readers
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate, region_cost
from remat_plan.cost.program import lower
from remat_plan.cost.rules import Kind

H100 = hardware_for("gpu:h100", "gpu")
X = jax.ShapeDtypeStruct((128, 128), jnp.float32)
BATCH = jax.ShapeDtypeStruct((8, 128, 128), jnp.float32)


def launched(fun, *args):
    """The primitives of the reductions that a reader makes, and of those that are kernels of their own."""
    program = lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=H100), GPU))
    kernels = fuse(program)
    found = {made for others in launched_with_readers(program, kernels).values() for made in others}
    reductions = [p for p, k in enumerate(kernels) if k.step.kind == Kind.REDUCE]
    assert found.issubset(reductions)
    names = [kernels[p].step.primitive for p in reductions]
    made = [name for p, name in zip(reductions, names, strict=True) if p in found]
    return made, [name for p, name in zip(reductions, names, strict=True) if p not in found]


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda x: x - x.mean(-1, keepdims=True), (1, 0)),
        (lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True)), (2, 0)),
        (lambda x: x / jnp.sqrt((x * x).mean(-1, keepdims=True)), (1, 0)),
        (jax.nn.softmax, (2, 0)),
        (lambda x: x - x.mean(0), (0, 1)),
        (lambda x: x / jnp.sqrt((x**2).sum()), (0, 1)),
        (lambda x: x.sum(-1), (0, 1)),
        (lambda x: x @ x - x.sum(-1, keepdims=True), (0, 1)),
    ],
    ids=["centred", "normalised", "root-mean-square", "softmax", "columns", "all", "alone", "of-others"],
)
def test_rows_are_reduced_by_the_kernel_that_reads_them_again(fun, expected):
    made, alone = launched(fun, X)
    assert (len(made), len(alone)) == expected


def test_a_sum_of_exponentials_that_the_gradient_reads_too_is_an_array():
    """``exp`` is not computed again for it; the largest of a row is, in each kernel."""

    def loss(q, v):
        return (jax.nn.softmax(2 * q) @ v).sum()

    made, alone = launched(jax.grad(loss, argnums=(0, 1)), BATCH, BATCH)
    assert "reduce_max" in made
    assert "reduce_max" not in alone
    assert "reduce_sum" in alone


def test_a_statistic_that_is_saved_for_a_segment_is_an_array():
    @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("largest"))
    def segment(x):
        largest = checkpoint_name(jax.lax.stop_gradient(x.max(-1, keepdims=True)), "largest")
        return jnp.tanh(x - largest)

    def loss(x):
        return (segment(2 * x) * 2).sum()

    assert launched(jax.grad(loss), X)[1].count("reduce_max") == 1
    unsaved = jax.checkpoint(lambda x: jnp.tanh(x - jax.lax.stop_gradient(x.max(-1, keepdims=True))))
    assert "reduce_max" not in launched(jax.grad(lambda x: (unsaved(2 * x) * 2).sum()), X)[1]


def test_a_result_is_an_array():
    def fun(x):
        mean = x.mean(-1, keepdims=True)
        return x - mean, mean

    assert launched(fun, X) == ([], ["reduce_sum"])


def test_a_normalisation_takes_the_seconds_of_one_read_and_one_write():
    large = jax.ShapeDtypeStruct((8192, 1024), jnp.float32)
    normal = jax.make_jaxpr(lambda x: x - x.mean(-1, keepdims=True))(large)
    copied = jax.make_jaxpr(lambda x: x + 1)(large)
    assert evaluate(normal, H100).seconds == pytest.approx(evaluate(copied, H100).seconds, rel=0.01)


@pytest.mark.parametrize(("activation", "reduced", "arrays"), [(jax.nn.sigmoid, False, 4), (jax.nn.softmax, True, 5)])
def test_a_kernel_that_reduces_rows_does_not_write_over_them(activation, reduced, arrays):
    """The gradient of a softmax is an array beside the two that it is made of."""

    def gradient(x, y):
        scores, cotangent = jnp.sort(x), jnp.sort(y)
        p = activation(scores)
        return (p * (cotangent - (p * cotangent).sum(-1, keepdims=True) if reduced else p * cotangent)) @ x

    assert evaluate(jax.make_jaxpr(gradient)(X, X), H100).peak_bytes // (4 * X.size) == arrays
