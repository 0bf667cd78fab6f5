"""Kernels of the user's own, and functions with a derivative of their own, cost what they compute."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas

from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate
from remat_plan.planning.runs import op_seconds
from tests.helpers import traced

TPU = hardware_for("tpu:v5e:1x1", "tpu")
N, BLOCK = 4096, 512
A = jax.ShapeDtypeStruct((N, N), jnp.bfloat16)


def product(a, b, cost=None):
    """Blocks of a product, each of whole rows and columns, in on-chip memory."""

    def kernel(a, b, out):
        out[...] = jnp.dot(a[...], b[...], preferred_element_type=jnp.float32).astype(out.dtype)

    return pallas.pallas_call(
        kernel,
        grid=(N // BLOCK, N // BLOCK),
        in_specs=[pallas.BlockSpec((BLOCK, N), lambda i, _: (i, 0)), pallas.BlockSpec((N, BLOCK), lambda _, j: (0, j))],
        out_specs=pallas.BlockSpec((BLOCK, BLOCK), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((N, N), a.dtype),
        cost_estimate=cost,
    )(a, b)


@pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive")
@pytest.mark.parametrize("told", [False, True])
def test_a_kernel_takes_as_long_as_the_product_that_it_computes(told):
    cost = pallas.CostEstimate(flops=2 * N**3, transcendentals=0, bytes_accessed=0) if told else None
    own = evaluate(jax.make_jaxpr(lambda a, b: product(a, b, cost))(A, A), TPU)
    plain = evaluate(jax.make_jaxpr(lambda a, b: a @ b)(A, A), TPU)
    assert own.seconds == pytest.approx(plain.seconds, rel=0.05)
    assert own.matrix_flops == pytest.approx(plain.matrix_flops, rel=0.05)
    assert own.peak_bytes == plain.peak_bytes


def test_a_product_with_a_derivative_of_its_own_costs_no_more_than_another():
    @jax.custom_vjp
    def f(a, b):
        return a @ b

    f.defvjp(lambda a, b: (f(a, b), (a, b)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))
    program = traced(lambda a, b: jnp.sum(f(a, b) @ b), A, A).graph
    seconds = dict(zip([op.primitive for op in program.ops], op_seconds(program, TPU), strict=True))
    (own,) = (s for name, s in seconds.items() if name.startswith("custom_vjp"))
    assert own == pytest.approx(seconds["dot_general"], rel=0.05)
