"""What XLA:CPU makes of single operations."""

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
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate, region_cost
from remat_plan.cost.program import lower

HARDWARE = hardware_for("cpu", "cpu")
as_read = pytest.mark.skipif(_compat.jaxlib_version() < (0, 12), reason="the rules were read off jaxlib 0.12")


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def lowered(fun, *args, model=CPU):
    return lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=HARDWARE), model))


def conv(kernel, x, groups):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=groups)


@pytest.mark.parametrize(("groups", "channels", "crossed"), [(64, 64, 64), (8, 64, 1), (64, 128, 1)])
def test_the_kernel_gradient_of_a_depthwise_convolution_pairs_all_channels(groups, channels, crossed):
    """Of that of one in groups of several channels, to or from, XLA makes no more than the result."""
    kernel, x = struct(3, 3, 64 // groups, channels), struct(8, 16, 16, 64)
    gradient = jax.grad(lambda *args: jnp.sum(jnp.sin(conv(*args, groups))))
    size = 4 * 3 * 3 * (64 // groups) * channels
    for model, times in ((CPU, crossed), (GENERIC, 1)):
        program = lowered(gradient, kernel, x, model=model)
        of_kernel = [s for s in program.steps if s.primitive == "conv_general_dilated"][-1]
        made = [s for s in program.steps if s is of_kernel or set(of_kernel.writes) & set(s.reads)]
        assert {program.sizes[s.writes[0]] for s in made} == {times * size}
        assert program.sizes[program.outputs[0]] == size
    compiled = jax.jit(gradient).lower(kernel, x).compile().as_text()
    assert (crossed > 1) == bool(re.search(r" = f32\[64,3,3,64\]\S* (convolution|fusion)\(", compiled))


ROWS, NODES, WIDTH = 4096, 512, 64
EDGES = jax.ShapeDtypeStruct((ROWS,), jnp.int32)


def summed(rows, where):
    return jax.ops.segment_sum(rows, where, NODES)


def of_each(rows, where):
    return sum(jnp.sin(summed(jnp.exp(part), where)).sum() for part in rows)


def filled(nodes, where):
    """Rows that a sum in a library call reads, and a product."""
    rows = jnp.sin(nodes).at[where].get(mode="fill")
    return rows.sum(1), summed(jnp.tanh(rows), where)


def messages(rows, where):
    return summed(jnp.tanh(rows @ rows[:WIDTH]), where)


def network(nodes, where):
    nodes = jnp.sin(nodes)
    return jnp.sum(summed(jnp.tanh(nodes[where] * nodes[where[::-1]]), where) ** 2)


@as_read
@pytest.mark.parametrize(
    ("fun", "given"),
    [
        *[(of_each, [struct(ROWS, WIDTH)] * count) for count in (1, 2, 4)],
        (filled, struct(NODES, WIDTH)),
        (messages, struct(ROWS, WIDTH)),
        (jax.grad(network), struct(NODES, WIDTH)),
    ],
)
def test_rows_that_indices_fetch_and_scatter_are_predicted(fun, given):
    """Zeros that several scatters add to are copied, and what is next to a gather or a scatter shares no memory."""
    predicted = evaluate(jax.make_jaxpr(fun)(given, EDGES), HARDWARE).peak_bytes
    found = jax.jit(fun).lower(given, EDGES).compile().memory_analysis()
    compiled = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    assert predicted == pytest.approx(compiled, rel=0.02)
