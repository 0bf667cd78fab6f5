"""What XLA:GPU and XLA:TPU leave in memory, rule by rule, on programs whose kernels are known."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback

from remat_plan.cost.backend import GENERIC, Rule
from remat_plan.cost.backends.cpu import CPU
from remat_plan.cost.backends.gpu import GPU
from remat_plan.cost.backends.gpu_siblings import beside_siblings
from remat_plan.cost.backends.tpu import TPU
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate_program, region_cost
from remat_plan.cost.platforms import backend_for
from remat_plan.cost.program import lower

H100 = hardware_for("gpu:h100", "gpu")
X = jax.ShapeDtypeStruct((128, 128), jnp.float32)
HALF = jax.ShapeDtypeStruct((128, 128), jnp.bfloat16)
IMAGE = jax.ShapeDtypeStruct((16, 32, 32, 3), jnp.float32)
KERNEL = jax.ShapeDtypeStruct((3, 3, 3, 64), jnp.float32)


def program(fun, *args, model):
    return lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=H100), model))


def names(fun, *args, model):
    return [k.step.primitive for k in fuse(program(fun, *args, model=model))]


def sizes(fun, *args, model):
    """Bytes of what each kernel writes, by primitive; the last one counts."""
    made = program(fun, *args, model=model)
    return {k.step.primitive: made.sizes[k.step.writes[0]] for k in fuse(made)}


def conv(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def twice(x):
    """An expensive value with two readers that are no one kernel."""
    y = jnp.tanh(x)
    return jnp.sin(y + 1), jnp.cos(y + 2)


@pytest.mark.parametrize(("model", "kept"), [(GENERIC, True), (CPU, True), (GPU, False), (TPU, False)])
def test_expensive_work_of_32_bits_is_repeated_on_accelerators(model, kept):
    assert ("tanh" in names(twice, X, model=model)) == kept


@pytest.mark.parametrize(("model", "kept"), [(GPU, True), (TPU, False)])
def test_expensive_work_of_16_bits_is_kept_on_a_gpu(model, kept):
    assert ("tanh" in names(twice, HALF, model=model)) == kept


@pytest.mark.parametrize(("model", "kept"), [(GPU, True), (TPU, False)])
def test_a_tpu_computes_the_operands_of_products_inside_them(model, kept):
    assert ("exp" in names(lambda x: jnp.exp(x) @ x, X, model=model)) == kept


def test_a_step_behind_a_product_is_written_with_it_on_a_tpu():
    """Otherwise both readers would add again, from the product and ``x``."""
    fun = lambda x: (lambda y: (jnp.sin(y), jnp.cos(y)))(x @ x + x)  # noqa: E731
    assert names(fun, X, model=TPU) == ["add", "sin", "cos"]
    assert names(fun, X, model=GPU) == ["dot_general", "sin", "cos"]


def test_a_conversion_behind_a_product_is_left_to_its_readers():
    """What is kept of a product of 16 bits is the 16 bits, unless there is arithmetic in 32 behind it."""

    def fun(x, scale):
        y = (x @ x).astype(jnp.float32) * scale
        return jnp.sin(y), jnp.cos(y)

    assert names(lambda x: fun(x, 2.0), HALF, model=TPU)[0] == "mul"
    plain = lambda x: (lambda y: (jnp.sin(y), jnp.cos(y)))((x @ x).astype(jnp.float32))  # noqa: E731
    assert names(plain, HALF, model=TPU) == ["dot_general", "sin", "cos"]


def test_batches_of_matrices_are_padded_to_tiles_of_these():
    """As XLA:TPU lays out the scores of attention in windows of 49; other arrays may have any dimensions innermost."""
    windows = jax.ShapeDtypeStruct((256, 49, 49), jnp.float32)
    found = sizes(lambda x: jnp.tanh(jnp.einsum("bij,bkj->bik", x, x)) @ x, windows, model=TPU)
    assert found["dot_general"] == 4 * 256 * 56 * 128
    assert sizes(lambda x: x + 1.0, windows, model=TPU)["add"] == 4 * 256 * 56 * 49


def test_arrays_next_to_convolutions_are_padded_to_tiles():
    found = sizes(lambda x, w: jnp.sum(conv(x, w), axis=(1, 2)), IMAGE, KERNEL, model=TPU)
    assert found["conv_general_dilated"] == 4 * 16 * 32 * 32 * 128  # 64 channels take the lanes of 128
    assert found["layout_copy"] == 4 * 128 * 32 * 32 * 4  # the batch in the lanes: 16 images take those of 128
    assert sizes(conv, IMAGE, KERNEL, model=GPU)["conv_general_dilated"] == 4 * 16 * 32 * 32 * 64


def test_an_addition_to_a_convolution_is_computed_with_it_on_a_gpu():
    wide = jax.ShapeDtypeStruct((16, 32, 32, 64), jnp.float32)

    def fun(x, w, skip):
        y = conv(x, w) + skip
        return jnp.sin(y), jnp.cos(y)

    assert [n for n in names(fun, IMAGE, KERNEL, wide, model=GPU) if n != "layout_copy"] == ["add", "sin", "cos"]


def test_forward_and_backward_pass_share_a_copy_of_a_kernel_on_a_gpu():
    wide = jax.ShapeDtypeStruct((16, 32, 32, 64), jnp.float32)
    kernel = jax.ShapeDtypeStruct((3, 3, 64, 64), jnp.float32)
    step = jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 2), (0, 1))
    assert names(step, wide, kernel, model=GPU).count("layout_copy") == 1


def test_the_kernel_gradient_of_a_transposed_convolution_is_a_forward_one_of_copies_on_a_gpu():
    """cuDNN has no call for it; of a U-Net these copies are a seventh of the peak."""

    def loss(x, w):
        return jnp.sum(lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2)

    wide = jax.ShapeDtypeStruct((16, 32, 32, 64), jnp.float32)
    kernel = jax.ShapeDtypeStruct((3, 3, 64, 64), jnp.float32)
    made = program(jax.grad(loss, 1), wide, kernel, model=GPU)
    copied = [made.sizes[k.step.writes[0]] for k in fuse(made) if k.step.primitive == "layout_copy"]
    image, cotangent = 4 * 16 * 32 * 32 * 64, 4 * 16 * 64 * 64 * 64
    assert copied == [4 * 3 * 3 * 64 * 64, image, cotangent]


@pytest.mark.parametrize(("rules", "arrays"), [((), 3), ((Rule("apart", "toy", "none", lambda kernel: True),), 4)])
def test_a_kernel_that_does_not_write_over_its_operand_needs_both(rules, arrays):
    """Argument and result, and while the product with two is made, both its sides."""
    model = replace(GENERIC, rules=rules, reuses_outputs=False)
    made = program(lambda x: jnp.sort(jnp.sort(x) * 2), X, model=model)
    assert evaluate_program(made, H100).peak_bytes == arrays * 4 * X.size


@pytest.mark.parametrize(("model", "written"), [(GPU, 0), (TPU, 1), (CPU, 1)])
def test_a_concatenation_along_rows_is_a_kernel_of_its_own(model, written):
    def fun(x, y):
        return jnp.sum(jnp.sin(jnp.concatenate([x, y], axis=-1)))

    assert names(fun, X, X, model=model).count("concatenate") == written


@pytest.mark.parametrize(("model", "written"), [(GPU, 0), (TPU, 1)])
def test_what_is_split_into_parts_is_written_first_on_a_tpu(model, written):
    def fun(x):
        first, second = jnp.split(2 * x, 2, axis=-1)
        return jnp.sum(first) * jnp.sum(jnp.sin(second))

    assert (names(fun, X, model=model)[0] == "mul") == bool(written)


def spaced(x, w, strides=(1, 1), padding="SAME", spread=(1, 1)):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, strides, padding, lhs_dilation=spread, dimension_numbers=layout)


@pytest.mark.parametrize(
    ("settings", "padded"),
    [
        ({}, None),
        ({"strides": (2, 2)}, 33 * 33),
        ({"padding": ((0, 1), (2, 2))}, 33 * 32),
        ({"padding": ((0, -1), (0, -1))}, None),
        ({"padding": ((1, 1), (1, 1)), "spread": (2, 2)}, 65 * 65),
    ],
    ids=["even", "strided", "uneven", "cut", "transposed"],
)
def test_cudnn_reads_an_image_that_is_padded(settings, padded):
    """The larger of two paddings is made by cuDNN itself where both sides have it; the rest is an array."""
    found = sizes(lambda x, w: spaced(jnp.sin(x), w, **settings), IMAGE, KERNEL, model=GPU)
    assert found.get("pad") == (None if padded is None else 16 * padded * 3 * 4)
    assert "pad" not in sizes(lambda x, w: spaced(jnp.sin(x), w, **settings), IMAGE, KERNEL, model=TPU)


def test_a_padded_image_is_made_once_for_a_strided_convolution_and_its_gradient():
    def loss(x, w):
        return jnp.sin(spaced(jnp.tanh(x), w, (2, 2))).sum()

    assert names(jax.grad(loss, argnums=1), IMAGE, KERNEL, model=GPU).count("pad") == 1


def test_what_is_summed_for_each_channel_is_not_written_over_its_operands():
    def fun(x, w):
        y = jnp.maximum(conv(jnp.sin(x), w) * conv(x, w), 0)
        return y @ jnp.ones((64, 3)), y.sum((0, 1, 2))

    made = program(fun, IMAGE, KERNEL, model=GPU)
    (before,) = (k for k in fuse(made) if k.step.primitive == "max")
    (after,) = (k for k in beside_siblings(fuse(made), made.sizes) if k.step.primitive == "max")
    assert not before.keeps.issuperset(before.reads)
    assert after.keeps.issuperset(before.reads)


@pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive 'io_callback'")
@pytest.mark.parametrize(("name", "platform"), [("cpu", "cpu"), ("gpu:h100", "gpu"), ("tpu:v5e:1x1", "tpu")])
def test_a_callback_without_a_result_is_a_kernel_of_no_bytes(name, platform):
    """It has an effect, so it stays; nothing is read off a result that it does not have."""

    def fun(x):
        y = jnp.tanh(x @ x)
        io_callback(lambda v: None, None, y.sum())
        return y * y

    hardware = hardware_for(name, platform)
    book = FactBook(partial(region_cost, hardware=hardware), backend_for(hardware))
    found = evaluate_program(lower(jax.make_jaxpr(fun)(X), book), hardware)
    assert "io_callback" in [eqn.primitive.name for eqn in found.equations]
    assert found.seconds > 0
