"""Lowering: what becomes one value, one step, one copy."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost.backend import CPU, GENERIC
from remat_plan.cost.facts import FactBook
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.layout import dot_operand_order
from remat_plan.cost.memory import region_cost
from remat_plan.cost.program import lower
from remat_plan.cost.rules import Kind

HARDWARE = hardware_for("cpu", "cpu")


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def program(fun, *args, model=GENERIC):
    return lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=HARDWARE), model))


def names(fun, *args, model=GENERIC):
    return [s.primitive for s in program(fun, *args, model=model).steps]


def test_aliases_are_one_value():
    made = program(lambda x: jnp.sin(jax.ad_checkpoint.checkpoint_name(x.reshape(4, 8), "x")), f32(32))
    (step,) = made.steps
    assert set(step.reads) == made.inputs


def test_calls_are_inlined_and_dead_steps_dropped():
    @jax.jit
    def fun(x):
        jnp.tanh(x)
        return jnp.sin(x)

    assert names(fun, f32(32)) == ["sin"]


def test_equal_steps_are_one_and_both_are_counted():
    made = program(lambda x: jnp.sin(x) + jnp.sin(x), f32(32))
    assert [(s.primitive, s.equations) for s in made.steps] == [("sin", 2), ("add", 1)]


def test_steps_of_other_parameters_are_not_merged():
    assert names(lambda x: (x[1:], x[:-1]), f32(32)).count("slice") == 2


def test_nothing_is_merged_across_a_barrier():
    def fun(x):
        y = lax.optimization_barrier(x)
        return jnp.sin(x) + jnp.sin(y)

    made = program(fun, f32(32))
    assert [s.primitive for s in made.steps].count("sin") == 2
    (barrier,) = [s for s in made.steps if s.kind == Kind.BARRIER]
    assert made.storage[barrier.writes[0]] == barrier.reads[0]  # one buffer, two values


def test_checkpoint_has_a_barrier_only_where_it_is_differentiated():
    block = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))
    assert "barrier" not in names(block, f32(32))
    assert "barrier" in names(jax.grad(lambda x: block(x).sum()), f32(32))


def test_barrier_lets_dead_values_go():
    made = program(lambda x, y: lax.optimization_barrier((x, y))[0] + 1, f32(32), f32(32))
    (barrier,) = [s for s in made.steps if s.kind == Kind.BARRIER]
    assert len(barrier.reads) == len(barrier.writes) == 1


def test_implicit_broadcasts_are_steps_of_their_own():
    made = program(lambda x, b: x * b, f32(64, 128), f32(64, 1))
    assert [s.primitive for s in made.steps] == ["broadcast_in_dim", "mul"]
    assert made.sizes[made.steps[0].writes[0]] == 64 * 128 * 4


@pytest.mark.parametrize(
    ("shape", "batch", "contract", "last", "order"),
    [
        ((8, 512, 768), (), (2,), True, None),  # x @ w
        ((768, 3072), (), (1,), False, None),  # w.T on the right: folded into the product
        ((8, 512, 768), (), (0, 1), True, (2, 0, 1)),  # dy.T @ x
        ((8, 512, 768), (), (0, 1), False, None),
        ((8, 512, 12, 64), (0, 2), (3,), True, (0, 2, 1, 3)),  # queries of attention
        ((8, 512, 12, 64), (0, 2), (3,), False, (0, 2, 3, 1)),  # keys
        ((8, 12, 512, 512), (0, 1), (2,), True, None),  # scores: batch leads, one dimension of each kind
        ((1, 512, 768), (), (0, 1), True, None),  # dimensions of one do not count
    ],
)
def test_dot_operand_order(shape, batch, contract, last, order):
    assert dot_operand_order(shape, batch, contract, last) == order


def test_gradient_of_convolution_copies_both_operands_on_cpu():
    def loss(w, x):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).sum()

    args = (f32(3, 3, 32, 32), f32(8, 16, 16, 32))
    assert names(jax.grad(loss), *args, model=CPU).count("layout_copy") == 3  # images, cotangent, result
    assert names(jax.grad(loss), *args, model=GENERIC).count("layout_copy") == 0


def test_pooling_gradient_keeps_indices_on_cpu():
    def loss(x):
        pooled = lax.reduce_window(x * x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return pooled.sum()

    made = program(jax.grad(loss), f32(4, 16, 16, 8), model=CPU)
    indices = [s for s in made.steps if s.primitive == "concatenate"]
    assert [made.sizes[s.writes[0]] for s in indices] == [4 * 4 * (4 * 8 * 8 * 8)]  # four int32 an output


def test_scatter_into_zeros_then_add_is_one_scatter():
    """A skip connection adds another gradient to the pooling's: no zeros, no addition."""

    def loss(x):
        x = x * x
        pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return pooled.sum() + (x**3).sum()

    steps = names(jax.grad(loss), f32(4, 16, 16, 8), model=CPU)
    assert steps.count("pool_scatter") == 1
    assert steps.count("add_any") == 1  # the one of ``x * x``
