"""Modules with known answers: as this process compiles them, and as a TPU's and a GPU's compilers wrote them."""

import jax
import jax.numpy as jnp
import pytest

from remat_plan.compiled.seconds import CLOCK_HERTZ, compiled_seconds
from remat_plan.cost.hardware import Hardware, hardware_for
from remat_plan.verify.targets import resolve
from tests.compiled.modules import GPU, TPU

UNIT = Hardware("toy", 1.0, 1.0, 1.0)
N = 256


def aval(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def read(fn, *avals, hardware=UNIT):
    with jax.default_device(resolve("cpu").device):
        text = jax.jit(fn).lower(*avals).compile().as_text()
    return compiled_seconds(text, "cpu", hardware)


def test_products_count_their_flops():
    def chain(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    found = read(jax.grad(chain, argnums=(0, 1)), [aval(N, N)] * 3, aval(2 * N, N))
    assert found.matrix_flops == 9 * 2 * (2 * N) * N * N
    assert not found.unknown_loops


def test_element_wise_work_counts_its_border_once():
    found = read(lambda x, y: jnp.sin(x) * y + x, aval(N, N), aval(N, N))
    assert found.kernels == 1
    assert found.moved_bytes == 3 * 4 * N * N


def test_seconds_are_the_roofline_of_each_kernel():
    fast = Hardware("toy", 1e30, 1e30, 1.0, step_seconds=0.5)
    found = read(lambda x, y: jnp.sin(x) * y, aval(N, N), aval(N, N), hardware=fast)
    assert found.seconds == found.moved_bytes + 0.5 * found.kernels
    bound = Hardware("toy", 1.0, 1e30, 1e30)
    product = read(lambda x: x @ x, aval(N, N), hardware=bound)
    assert product.seconds == pytest.approx(2 * N**3)


def test_bytes_are_those_that_xla_counts():
    def loss(ws, x):
        for w in ws:
            x = x + jax.nn.gelu((x - jnp.mean(x, -1, keepdims=True)) @ w)
        return jnp.mean(jax.nn.logsumexp(x, -1))

    step = jax.jit(jax.value_and_grad(loss)).lower([aval(N, N)] * 4, aval(8 * N, N)).compile()
    analysis = step.cost_analysis()
    told = analysis[0] if isinstance(analysis, list) else analysis
    found = compiled_seconds(step.as_text(), "cpu", UNIT)
    assert found.moved_bytes == pytest.approx(told["bytes accessed"], rel=0.03)


@pytest.mark.parametrize("length", [3, 7])
def test_a_scan_counts_its_steps_and_reads_one_slice_in_each(length):
    def scanned(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    found = read(scanned, aval(length, N, N), aval(N, N))
    assert found.matrix_flops == length * 2 * N**3
    # A step reads one w of the stack; with the whole stack it would grow with the square of the length.
    assert found.moved_bytes < (length + 1) * 12 * 4 * N * N


def test_residuals_of_a_scan_are_written_and_read_a_slice_at_a_time():
    def scanned(w, x, length):
        return jnp.sum(jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=length)[0])

    bytes_of = [
        read(jax.grad(lambda w, x, n=n: scanned(w, x, n)), aval(N, N), aval(N, N)).moved_bytes for n in (4, 8, 12)
    ]
    first, second = bytes_of[1] - bytes_of[0], bytes_of[2] - bytes_of[1]
    assert second == pytest.approx(first, rel=0.02)


def test_nested_scans_multiply():
    def inner(x, w):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=5)[0], None

    found = read(lambda ws, x: jax.lax.scan(inner, x, ws)[0], aval(3, N, N), aval(N, N))
    assert found.matrix_flops == 15 * 2 * N**3


def test_the_longest_branch_counts():
    def branched(p, w, x):
        return jax.lax.cond(p > 0, lambda x: jnp.tanh(x @ w) @ w, lambda x: x @ w, x)

    assert read(branched, aval(), aval(N, N), aval(N, N)).matrix_flops == 2 * 2 * N**3


def test_an_unknown_trip_count_is_told():
    def until(limit, w, x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) > limit, lambda x: jnp.tanh(x @ w), x)

    found = read(until, aval(), aval(N, N), aval(N, N))
    assert found.unknown_loops == 1
    assert found.matrix_flops == 2 * N**3


def test_a_gather_reads_the_rows_that_it_takes():
    found = read(lambda table, rows: table[rows], aval(1000 * N, 8), jax.ShapeDtypeStruct((16,), jnp.int32))
    assert found.moved_bytes < 100 * 16 * 8


@pytest.mark.parametrize("gradient", [None, 0, 1])
def test_convolutions(gradient):
    def convolved(x, w):
        return jax.lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    x, w, out = aval(4, 17, 17, 16), aval(3, 3, 16, 32), (4, 8, 8, 32)
    fn = convolved
    if gradient is not None:
        fn = lambda x, w, c: jax.vjp(convolved, x, w)[1](c)[gradient]  # noqa: E731
    found = read(fn, x, w, *([aval(*out)] if gradient is not None else []))
    work = 2 * 4 * 8 * 8 * 32 * 9 * 16
    # The gradient of a strided convolution has an input of zeros at its end, which count.
    assert work <= found.matrix_flops <= 1.3 * work


