"""Kernels of XLA:GPU that wait for others that read the same array, and are made as one with them."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from remat_plan.cost import launches as launches_of
from remat_plan.cost import platforms
from remat_plan.cost.backend import Backend, Rule
from remat_plan.cost.backends.gpu import GPU
from remat_plan.cost.backends.gpu_siblings import beside_siblings, made_as_one
from remat_plan.cost.builder import Rules
from remat_plan.cost.facts import FactBook
from remat_plan.cost.fusion import fuse
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate, region_cost
from remat_plan.cost.program import lower
from remat_plan.cost.rules import Kind
from remat_plan.cost.whole_step import StepProgram
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve
from tests.helpers import CUDA, traced

H100 = hardware_for("gpu:h100", "gpu")
IMAGES, KERNEL = (8, 32, 32, 16), (3, 3, 16, 16)


def conv(x, w):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def lowered(fun, *shapes):
    """The program of a function for a GPU."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return lower(jax.make_jaxpr(fun)(*args), FactBook(partial(region_cost, hardware=H100), GPU))


def ordered(fun, *shapes):
    """The kernels of a function as the program has them, and as XLA:GPU runs them."""
    program = lowered(fun, *shapes)
    kernels = fuse(program)
    return kernels, beside_siblings(kernels, program.sizes)


def names(kernels):
    found = [kernel.step.primitive for kernel in kernels]
    return [name for name in found if name != "layout_copy"]


def again(x, dy, w):
    """What a segment computes again for the gradient of a kernel, and the sums of a gradient that come after it."""
    a = jax.nn.relu(x * 2.0)
    first = conv(a, w)
    g = conv(dy, w)
    return first, (g * x).sum((0, 1, 2)), g.sum((0, 1, 2))


def test_what_is_computed_again_waits_for_the_sums_of_what_it_reads():
    before, after = ordered(again, IMAGES, IMAGES, KERNEL)
    assert names(before) == ["max", "conv_general_dilated", "conv_general_dilated", "reduce_sum", "reduce_sum"]
    assert names(after) == ["conv_general_dilated", "max", "reduce_sum", "reduce_sum", "conv_general_dilated"]


def launches(fun, *shapes):
    """What each kernel of several results makes last, with each of the others."""
    program = lowered(fun, *shapes)
    kernels = beside_siblings(fuse(program), program.sizes)
    found = made_as_one(kernels, program.sizes)
    return [(kernels[last].step.primitive, kernels[made].step.primitive) for last in found for made in found[last]]


def test_both_are_one_kernel_that_reads_once():
    assert launches(again, IMAGES, IMAGES, KERNEL) == [("reduce_sum", "max"), ("reduce_sum", "reduce_sum")]

    def apart(x, dy, w, y):
        g = conv(dy, w)
        return conv(jax.nn.relu(y * 2.0), w), (g * x).sum((0, 1, 2)), g.sum((0, 1, 2))

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (IMAGES, IMAGES, KERNEL, IMAGES)]
    assert launches(apart, *[a.shape for a in args]) == [("reduce_sum", "reduce_sum")]
    both = evaluate(jax.make_jaxpr(lambda x, dy, w, y: again(x, dy, w))(*args), H100)
    assert both.seconds < evaluate(jax.make_jaxpr(apart)(*args), H100).seconds


def test_what_is_launched_with_another_is_launched_once():
    """A kernel that makes sums of rows on its way keeps them, and is a launch of its own."""
    program = lowered(again, IMAGES, IMAGES, KERNEL)
    program.backend = Backend((Rule("joins", "toy", "this test", lambda kernels, sizes: {5: [4, 3]}),))
    assert launches_of._joined(program, [], {3: [2]}) == {3: [2], 5: [4]}


def test_sums_of_what_is_made_are_made_with_it():
    """An addition of several arrays is written once; its sums are made on the way."""

    def fun(x, y, z, w):
        a = x + y + z
        sums = (a * x).sum((0, 1, 2))
        return conv(a, w), sums

    before, _ = ordered(fun, IMAGES, IMAGES, IMAGES, KERNEL)
    added = next(kernel for kernel in before if kernel.step.primitive == "add")
    sums = next(kernel for kernel in before if kernel.step.primitive == "reduce_sum")
    assert set(added.step.writes) < set(sums.reads)
    assert launches(fun, IMAGES, IMAGES, IMAGES, KERNEL) == [("reduce_sum", "add")]


def test_what_the_sums_need_does_not_wait():
    def fun(x, dy, w):
        first = conv(jax.nn.relu(x * 2.0), w)
        return first, (first * x).sum((0, 1, 2))

    before, after = ordered(fun, IMAGES, IMAGES, KERNEL)
    assert names(before) == ["max", "conv_general_dilated", "reduce_sum"]
    assert after == before


SHAPES = ((2048, 256), (256, 4096), (4096, 256), (256, 4096), (4096, 256))


def blocks(x, *matrices):
    """Two segments with an array sixteen times as wide in each."""
    for up, down in zip(matrices[::2], matrices[1::2], strict=True):
        x = x + jax.checkpoint(lambda x, up=up, down=down: jax.nn.gelu(x @ up) @ down)(x)
    return (x**2).sum()


GRADIENTS = jax.grad(blocks, argnums=(1, 2, 3, 4))


