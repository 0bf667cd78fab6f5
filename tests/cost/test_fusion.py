"""Which steps become one kernel, on both kinds of backend."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost.backend import GENERIC
from remat_plan.cost.backends.cpu import CPU
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import region_cost
from remat_plan.cost.program import lower
from remat_plan.cost.work import is_product

HARDWARE = hardware_for("cpu", "cpu")

X = jax.ShapeDtypeStruct((128, 128), jnp.float32)
W = jax.ShapeDtypeStruct((64, 64), jnp.float32)


def kernels(fun, *args, model=GENERIC):
    return fuse(lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=HARDWARE), model)))


def names(fun, *args, model=GENERIC):
    return [k.step.primitive for k in kernels(fun, *args, model=model)]


def matrix_flops(kernel):
    return sum(flops for work, flops in kernel.work.items() if is_product(work))


def test_a_chain_is_one_kernel():
    (kernel,) = kernels(lambda x: jnp.tanh(jnp.exp(x) + 1) * 2, X)
    assert kernel.step.primitive == "mul"
    assert sum(kernel.work.values()) == (8 + 8 + 1 + 1) * X.size
    assert len(kernel.reads) == 1


def test_a_product_reads_and_writes_memory():
    assert names(lambda x: jnp.sin(x + 1) @ x, X) == ["sin", "dot_general"]


def test_a_cheap_value_is_computed_again_in_every_reader():
    assert names(lambda x: (jnp.sin(x + 1), jnp.cos(x + 1)), X) == ["sin", "cos"]


def test_a_dear_value_with_several_readers_is_written_once():
    assert names(lambda x: (lambda y: (y + 1, y * 2))(jnp.exp(x)), X) == ["exp", "add", "mul"]


def test_a_dear_value_whose_readers_are_one_kernel_is_not_written():
    assert names(lambda x: (lambda y: (y + 1) * y)(jnp.exp(x)), X) == ["mul"]


def test_outputs_are_written():
    assert names(lambda x: (x + 1, (x + 1) * 2), X)[0] == "add"


def test_a_cheap_value_read_by_a_product_too_is_written_for_the_product_only():
    """The other reader computes it again: it reads ``x``, not the sum."""
    made = kernels(lambda x: ((x + 1) @ x, jnp.sin(x + 1)), X)
    assert [k.step.primitive for k in made] == ["add", "dot_general", "sin"]
    assert made[2].reads == made[0].reads


@pytest.mark.parametrize(
    ("product", "shape", "again"),
    [
        (lambda y, w: y @ w, (64, 64), False),
        (lambda y, w: y @ w, (4, 16, 64), True),
        (lambda y, w: y.reshape(64, 64) @ w, (4, 16, 64), True),
        (lambda y, w: jnp.einsum("abc,cd->abd", y.reshape(4, 16, 64), w), (64, 64), False),
        (lambda y, w: jnp.einsum("abc,cd->abd", w.reshape(4, 16, 64), y), (64, 64), False),
    ],
    ids=["matrix", "three", "to_matrix", "there_and_back", "the_other_operand"],
)
def test_a_value_reshaped_for_a_product_is_computed_again(product, shape, again):
    """Else its other reader reads what was written for the product; XLA:CPU's HLO shows the same."""
    operands = jax.ShapeDtypeStruct(shape, jnp.float32)
    made = kernels(lambda a, b, w: (product(a * b, w), jnp.sin(a * b)), operands, operands, W, model=CPU)
    (sine,) = [k for k in made if k.step.primitive == "sin"]
    assert len(sine.reads) == (2 if again else 1)


def test_a_value_that_a_library_call_reshapes_itself_is_written():
    """A product that a reduction takes in brings the reshape of its operand with it; XLA:CPU's HLO shows the same."""
    operands = jax.ShapeDtypeStruct((4, 16, 64), jnp.float32)

    def fun(a, b, w, c):
        y = a * b
        return ((y @ w) * c).sum(-1), jnp.sin(y)

    made = kernels(fun, operands, operands, W, operands, model=CPU)
    assert [k.step.primitive for k in made] == ["mul", "reduce_sum", "sin"]
    assert made[2].reads == made[0].step.writes


def test_nothing_fuses_across_a_barrier():
    assert names(lambda x: lax.optimization_barrier(x + 1) * 2, X) == ["add", "barrier", "mul"]


def centred(x):
    """A value read by a reduction and by something else: the pattern of normalisations."""
    y = x - x[0]
    return (y * y).sum(0), jnp.where(y > 0, y, 0.0)


def test_reductions_fuse_what_they_read_on_accelerators():
    assert names(centred, X) == ["reduce_sum", "select_n"]


def test_library_reductions_read_memory_on_cpu():
    """``y`` has a reader outside the library call that sums it, so it is written for that call."""
    made = kernels(centred, X, model=CPU)
    assert [k.step.primitive for k in made] == ["sub", "reduce_sum", "select_n"]
    difference, total, selection = made
    assert difference.step.writes[0] in total.reads
    assert difference.step.writes[0] not in selection.reads  # computed again from x


def test_library_call_takes_in_what_nobody_else_reads():
    """Product, bias and square vanish into the reduction; the small bias is read as it is."""
    made = kernels(lambda x, b: (((x @ x) + b) ** 2).sum(0), X, jax.ShapeDtypeStruct((128,), jnp.float32), model=CPU)
    assert [k.step.primitive for k in made] == ["reduce_sum"]
    assert matrix_flops(made[0]) == 2 * 128**3
    assert made[0].library


def test_library_call_takes_in_products_of_products():
    """Three products and a sum are one call: compiled, this needs no temporary memory at all."""
    (kernel,) = kernels(lambda x: (x @ x @ x @ x).sum(), X, model=CPU)
    assert matrix_flops(kernel) == 3 * 2 * 128**3


def test_library_call_goes_on_through_a_single_reader():
    """Reduce, broadcast, subtract: the subtraction is the result of the call (a softmax begins so)."""
    (kernel,) = kernels(lambda x: jnp.exp(x - lax.reduce_max(x, (1,))[:, None]), X, model=CPU)
    assert kernel.library
    assert kernel.step.primitive == "exp"


def test_selections_end_library_calls():
    assert names(lambda x: jnp.where(x > 0, x, 0.0).sum(0), X, model=CPU) == ["select_n", "reduce_sum"]


def test_a_result_is_not_written_over_what_is_read_out_of_order():
    """A sum of rows reads all of a row before the row is written; a subtraction does not."""
    (kernel,) = kernels(lambda x, y: (x - y) - (x * 2).sum(1)[:, None], X, X, model=CPU)
    x, y = sorted(kernel.reads)
    assert x in kernel.keeps
    assert y not in kernel.keeps


def test_a_dear_value_is_not_computed_inside_a_broadcast():
    vector = jax.ShapeDtypeStruct((128,), jnp.float32)
    assert names(lambda v, x: x * jnp.exp(v)[:, None], vector, X) == ["exp", "mul"]
