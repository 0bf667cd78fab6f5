"""Which sums of arrays XLA writes, and which it computes again in every reader."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from remat_plan.cost.backends.cpu import CPU
from remat_plan.cost.backends.gpu import GPU
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import region_cost
from remat_plan.cost.program import lower

H100 = hardware_for("gpu:h100", "gpu")
X = jax.ShapeDtypeStruct((128, 128), jnp.float32)
ROW = jax.ShapeDtypeStruct((128,), jnp.float32)


def lowered(fun, *args, model=GPU):
    return lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=H100), model))


def kernels(fun, *args, model=GPU):
    return fuse(lowered(fun, *args, model=model))


def read_by(count):
    """A sum of two arrays that ``count`` kernels read."""
    readers = (jnp.sin, jnp.cos, jnp.tanh, jnp.exp, jnp.sqrt)[:count]

    def fun(x, y):
        total = x + y
        return [reader(total) for reader in readers]

    return fun


@pytest.mark.parametrize(("count", "is_written"), [(2, False), (3, False), (4, True), (5, True)])
def test_a_sum_that_four_kernels_read_is_written(count, is_written):
    """2 reads in each of r kernels, against 2 reads, a write and r reads: equal for r = 3."""
    made = [k.step.primitive for k in kernels(read_by(count), X, X)]
    assert ("add" in made) == is_written
    assert len(made) == count + is_written


def test_no_sum_is_written_where_copies_are_not_weighed():
    made = [k.step.primitive for k in kernels(read_by(5), X, X, model=GPU.without("weighs_copies_from_bytes"))]
    assert "add" not in made


def test_an_operand_that_is_broadcast_costs_nothing():
    fun = read_by(5)
    assert "add" not in [k.step.primitive for k in kernels(lambda x, y: fun(x, y[:, None]), X, ROW)]


def test_an_operand_that_is_read_anyway_costs_nothing():
    def fun(x, y):
        total = x + y
        return [f(total) * y for f in (jnp.sin, jnp.cos, jnp.tanh, jnp.exp, jnp.sqrt)]

    assert "add" not in [k.step.primitive for k in kernels(fun, X, X)]


def test_kernels_of_a_residual_stream_read_no_more_the_deeper_it_is():
    def block(x, w):
        normal = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x + normal @ w

    def loss(x, weights):
        for w in weights:
            x = block(x, w)
        return (x**2).sum()

    def large_reads(depth):
        program = lowered(jax.grad(loss, argnums=1), X, [X] * depth)
        made = [k for k in fuse(program) if k.step.primitive != "dot_general"]
        return max(sum(program.sizes[read] >= X.size * 4 for read in k.reads) for k in made)

    assert large_reads(12) == large_reads(4)


def gated(x, y):
    """A sum that a product reads, and so does what another kernel reads too."""
    total = x + y
    gate = jnp.tanh(total)
    return total * gate, gate


def gated_by_copies(x, y):
    total = x + y
    gate = 2 * total
    return total * gate, gate


def apart(x, y):
    total = x + y
    return 2 * total, jnp.tanh(total)


@pytest.mark.parametrize(
    ("fun", "is_written"), [(gated, True), (gated_by_copies, False), (apart, False), (lambda x, _: gated(x, 2), False)]
)
def test_what_is_no_part_of_a_reader_on_all_ways_to_it_is_written_on_a_cpu(fun, is_written):
    made = [k.step.primitive for k in kernels(fun, X, X, model=CPU)]
    assert ("add" in made) == is_written
    without = kernels(fun, X, X, model=CPU.without("fuses_on_all_paths"))
    assert len(without) == 2 == len(made) - is_written
    compiled = jax.jit(fun).lower(X, X).compile().as_text()
    assert len(re.findall(r" fusion\(", compiled[compiled.index("ENTRY") :])) == len(made)