def test_siblings_wait_for_the_last_of_them_and_keep_what_they_read():
    """What a segment computes again, ``gelu(h)``, is made with the gradient of ``h``, which reads a product more."""
    before, after = ordered(GRADIENTS, *SHAPES)
    product = "dot_general"
    assert names(before)[-6:] == [product, "mul", product, product, "add_any", product]
    assert names(after)[-6:] == [product, product, "mul", "add_any", product, product]
    first, second = after[-4:-2]
    assert first.common == second.common == tuple(sorted(w for k in after[-6:-4] for w in k.step.writes))
    assert first.keeps == second.keeps == set(first.common)
    assert launches(GRADIENTS, *SHAPES) == 2 * [("add_any", "mul")]


def test_the_compiler_has_both_operands_and_both_results_of_siblings_at_once(monkeypatch):
    """Without the rule one result is written early."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES]

    def wide_arrays(peak_bytes):
        return peak_bytes / (4 * 2048 * 4096)

    def peak():
        return wide_arrays(evaluate(jax.make_jaxpr(GRADIENTS)(*args), H100).peak_bytes)

    with_rule = peak()
    monkeypatch.setitem(platforms._BACKENDS, "gpu", GPU.without("siblings"))
    assert with_rule == pytest.approx(peak() + 1.0625)
    pytest.importorskip(CUDA)
    compiled = compile_memory(GRADIENTS, tuple(args), resolve("gpu:h100")).total_bytes
    assert wide_arrays(compiled) == pytest.approx(with_rule, abs=0.05)


def test_sums_of_other_arrays_are_not_waited_for():
    def fun(x, dy, w):
        return conv(jax.nn.relu(x * 2.0), w), conv(dy, w).sum((0, 1, 2))

    before, after = ordered(fun, IMAGES, IMAGES, KERNEL)
    assert after == before


def test_what_a_dilated_convolution_reads_turned_does_not_wait():
    def fun(x, dy, w):
        a = jax.nn.relu(x * 2.0)
        turned = jax.lax.ConvDimensionNumbers((3, 0, 1, 2), (3, 0, 1, 2), (2, 3, 0, 1))
        first = jax.lax.conv_general_dilated(
            a, dy, (1, 1), ((1, 1), (1, 1)), lhs_dilation=(2, 2), dimension_numbers=turned
        )
        g = conv(x, w)
        return first, (g * x).sum((0, 1, 2)), g.sum((0, 1, 2))

    before, after = ordered(fun, IMAGES, (8, 64, 64, 16), KERNEL)
    assert before[0].step.primitive == "layout_copy", "of the activation, which is made in it"
    assert before[0].reads == (0,)
    assert names(after) == names(before)
    assert not after[0].common


def network(wrap):
    """Four blocks of a normalisation over images, ``relu`` and a convolution; each reads what all before it made."""

    @wrap
    def block(kernel, scale, *features):
        joined = jnp.concatenate(features, -1)
        y = (joined - joined.mean((0, 1, 2))) * jax.lax.rsqrt(joined.var((0, 1, 2)) + 1e-5)
        return conv(jax.nn.relu(y * scale), kernel)

    def loss(x, *w):
        features = [x]
        for kernel, scale in zip(w[::2], w[1::2], strict=True):
            features.append(block(kernel, scale, *features))
        return sum((f**2).sum() for f in features)

    return loss


@pytest.mark.parametrize("wrap", [jax.checkpoint, lambda f: f], ids=["segments", "plain"])
def test_every_kernel_runs_once_and_after_what_it_reads(wrap):
    shapes = [shape for i in range(1, 5) for shape in ((3, 3, 16 * i, 16), (16 * i,))]
    before, after = ordered(jax.grad(network(wrap), argnums=tuple(range(1, 9))), IMAGES, *shapes)
    assert sorted(id(k.step) for k in after) == sorted(id(k.step) for k in before)
    assert any(k.common for k in after)
    made_by = {value: id(kernel.step) for kernel in before for value in kernel.step.writes}
    done = set()
    for kernel in after:
        assert {made_by[v] for v in kernel.reads if v in made_by} <= done
        done.add(id(kernel.step))


def test_a_result_that_many_kernels_read_is_left():
    """Whether sums depend on it is followed for a few kernels only; all that is known then is that they may."""

    def fun(x, dy, w):
        a = jax.nn.relu(x * 2.0)
        many = [conv(a, w * float(i)) for i in range(80)]
        g = conv(dy, w)
        return many, (g * x).sum((0, 1, 2)), g.sum((0, 1, 2))

    before, after = ordered(fun, IMAGES, IMAGES, KERNEL)
    assert before[0].step.kind == Kind.CHEAP
    assert not after[0].common


def test_rows_that_loops_read_are_no_partners_of_sums():
    def loss(x, w):
        def step(total, rows):
            y = conv(rows, w)
            return total + jnp.sum((y - jnp.mean(y, (0, 1, 2))) ** 2 * jnp.sum(rows, (0, 1, 2))), None

        return jax.lax.scan(step, 0.0, x.reshape(4, 2, *x.shape[1:]))[0]

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (IMAGES, KERNEL)]
    program = traced(loss, *shapes, argnums=(0, 1))
    assert StepProgram(Rules(program.graph, H100)).loss_timeline(program.plain).seconds > 0
