"""What XLA:TPU writes to memory though it computes nothing."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost.backends.tpu import TPU
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import region_cost
from remat_plan.cost.program import lower

V5E = hardware_for("tpu:v5e:1x1", "tpu")


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


X = f32(1024, 1024)


def kernels(fun, *args, backend=TPU):
    """The primitives that kernels are named for, with the megabytes of what they write."""
    program = lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=V5E), backend))
    return [(k.step.primitive, sum(program.sizes[w] for w in k.step.writes) / 2**20) for k in fuse(program)]


def names(fun, *args, habit=""):
    return [name for name, _ in kernels(fun, *args, backend=TPU.without(habit))]


def test_a_pad_between_elements_is_a_kernel_of_its_own():
    def interleaved(x):
        pads = (lax.pad(2 * x, 0.0, [(first, 1 - first, 1), (0, 0, 0)]) for first in (0, 1))
        return sum(pads)

    assert names(interleaved, X) == ["mul", "pad", "pad", "add"]
    assert names(interleaved, X, habit="moves_alone") == ["add"]
    assert names(lambda x: 2 * lax.pad(2 * x, 0.0, [(1, 1, 0), (0, 0, 0)]), X) == ["mul"]


def test_a_slice_in_strides_is_one_where_it_takes_tiles_apart():
    assert names(lambda x: 2 * (3 * x)[::2], X) == ["mul", "slice", "mul"]
    assert names(lambda x: 2 * (3 * x)[::2], X, habit="moves_alone") == ["mul"]
    assert names(lambda x: 2 * (3 * x)[::2], f32(64, 128, 128)) == ["mul"], "the first dimension is in no tile"
    assert names(lambda x: 2 * (3 * x)[1:], X) == ["mul"]


def test_a_slice_of_broadcasts_is_a_broadcast():
    def decayed(x, decay):
        whole = jnp.broadcast_to(decay, x.shape)
        return x[::2] * (whole * whole)[::2]

    assert names(decayed, X, f32(1024)) == ["slice", "mul"]

    def of_two(x, a, b):
        whole = jnp.broadcast_to(a, x.shape) * jnp.broadcast_to(b[:, None], x.shape)
        return x[::2] * whole[::2]

    assert names(of_two, X, f32(1024), f32(1024)).count("slice") == 2


def test_other_slices_of_equal_broadcasts_are_other_values():
    def halves(decay):
        whole = jnp.broadcast_to(decay, (1024, 1024))
        return whole[:512] + whole[512:], (whole * whole)[:512]

    program = lower(jax.make_jaxpr(halves)(f32(1024)), FactBook(partial(region_cost, hardware=V5E), TPU))
    keys = [step.key for step in program.steps if step.primitive == "broadcast_in_dim"]
    assert len(set(keys)) == len(keys)


def test_rows_are_fetched_by_a_kernel_of_its_own_and_lie_in_tiles():
    def edges(x, senders):
        return x[senders] * 2

    rows, index = f32(4096, 64), jax.ShapeDtypeStruct((16384,), jnp.int32)
    assert kernels(edges, rows, index)[-2:] == [("gather", 8.0), ("mul", 8.0)], "64 columns take the room of 128"
    assert "gather" not in names(edges, rows, index, habit="moves_alone")


@pytest.mark.parametrize(("backend", "written"), [(TPU, 1), (TPU.without("whole_concatenations"), 0)])
def test_a_concatenation_is_written_unless_products_take_it_in(backend, written):
    def read_by(reader):
        found = kernels(
            lambda x, y, w: reader(jnp.concatenate([2 * x, y], 1), w), X, X, f32(2048, 128), backend=backend
        )
        return sum(name == "concatenate" for name, _ in found)

    assert read_by(lambda z, w: z @ w) == 0
    assert read_by(lambda z, w: jnp.exp(z - z.mean())) == written


def test_heads_are_split_and_merged_in_memory():
    def attend(qkv, out):
        q, k, v = qkv.reshape(256, 49, 3, 3, 32).transpose(2, 0, 3, 1, 4)
        mixed = (q @ k.swapaxes(-1, -2)) @ v
        return mixed.transpose(0, 2, 1, 3).reshape(256, 49, 96) @ out

    args = f32(256, 49, 288), f32(96, 96)
    found, plain = names(attend, *args), names(attend, *args, habit="heads")
    assert found.count("layout_copy") > plain.count("layout_copy")
    assert found.count("transpose") > plain.count("transpose")


def test_a_spectrum_has_all_frequencies_and_two_more_are_made_on_the_way():
    x = f32(256, 2048)
    assert kernels(lambda x: jnp.fft.rfft(x).real * 2, x)[0] == ("fft", 2 * x.size * 4 / 2**20)
    program = lower(jax.make_jaxpr(jnp.fft.rfft)(x), FactBook(partial(region_cost, hardware=V5E), TPU))
    assert program.steps[-1].region.transient_bytes == 4 * x.size * 4
    rule = ("fft", 2 * x.size * 4 / 2**20)
    assert rule not in kernels(jnp.fft.rfft, x, backend=TPU.without("transforms"))


def test_transforms_of_two_dimensions_have_both_in_the_tiles():
    x = f32(8, 32, 64, 64)
    padded = 2 * x.size * 4 / 2**20
    spectrum = 8 * 32 * 40 * 128 * 8 / 2**20
    assert kernels(lambda x: jnp.fft.rfft2(x + 1), x) == [("dft", padded), ("dft", spectrum)]
    assert names(lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * 2), x) == ["dft"] * 3
    once = kernels(lambda x: (jnp.fft.rfft2(x), jnp.fft.rfft2(2 * x)), x)
    assert [size for name, size in once if name == "dft"] == [padded, spectrum, spectrum]
    short = f32(8192, 128)
    assert kernels(jnp.fft.rfft, short) == [("dft", 8192 * 72 * 8 / 2**20)], "half of the frequencies"


def test_products_of_some_frequencies_read_a_copy_of_all():
    def mixed(x, real, imaginary):
        spectrum, weights = jnp.fft.rfft2(x, axes=(1, 2)), lax.complex(real, imaginary)
        low, high = spectrum[:, :12, :12], spectrum[:, -12:, :12]
        return [jnp.einsum("bxyi,xyio->bxyo", part, w) for part, w in zip((low, high), weights, strict=True)]

    weights = f32(2, 12, 12, 32, 32)
    found = kernels(mixed, f32(8, 64, 64, 32), weights, weights)
    copies = [size for name, size in found if name == "layout_copy"]
    assert copies == [8 * 64 * 33 * 128 * 8 / 2**20], "of which both parts are"
    assert "complex" not in [name for name, _ in found]


def test_arguments_are_in_tiles():
    program = lower(jax.make_jaxpr(lambda x: x + 1)(f32(100, 96)), FactBook(partial(region_cost, hardware=V5E), TPU))
    assert [program.sizes[v] for v in program.inputs] == [96 * 128 * 4]
