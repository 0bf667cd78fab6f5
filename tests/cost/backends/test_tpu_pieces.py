"""How XLA:TPU convolves few images."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost.backends.tpu import TPU, tiled_bytes
from remat_plan.cost.backends.tpu_pieces import kernel_gradients_last, order_of_pieces
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import region_cost
from remat_plan.cost.program import lower

V5E = hardware_for("tpu:v5e:1x1", "tpu")
NUMBERS = ("NHWC", "HWIO", "NHWC")


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def convolve(images, kernel, dilation=1):
    return lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", rhs_dilation=(dilation, dilation), dimension_numbers=NUMBERS
    )


def kernels(fun, *args, backend=TPU):
    """What kernels are named for, with the bytes of what they write, in the order in which they run."""
    program = lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=V5E), backend))
    ordered = kernel_gradients_last(fuse(program), program.sizes) if backend is TPU else fuse(program)
    return [(k.step.primitive, sum(program.sizes[w] for w in k.step.writes)) for k in ordered]


IN_PIECES = 64 * 16 * 9 * 128 * 4
"""Two images of 64 x 64 with 64 features: 16 pieces of 64 x 9, with 128 lanes."""
WHOLE = 2 * 64 * 64 * 128 * 4


def test_pieces_have_a_column_more_and_are_so_many_images():
    assert tiled_bytes(f32(2, 64, 64, 64), order_of_pieces(0, 3, 2)) == IN_PIECES
    assert tiled_bytes(f32(4, 16, 16, 16), order_of_pieces(0, 3, 2)) == 16 * 32 * 3 * 16 * 8 * 4 // 2


@pytest.mark.parametrize(
    ("images", "width", "kernel", "dilation", "cut"),
    [
        *((2, 64, 3, 1, True), (7, 64, 3, 1, True), (8, 64, 3, 1, False), (2, 14, 3, 1, True), (2, 12, 3, 1, False)),
        *((2, 15, 1, 1, False), (2, 16, 1, 1, True), (2, 20, 5, 1, False), (2, 24, 5, 1, True), (2, 20, 3, 2, False)),
    ],
)
def test_few_images_of_enough_columns_are_cut(images, width, kernel, dilation, cut):
    """Which are, was seen in compiled modules."""
    x, w = f32(images, width, width, 16), f32(kernel, kernel, 16, 16)
    convolved = partial(convolve, dilation=dilation)
    sizes = dict(kernels(lambda x, w: jnp.tanh(convolved(jnp.tanh(convolved(x, w)), w)), x, w))
    assert (sizes["layout_copy"] == tiled_bytes(x, order_of_pieces(0, 3, 2))) == cut


@pytest.mark.parametrize(
    ("fun", "size"),
    [
        (lambda x, y: jnp.tanh(y) * 2 + y, IN_PIECES),
        (lambda x, y: jnp.tanh(y - y.mean((1, 2), keepdims=True)), IN_PIECES),
        (lambda x, y: x + y, WHOLE),
        (lambda x, y: jnp.tanh(y[:, :, :32]), WHOLE // 2),
        (lambda x, y: jnp.tanh(y.reshape(2, -1, 64)), WHOLE // 2),  # positions in the lanes
    ],
)
def test_what_is_computed_of_pieces_is_in_pieces_until_it_meets_what_is_not(fun, size):
    x, w = f32(2, 64, 64, 64), f32(3, 3, 64, 64)
    found = kernels(lambda x, w: lax.optimization_barrier(fun(x, convolve(x, w))), x, w)
    assert [bytes_ for name, bytes_ in found if name != "barrier"][-1] == size


def test_gradients_of_kernels_are_last_and_read_each_column():
    def loss(kernels, x):
        for kernel in kernels:
            x = jnp.tanh(convolve(x, kernel))
        return (x**2).mean()

    args = [f32(3, 3, 64, 64)] * 3, f32(2, 64, 64, 64)
    found = kernels(jax.grad(loss), *args)
    assert [name for name, _ in found[-6:]] == ["shifted_pieces", "conv_general_dilated"] * 3
    assert [size for name, size in found if name == "shifted_pieces"] == [3 * IN_PIECES] * 3
    assert [size for name, size in found if name == "layout_copy"].count(IN_PIECES) == 5
    plain = kernels(jax.grad(loss), *args, backend=TPU.without("pieces"))
    assert "shifted_pieces" not in [name for name, _ in plain]


def test_what_is_computed_of_a_late_gradient_is_late():
    def step(kernels, x):
        gradients = jax.grad(lambda ks: (convolve(jnp.tanh(convolve(x, ks[0])), ks[1]) ** 2).mean())(kernels)
        return [(k - g / jnp.sqrt((g**2).sum())) for k, g in zip(kernels, gradients, strict=True)]

    found = kernels(step, [f32(3, 3, 64, 64)] * 2, f32(2, 64, 64, 64))
    names = [name for name, _ in found]
    assert names.index("shifted_pieces") < names.index("reduce_sum")
