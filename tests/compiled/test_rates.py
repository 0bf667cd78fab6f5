"""Compiled modules by measured rates: classes of work, turned kernels, loops, fresh memory."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.compiled.hlo import parse
from remat_plan.compiled.operations import work_of
from remat_plan.compiled.seconds import compiled_seconds
from remat_plan.compiled.traffic import turned_operands
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.work import work_class as class_of_equation
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve

FREE = Hardware("toy", 1e30, 1e30, 1e30)
"""Nothing costs anything, until a test gives it a rate."""

N = 256


def aval(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def text_of(fn, *avals):
    with jax.default_device(resolve("cpu").device):
        return jax.jit(fn).lower(*avals).compile().as_text()


def classes_in(module):
    return {work_of(c, found, 0.0, 0.0)[0] for c in module.computations.values() for found in c.instructions.values()}


def image(*shape):
    return aval(2, *shape, 8)


def conv(x, w, **settings):
    given = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC"), **settings}
    return jax.lax.conv_general_dilated(x, w, **given)


@pytest.mark.parametrize(
    ("fn", "avals"),
    [
        (jnp.matmul, (aval(2 * N, N), aval(N, N))),
        (jnp.matmul, (aval(2 * N, 64), aval(64, N))),
        (jnp.matmul, (aval(4, N, 64), aval(4, 64, N))),
        (conv, (image(16, 16), aval(3, 3, 8, 8))),
        (conv, (image(32, 32), aval(30, 30, 8, 8))),
        (conv, (image(2, 2), aval(3, 3, 8, 8))),
        (lambda x, w: conv(x, w, padding=((1, 2), (1, 2)), lhs_dilation=(2, 2)), (image(16, 16), aval(3, 3, 8, 8))),
        (lambda x, w: conv(x, w, padding="VALID", rhs_dilation=(2, 2)), (image(9, 9), aval(3, 3, 8, 8))),
        (jnp.exp, (aval(N, N),)),
        (jnp.tanh, (aval(N, N),)),
        (lambda x: x**1.7, (aval(N, N),)),
        (lambda x: jnp.sum(x, 1), (aval(N, N),)),
        (lambda x: jnp.sum(x, 0), (aval(N, N),)),
    ],
)
def test_an_operation_is_of_the_class_of_its_equation(fn, avals):
    """What is compiled goes by the rate that was measured of the equation."""
    (eqn,) = [e for e in jax.make_jaxpr(fn)(*avals).jaxpr.eqns if e.primitive.name not in ("convert_element_type",)]
    assert class_of_equation(eqn) in classes_in(parse(text_of(fn, *avals)))


def test_a_pointwise_convolution_that_became_a_product_is_one():
    assert "product shallow float32" in classes_in(parse(text_of(conv, image(16, 16), aval(1, 1, 8, 8))))


def test_a_gradient_that_reverses_its_kernel_is_one_over_a_window():
    def gradient(x, w, dy):
        return jax.vjp(lambda x: conv(x, w), x)[1](dy)[0]

    found = classes_in(parse(text_of(gradient, image(16, 16), aval(3, 3, 8, 8), image(16, 16))))
    assert {work for work in found if work.startswith("convolution")} == {"convolution window float32"}


def test_a_convolution_that_a_loop_leaves_in_its_order_is_of_a_class_of_its_own():
    def gradient(x, dy):
        return jax.vjp(lambda w: conv(x, w), jnp.ones((3, 3, 8, 8)))[1](dy)[0]

    rows = aval(4, *image(16, 16).shape)
    alone = classes_in(parse(text_of(gradient, image(16, 16), image(16, 16))))
    looped = classes_in(parse(text_of(lambda *xs: lax.map(lambda x: gradient(*x), xs), rows, rows)))
    assert "convolution reordered float32" in looped
    assert "convolution reordered float32" not in alone


def test_rates_count_for_their_class_only():
    text = text_of(lambda x: jnp.tanh(x @ x), aval(N, N))
    large = replace(FREE, rates={"product large float32": 2.0})
    assert compiled_seconds(text, "cpu", large).seconds == pytest.approx(N**3)
    tanh = replace(FREE, rates={"tanh float32": 4.0})
    assert compiled_seconds(text, "cpu", tanh).seconds == pytest.approx(8 * N * N / 4)
    thin = replace(FREE, rates={"product thin float32": 2.0})
    assert compiled_seconds(text, "cpu", thin).seconds < 1e-9


def test_kernels_that_the_cache_holds_go_by_its_bandwidth():
    text = text_of(lambda x: x + 1, aval(N, N))
    moved = 2 * 4 * N * N
    cached = replace(FREE, bytes_per_second=1.0, cache_bytes=moved, cache_bytes_per_second=2.0)
    assert compiled_seconds(text, "cpu", cached).seconds == moved / 2
    assert compiled_seconds(text, "cpu", replace(cached, cache_bytes=moved - 1)).seconds == moved


def turned_in(text):
    module = parse(text)
    return sum(turned_operands(module, module.entry, found) for found in module.entry.instructions.values())


def test_operands_of_a_transposed_copy_are_counted():
    x = aval(N, 2 * N)
    assert turned_in(text_of(lambda x: (2 * x).T, x)) == 1
    assert turned_in(text_of(lambda x, y, z: (x * y + z).T, x, x, x)) == 3
    assert turned_in(text_of(lambda x, row: (x * row).T, x, aval(2 * N))) == 1  # a row is broadcast
    assert turned_in(text_of(lambda x, y: x * y + 1, x, x)) == 0
    assert turned_in(text_of(lambda x: 2 * jnp.reshape(x, (2 * N, N)), x)) == 0


def test_a_copy_that_leaves_rows_whole_is_not_turned():
    x = aval(4, 16, 12, 64)
    assert turned_in(text_of(lambda x: 2 * jnp.transpose(x, (0, 2, 1, 3)), x)) == 0
    assert turned_in(text_of(lambda x: 2 * jnp.transpose(x, (0, 2, 3, 1)), x)) == 1


def test_dimensions_of_one_element_have_no_order():
    assert turned_in(text_of(lambda x: 2 * jnp.transpose(x, (1, 0, 2)), aval(N, 1, N))) == 0


BEFORE_CONVOLUTION = """ENTRY %main (x: f32[8,16,16,4], k: f32[3,3,4,4]) -> f32[8,16,16,4] {{
  %x = f32[8,16,16,4]{{3,2,1,0}} parameter(0)
  %k = f32[3,3,4,4]{{3,2,1,0}} parameter(1)
  %c = f32[8,16,16,4]{{0,2,1,3}} copy(%x)
  ROOT %out = {user}
}}"""


def test_copies_that_convolutions_read_are_not_counted():
    read = "f32[8,16,16,4]{3,2,1,0} convolution(%c, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
    assert turned_in(BEFORE_CONVOLUTION.format(user=read)) == 0
    assert turned_in(BEFORE_CONVOLUTION.format(user="f32[8,16,16,4]{0,2,1,3} negate(%c)")) == 1


def test_turned_kernels_go_by_their_bandwidth():
    x = aval(N, 2 * N)
    turning = replace(FREE, turned_bytes_per_second=4.0, turned_operand_bytes_per_second=1.0)
    array = 4 * 2 * N * N
    alone = compiled_seconds(text_of(lambda x: (2 * x).T, x), "cpu", turning).seconds
    assert alone == pytest.approx(2 * array / 4)
    among = compiled_seconds(text_of(lambda x, y: (x + y).T, x, x), "cpu", turning).seconds
    assert among == pytest.approx(3 * array)


@pytest.mark.parametrize("steps", [3, 7])
def test_each_step_of_a_loop_costs(steps):
    def scanned(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    text = text_of(scanned, aval(steps, N, N), aval(N, N))
    found = compiled_seconds(text, "cpu", replace(FREE, loop_seconds=2.0))
    assert found.seconds == pytest.approx(2.0 * steps)
    assert found.kernels == compiled_seconds(text, "cpu", FREE).kernels


def test_fresh_memory_is_paid_once_for_the_temporaries_of_a_module():
    def loss(x):
        return jnp.sum(jnp.sin(x @ x) @ x)

    target = resolve("cpu")
    memory = compile_memory(jax.grad(loss), (aval(N, N),), target, hardware=FREE)
    assert memory.temp_bytes >= 4 * N * N
    fresh = replace(FREE, fresh_seconds_per_byte=0.5, fresh_least_bytes=memory.temp_bytes)
    seconds = compile_memory(jax.grad(loss), (aval(N, N),), target, hardware=fresh).seconds
    assert seconds == pytest.approx(memory.temp_bytes / 2)
    kept = replace(fresh, fresh_least_bytes=memory.temp_bytes + 1)
    assert compile_memory(jax.grad(loss), (aval(N, N),), target, hardware=kept).seconds == memory.seconds
