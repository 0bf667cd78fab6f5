"""Predicted against compiled peaks on XLA:GPU and XLA:TPU, without the devices. Slow: every case is compiled."""

from functools import partial

import jax
import pytest

import remat_plan as rp
from benchmarks.models import MODELS
from remat_plan import _compat
from remat_plan.compiled.seconds import CLOCK_HERTZ
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve
from tests.cost.memory_bound import LOOPS, SHAPES
from tests.cost.tpu_kernels import KERNELS
from tests.cost.tpu_programs import SMALL, attention, is_shape
from tests.helpers import CUDA, has_module

GPU = pytest.param(
    "gpu:h100",
    marks=pytest.mark.skipif(not has_module(CUDA), reason="the CUDA plugin is not installed"),
)
TPU = pytest.param(
    "tpu:v5e:1x1",
    marks=pytest.mark.skipif(not has_module("libtpu"), reason="the libtpu wheel is not installed"),
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_compat.jaxlib_version() < (0, 12), reason="the rules were read off jaxlib 0.12"),
]
SIZES = {"mlp": {"layers": 6}, "vit": {"layers": 2}, "gpt2": {"layers": 2, "vocab": 1024}}

TOLERANCE = 0.12
"""The worst of the cases here was 10.3 per cent (the segmented GPT-2 in bfloat16 on the TPU)."""


@pytest.mark.parametrize("segmented", [False, True], ids=["plain", "segmented"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("target", [GPU, TPU])
def test_predicted_peak_is_the_compiled_one(target, name, dtype, segmented):
    """With the least optimisation for the TPU, which keeps nothing in on-chip memory."""
    model = MODELS[name](**SIZES[name], dtype=dtype)
    step = jax.value_and_grad(model.loss_with(jax.checkpoint if segmented else lambda f: f))
    platform = target.split(":")[0]
    jaxpr = jax.make_jaxpr(step)(model.params, model.batch)
    predicted = evaluate(jaxpr, hardware_for(target, platform)).peak_bytes
    compiled = compile_memory(step, (model.params, model.batch), resolve(target), fast=platform == "tpu").total_bytes
    assert predicted == pytest.approx(compiled, rel=TOLERANCE)


@pytest.mark.parametrize("target", [GPU])
def test_what_is_computed_again_waits_for_sums(target):
    """A DenseNet in segments: XLA makes the input of each convolution again where it sums the gradient before it.

    In program order it was predicted 19 per cent too low.
    """
    model = MODELS["densenet"](layers=8, dtype="bfloat16")
    step = jax.value_and_grad(model.loss_with(jax.checkpoint))
    jaxpr = jax.make_jaxpr(step)(model.params, model.batch)
    predicted = evaluate(jaxpr, hardware_for(target, "gpu")).peak_bytes
    compiled = compile_memory(step, (model.params, model.batch), resolve(target)).total_bytes
    assert predicted == pytest.approx(compiled, rel=TOLERANCE)


@pytest.mark.parametrize("target", [TPU])
@pytest.mark.parametrize("program", SMALL)
def test_predicted_peak_of_a_small_program(target, program):
    """Of few kernels, so that one which is missing shows."""
    fun, shapes = SMALL[program]
    args = [jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, "float32"), s, is_leaf=is_shape) for s in shapes]
    predicted = evaluate(jax.make_jaxpr(fun)(*args), hardware_for(target, "tpu")).peak_bytes
    compiled = compile_memory(fun, tuple(args), resolve(target), fast=True).total_bytes
    assert predicted == pytest.approx(compiled, rel=TOLERANCE)


@pytest.mark.parametrize("target", [TPU])
@pytest.mark.parametrize(("fun", "dtype", "cycles"), KERNELS)
def test_what_the_rules_of_a_tpu_were_read_off(target, fun, dtype, cycles):
    """XLA's own estimates for single kernels, by which ``Hardware`` has its rates."""
    x = jax.ShapeDtypeStruct((4096, 3072), dtype)
    hardware = hardware_for(target, "tpu")
    seconds = compile_memory(fun, (x,), resolve(target), hardware=hardware).seconds
    assert seconds * CLOCK_HERTZ["tpu:v5e"] / (x.size / 1024) == pytest.approx(cycles, rel=0.03)


@pytest.mark.parametrize("target", [TPU])
def test_weights_that_a_loop_narrows_are_narrowed_before_it(target):
    """Without their copy in bfloat16 the peak is predicted 14 % too low."""

    def loss(weights, x):
        def layer(x, w):
            return x + jax.nn.gelu(x @ w[0].astype("bfloat16")) @ w[1].astype("bfloat16"), None

        return jax.lax.scan(layer, x, weights)[0].astype("float32").sum()

    weights = tuple(jax.ShapeDtypeStruct((8, *shape), "float32") for shape in ((2048, 8192), (8192, 2048)))
    plan = rp.plan(loss, weights, jax.ShapeDtypeStruct((2048, 2048), "bfloat16"), budget="65%", target=target)
    assert plan.predicted_peak_bytes == pytest.approx(plan.compiled_peak_bytes, rel=0.02)


@pytest.mark.parametrize("target", [TPU])
def test_a_softmax_whose_weights_are_divided_before_they_are_narrowed_is_one_kernel(target):
    """The compiler takes 4.4 times as long where the mean is divided, 2.8 times is predicted."""
    hardware = hardware_for(target, "tpu")
    heads = (jax.ShapeDtypeStruct((8, 512, 12, 64), "bfloat16"),) * 3

    def ratio(seconds):
        return seconds(partial(attention, False)) / seconds(partial(attention, True))

    compiled = ratio(lambda fun: compile_memory(fun, heads, resolve(target), hardware=hardware).seconds)
    predicted = ratio(lambda fun: evaluate(jax.make_jaxpr(fun)(*heads), hardware).seconds)
    assert compiled == pytest.approx(4.4, rel=0.05)
    assert predicted == pytest.approx(2.8, rel=0.05)


@pytest.mark.parametrize("target", [GPU, TPU])
@pytest.mark.parametrize("name", LOOPS)
def test_time_that_is_counted_as_saved_is_saved_by_the_compiler_too(target, name):
    """Prices count upon it; seconds of a branch on the TPU are the furthest off."""
    plan = rp.plan(LOOPS[name], *SHAPES, budget="60%", target=target)
    assert plan.overhead < -0.3
    assert plan.compiled_overhead < -0.35
    assert abs(plan.compiled_overhead - plan.overhead) < 0.3
