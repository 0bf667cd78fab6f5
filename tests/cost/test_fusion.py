"""Which steps become one kernel, on both kinds of backend."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from remat_plan.cost.backend import CPU, GENERIC
from remat_plan.cost.fusion import fuse
from remat_plan.cost.memory import region_transient_bytes
from remat_plan.cost.program import lower

X = jax.ShapeDtypeStruct((128, 128), jnp.float32)


def kernels(fun, *args, model=GENERIC):
    return fuse(lower(jax.make_jaxpr(fun)(*args), partial(region_transient_bytes, model=model), model))


def names(fun, *args, model=GENERIC):
    return [k.step.primitive for k in kernels(fun, *args, model=model)]


def test_a_chain_is_one_kernel():
    (kernel,) = kernels(lambda x: jnp.tanh(jnp.exp(x) + 1) * 2, X)
    assert kernel.step.primitive == "mul"
    assert kernel.vector_flops == (8 + 8 + 1 + 1) * X.size
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


def test_nothing_fuses_across_a_barrier():
    assert names(lambda x: lax.optimization_barrier(x + 1) * 2, X) == ["add", "barrier", "mul"]


def centred(x):
    """Subtract the mean, read by a reduction and by the result: the pattern of normalisations."""
    y = x - x.sum(0, keepdims=True) * 0.01
    return y * (y * y).sum(0, keepdims=True)


def test_reductions_fuse_what_they_read_on_accelerators():
    assert names(centred, X) == ["reduce_sum", "reduce_sum", "mul"]


def test_library_reductions_read_memory_on_cpu():
    """``y`` has a reader outside the library call that reduces it, so it is written first."""
    assert names(centred, X, model=CPU) == ["reduce_sum", "sub", "reduce_sum", "mul"]


def test_library_call_takes_in_what_nobody_else_reads():
    """Product, bias and square vanish into the reduction; the small bias is read as it is."""
    made = kernels(lambda x, b: (((x @ x) + b) ** 2).sum(0), X, jax.ShapeDtypeStruct((128,), jnp.float32), model=CPU)
    assert [k.step.primitive for k in made] == ["reduce_sum"]
    assert made[0].matrix_flops == 2 * 128**3
    assert made[0].library


def test_library_call_goes_on_through_a_single_reader():
    """Reduce, broadcast, subtract: the subtraction is the result of the call (a softmax begins so)."""
    (kernel,) = kernels(lambda x: jnp.exp(x - lax.reduce_max(x, (1,))[:, None]), X, model=CPU)
    assert kernel.library
    assert kernel.step.primitive == "exp"


def test_selections_end_library_calls():
    assert names(lambda x: jnp.where(x > 0, x, 0.0).sum(0), X, model=CPU) == ["select_n", "reduce_sum"]
