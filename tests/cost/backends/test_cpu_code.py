"""Which steps XLA:CPU leaves out of a kernel for the code that they would be."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan import _compat
from remat_plan.cost.backend import GENERIC
from remat_plan.cost.backends.cpu import CPU
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate, region_cost
from remat_plan.cost.program import lower

X = jax.ShapeDtypeStruct((1024, 256), jnp.float32)
HARDWARE = hardware_for("cpu", "cpu")
compiled_too = pytest.mark.skipif(_compat.jaxlib_version() < (0, 12), reason="the rules were read off jaxlib 0.12")


def names(fun, model):
    book = FactBook(partial(region_cost, hardware=HARDWARE), model)
    return [k.step.primitive for k in fuse(lower(jax.make_jaxpr(fun)(X), book))]


def compiled_kernels(fun):
    text = jax.jit(fun).lower(X).compile().as_text()
    return len(re.findall(r" fusion\(", text[text.index("ENTRY") :]))


def halves(levels):
    """Products of the two halves of an array, of these again, and so on."""

    def fun(x):
        y = x * x
        for _ in range(levels):
            y = y[: len(y) // 2] * y[len(y) // 2 :]
        return y

    return fun


@compiled_too
@pytest.mark.parametrize(("levels", "kernels"), [(2, 1), (3, 1), (4, 2), (6, 2)])
def test_what_would_be_emitted_too_often_is_written(levels, kernels):
    """Four levels down there are sixteen copies of the square."""
    assert len(names(halves(levels), GENERIC)) == 1
    assert len(names(halves(levels), CPU)) == kernels == compiled_kernels(halves(levels))


def of_padded(fun):
    return lambda x: fun(jnp.pad(x * x, ((1, 1), (0, 0))))


@compiled_too
@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (of_padded(lambda p: (p[:1024] * 3 + 1) * 2), ["mul"]),
        (of_padded(lambda p: p[:1024] * p[2:] + 3), ["pad", "add"]),
        (of_padded(lambda p: p * (p + 2) - 3), ["pad", "sub"]),
        (lambda x: lax.pad(x * x, jnp.float32(0), ((-1, 0, 0), (0, -1, 0))) * 3 + 1, ["add"]),
    ],
    ids=["once", "at-two-places", "by-two", "that-takes-away"],
)
def test_a_pad_is_taken_in_where_it_is_read_once(fun, expected):
    assert names(fun, CPU) == expected
    assert len(expected) == compiled_kernels(fun)


def state_space(x, a, w):
    """A layer of a linear recurrence, as state-space models have it."""

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    u = x @ w
    decay = jnp.broadcast_to(jax.nn.sigmoid(a), u.shape)
    return (lax.associative_scan(combine, (decay, u), axis=1)[1] ** 2).mean()


@compiled_too
def test_an_associative_scan_holds_its_levels():
    """If all of it were in one kernel, the step would need 51 MB; by the compiler it needs 80."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 1024, 256), (256,), (256, 256))]
    step = jax.value_and_grad(state_space, argnums=(1, 2))
    found = jax.jit(step).lower(*args).compile().memory_analysis()
    compiled = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    assert evaluate(jax.make_jaxpr(step)(*args), HARDWARE).peak_bytes == pytest.approx(compiled, rel=0.12)
