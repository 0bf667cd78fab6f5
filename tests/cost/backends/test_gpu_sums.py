"""What XLA:GPU writes for sums of columns of few blocks of threads."""

import jax
import jax.numpy as jnp
import pytest

from remat_plan.cost import platforms
from remat_plan.cost.backends.gpu import GPU
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve
from tests.helpers import CUDA

H100 = hardware_for("gpu:h100", "gpu")


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def peak(fun, *args):
    return evaluate(jax.make_jaxpr(fun)(*args), H100).peak_bytes


def product(x, y):
    return (x * y).sum(0)


def swish(x):
    return jax.nn.silu(x).sum(0)


@pytest.mark.parametrize(
    ("fun", "shape", "is_written"),
    [
        *((product, shape, True) for shape in ((300, 64), (4096, 64), (500, 512), (4096, 768))),
        *((product, shape, False) for shape in ((240, 64), (400, 512), (4096, 2048), (8192, 64), (32, 64))),
        *((swish, shape, True) for shape in ((120, 64), (125, 512), (200, 2048))),
        *((swish, shape, False) for shape in ((80, 64), (80, 512), (140, 2048), (8192, 64))),
    ],
)
def test_what_is_summed_is_written_as_the_compiler_does(fun, shape, is_written):
    args = [floats(*shape)] * (2 if fun is product else 1)
    size = 4 * shape[0] * shape[1]
    assert peak(fun, *args) // size == len(args) + is_written
    pytest.importorskip(CUDA)
    assert compile_memory(fun, tuple(args), resolve("gpu:h100")).temp_bytes // size == is_written


def test_sums_of_rows_compute_what_they_read():
    assert peak(lambda x, y: (x * y).sum(1), floats(4096, 64), floats(4096, 64)) // (4 * 4096 * 64) == 2


def squeezed(x, w):
    """A mean over images of ``silu``, and a gate of it."""
    for _ in range(3):
        h = jax.nn.silu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        x = h * jax.nn.sigmoid(h.mean((1, 2)))[:, None, None]
    return jnp.mean(x * x)


def test_an_activation_is_written_for_the_mean_of_images_and_its_gradient(monkeypatch):
    args = floats(8, 28, 28, 128), floats(3, 3, 128, 128)
    step = jax.grad(squeezed, argnums=1)
    with_rule = peak(step, *args)
    monkeypatch.setitem(platforms._BACKENDS, "gpu", GPU.without("starved_sums"))
    without = peak(step, *args)
    pytest.importorskip(CUDA)
    compiled = compile_memory(step, args, resolve("gpu:h100")).total_bytes
    assert abs(with_rule / compiled - 1) < 0.1 < abs(without / compiled - 1)