def test_a_gpu_module():
    found = compiled_seconds(GPU, "gpu", UNIT)
    x, w, out = 512 * 256 * 2, 256 * 128 * 2, 512 * 128 * 2
    assert found.kernels == 4
    assert found.matrix_flops == 2 * 512 * 256 * 128 + 2 * 512 * 256 * 512
    # One slice read and written; a product; its result read and written into the stack, and the place; the
    # library's product, which reads x twice, without its workspace.
    assert found.moved_bytes == (2 * x + 4) + (x + w + out) + (2 * out + 4) + (2 * x + 512 * 512 * 4)


CONVOLUTION = """ENTRY %main (x: bf16[8,32,32,64], w: bf16[48,3,3,64]) -> bf16[8,32,32,48] {{
  %a = {a} parameter(0)
  %b = {b} parameter(1)
  %conv = ({out}, u8[4096]{{0}}) custom-call(%a, %b), window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$conv{way}"
  ROOT %r = {out} get-tuple-element(%conv), index=0
}}
"""
X, W, Y = "bf16[8,32,32,64]{3,2,1,0}", "bf16[48,3,3,64]{3,2,1,0}", "bf16[8,32,32,48]{3,2,1,0}"


@pytest.mark.parametrize(
    ("a", "b", "out", "way"), [(X, W, Y, "Forward"), (Y, W, X, "BackwardInput"), (X, Y, W, "BackwardFilter")]
)
def test_library_convolutions(a, b, out, way):
    found = compiled_seconds(CONVOLUTION.format(a=a, b=b, out=out, way=way), "gpu", UNIT)
    assert found.matrix_flops == 2 * (8 * 32 * 32 * 48) * (3 * 3 * 64)
    assert found.moved_bytes == 2 * (8 * 32 * 32 * 64 + 48 * 3 * 3 * 64 + 8 * 32 * 32 * 48)


def test_library_calls_that_are_not_known_move_their_bytes():
    text = """ENTRY %main (x: f32[64,64]) -> f32[64,64] {
  %x = f32[64,64]{1,0} parameter(0)
  ROOT %r = f32[64,64]{1,0} custom-call(%x), custom_call_target="mystery"
}
"""
    found = compiled_seconds(text, "gpu", UNIT)
    assert (found.kernels, found.matrix_flops, found.moved_bytes) == (1, 0.0, 2 * 64 * 64 * 4)
    told = text.replace('"mystery"', '"tpu_custom_call", backend_config={"cost_estimate":{"flops":"77"}}')
    assert compiled_seconds(told, "tpu", UNIT) is None
    assert compiled_seconds(told, "gpu", UNIT).matrix_flops == 77


def test_cycles_of_a_tpu():
    hardware = hardware_for("tpu:v5e:1x1", "tpu")
    found = compiled_seconds(TPU, "tpu", hardware)
    small = found.seconds - (8 * 3000 + 600) / 1.5e9
    assert 0 <= small < 1e-9, "additions of the counter"
    assert not found.unknown_loops


def test_the_largest_number_of_cycles_is_no_estimate():
    """A kernel that the model of the chip says nothing of counts by the rates of the device."""
    hardware = hardware_for("tpu:v5e:1x1", "tpu")
    known = compiled_seconds(TPU, "tpu", hardware)
    none = compiled_seconds(TPU.replace('"600"', f'"{2**63 - 1}"'), "tpu", hardware)
    moved = 2 * 256 * 256 * 2 / hardware.cache_bytes_per_second
    assert none.seconds == pytest.approx(known.seconds - 600 / 1.5e9 + moved, rel=1e-3)


@pytest.mark.parametrize(("size", "each"), [(3, 3), (2 * N - 1, 1), (2 * N, 1)])
def test_a_window_over_whole_rows_counts_each_element_once(size, each):
    low = (size - 1) // 2
    text = f"""ENTRY %main (x: f32[8,{N}]) -> f32[8,{N}] {{
  %x = f32[8,{N}]{{1,0}} parameter(0)
  %c = f32[] constant(-inf)
  ROOT %r = f32[8,{N}]{{1,0}} reduce-window(%x, %c), window={{size=1x{size} pad=0_0x{low}_{size - 1 - low}}}, to_apply=%max
}}
"""
    work = Hardware("toy", 1e30, 1.0, 1e30)
    assert compiled_seconds(text, "gpu", work).seconds == pytest.approx(8 * N * each)


def test_a_tpu_module_without_cycles_tells_nothing():
    assert compiled_seconds(TPU.replace("estimated_cycles", "something"), "tpu", UNIT) is None
    assert compiled_seconds("", "tpu", UNIT) is None
    assert compiled_seconds("", "cpu", UNIT) is None


def test_every_tpu_has_a_clock():
    known = {"v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x"}
    assert set(CLOCK_HERTZ) == {hardware_for(f"tpu:{name}:1x1", "tpu").name for name in known}
