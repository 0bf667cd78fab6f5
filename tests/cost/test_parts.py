"""Memory traffic of kernels that read parts of an array."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from remat_plan.cost.backends.gpu import GPU
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate, region_cost
from remat_plan.cost.program import lower

H100 = hardware_for("gpu:h100", "gpu")
WIDE = jax.ShapeDtypeStruct((512, 3072), jnp.float32)
BYTES = 512 * 3072 * 4


def unread(fun, *args):
    """Bytes that the kernels do not read, in order."""
    program = lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=H100), GPU))
    return [sum(kernel.unread.values()) for kernel in fuse(program)]


def test_each_part_of_a_split_is_read_once():
    assert unread(lambda x: [jnp.sin(part) for part in jnp.split(x, 3, axis=1)], WIDE) == [BYTES * 2 // 3] * 3


def test_what_is_computed_on_the_way_is_read_in_parts_too():
    assert unread(lambda x, y: (x + y)[:256], WIDE, WIDE) == [BYTES]


def test_parts_that_make_up_the_whole_leave_nothing():
    assert unread(lambda x: jnp.maximum(x[:256], x[256:]), WIDE) == [0]
    assert unread(lambda x: x[:256] + x[0], WIDE) == [BYTES - BYTES // 2 - BYTES // 512]


def test_rows_of_an_embedding_are_read_by_number():
    tokens = jax.ShapeDtypeStruct((64,), jnp.int32)
    assert sum(unread(lambda table, i: jnp.take(table, i, axis=0, mode="clip"), WIDE, tokens)) == BYTES * 448 // 512


def test_an_array_that_is_read_whole_too_is_counted_whole():
    assert unread(lambda x: x * x[:1].sum(), WIDE)[-1] == 0


def test_a_split_takes_the_seconds_of_a_copy():
    split = jax.make_jaxpr(lambda x: jnp.split(x, 3, axis=1))(WIDE)
    copy = jax.make_jaxpr(lambda x: x + 1)(WIDE)
    assert evaluate(split, H100).seconds == pytest.approx(evaluate(copy, H100).seconds, rel=0.05)


def test_a_buffer_behind_a_border_is_not_left_out_twice():
    """Values before and behind a barrier are one buffer: a kernel of two parts of it reads at least these."""

    def fun(x):
        behind = jax.lax.optimization_barrier(x)
        return x[:256] + behind[:256]

    seconds = evaluate(jax.make_jaxpr(fun)(WIDE), H100).seconds
    assert seconds >= (BYTES // 2 + BYTES // 2) / H100.bytes_per_second * 0.99
