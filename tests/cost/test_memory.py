"""Live bytes of tiny programs, counted by hand in units of one 128 x 128 float32 matrix."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from remat_plan import _compat
from remat_plan.cost.hardware import Hardware, hardware_for
from remat_plan.cost.memory import evaluate

M = 128 * 128 * 4
X = jax.ShapeDtypeStruct((128, 128), jnp.float32)
GPU = hardware_for("gpu:h100", "gpu")
CPU = hardware_for("cpu", "cpu")
OTHER = Hardware("other", 1e12, 1e12, 1e12)
BACKENDS = pytest.mark.parametrize("hardware", [GPU, CPU], ids=["gpu", "cpu"])


def units(fun, *args, hardware=GPU):
    """The peak, in matrices."""
    return evaluate(jax.make_jaxpr(fun)(*args), hardware).peak_bytes / M


def timeline(fun, *args, hardware=GPU):
    return [b / M for b in evaluate(jax.make_jaxpr(fun)(*args), hardware).live_bytes]


@BACKENDS
def test_argument_and_output_count_all_the_time(hardware):
    assert timeline(lambda x: x @ x, X, hardware=hardware) == [2]


def test_a_chain_of_products_holds_two_temporaries():
    """x, and from the second product on its operand and its result; the sum reads the last."""
    got = timeline(lambda x: (x @ x @ x @ x).sum(), X)
    assert got == pytest.approx([2, 3, 3, 2], abs=1e-3)


def test_outputs_lend_their_memory_until_they_are_written():
    """With a matrix for an output, the first of three temporaries lives in it: 2 + 0, 1, 2, 1."""
    assert timeline(lambda x: x @ x @ x @ x @ x, X) == [2, 3, 4, 3]


def test_reshape_is_free():
    assert units(lambda x: jnp.sin(x.reshape(-1)).reshape(128, 128) @ x, X) == 3


@pytest.mark.parametrize(("hardware", "at_exp"), [(OTHER, 2), (GPU, 3)], ids=["other", "gpu"])
def test_element_wise_writes_over_what_dies(hardware, at_exp):
    """exp is read by two products, so it is written: over the product before it, except where that is in a tuple."""

    def fun(x):
        y = jnp.exp(x @ x)
        return ((y @ x) @ (x @ y)).sum()

    assert timeline(fun, X, hardware=hardware) == pytest.approx([2, at_exp, 3, 4, 4, 2], abs=1e-3)


def test_a_value_is_kept_until_its_last_reader():
    def near(x):
        y = x @ x
        return ((y @ y) @ x @ x @ x).sum()

    def far(x):
        y = x @ x
        return (((y @ x) @ x @ x @ x) @ y).sum()

    assert timeline(near, X) == pytest.approx([2, 3, 3, 3, 3, 2], abs=1e-3)
    assert timeline(far, X) == pytest.approx([2, 3, 4, 4, 4, 4, 2], abs=1e-3)


def test_fused_values_take_no_memory():
    assert units(lambda x: jnp.sum(jnp.sin(x) * jnp.cos(x) + jnp.exp(x)), X) == pytest.approx(1, abs=1e-3)


def test_scan_holds_its_body_once_and_its_stacks_in_full():
    """Five stacked residuals, the carry, and one body."""

    def fun(x):
        return lax.scan(lambda c, _: (jnp.sin(c @ c), None), x, None, length=5)[0].sum()

    plain = units(jax.grad(fun), X)
    body = jax.checkpoint(lambda c, _: (jnp.sin(c @ c), None), prevent_cse=False)
    saved = units(jax.grad(lambda x: lax.scan(body, x, None, length=5)[0].sum()), X)
    assert plain >= 2 + 10  # c and cos(c @ c) of each step
    assert 2 + 5 <= saved < plain


def test_nested_regions_nest():
    def inner(c, _):
        return jnp.tanh(c @ c) @ c @ c, None

    def outer(c, _):
        return lax.scan(inner, c, None, length=3)[0], None

    alone = units(lambda x: lax.scan(inner, x, None, length=3)[0], X)
    nested = units(lambda x: lax.scan(outer, x, None, length=3)[0], X)
    assert alone <= nested <= alone + 2


def test_cond_needs_its_worst_branch():
    def fun(p, x):
        return lax.cond(p, lambda x: x @ x @ x @ x @ x, lambda x: x, x)

    assert units(fun, True, X) > units(lambda p, x: lax.cond(p, lambda x: x + 1, lambda x: x, x), True, X)


@BACKENDS
def test_checkpoint_lowers_the_peak(hardware):
    """Twelve blocks of three: arguments and gradients are 25; 36 residuals become 12 and a block."""

    def gradient(wrap):
        def fun(x, ws):
            for w in ws:
                x = wrap(lambda x, w: jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w))(x, w)
            return x.sum()

        return jax.grad(fun, argnums=1)

    args = (X, [X] * 12)
    plain, segmented = (units(gradient(w), *args, hardware=hardware) for w in (lambda f: f, jax.checkpoint))
    lent = 12  # gradients that are not written yet lend their memory
    assert plain >= 25 + 36 - lent
    assert segmented <= 25 + 12 + 9 - lent


def test_in_place_update_does_not_copy():
    def fun(x):
        big = jnp.sin(x @ x)
        return (lax.dynamic_update_slice(big, x[:1], (0, 0)) @ x).sum()

    at_steps = [2, 2, 2, 2, 3, 2]  # the row is 1/128
    assert timeline(fun, X, hardware=OTHER) == pytest.approx(at_steps, abs=0.01)


def test_flops_do_not_depend_on_fusion_or_backend():
    def loss(x):
        return (jnp.sin(x) @ x + jnp.sin(x) @ x).sum()

    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss))(X)
    gpu, cpu = evaluate(jaxpr, GPU), evaluate(jaxpr, CPU)
    assert gpu.flops == cpu.flops
    products = sum(e.primitive.name == "dot_general" for e in jaxpr.jaxpr.eqns)
    assert gpu.matrix_flops == cpu.matrix_flops == products * 2 * 128**3


def test_recomputing_a_cheap_chain_looks_cheap():
    """Element-wise work inside a kernel costs no memory traffic, so it hardly shows in the seconds."""
    short = evaluate(jax.make_jaxpr(lambda x: (x @ x) + 1)(X), GPU).seconds
    long = evaluate(jax.make_jaxpr(lambda x: (x @ x) * 2 + x - 3 + x * 5)(X), GPU).seconds
    assert long < 1.5 * short


def test_roofline():
    toy = Hardware("toy", 1e9, 1e9, 1e9, step_seconds=1.0)
    compute = toy.work_seconds("product", 2e9), toy.work_seconds("element-wise", 1e9)
    assert toy.kernel_seconds(sum(compute), 1e9) == 4.0
    assert toy.kernel_seconds(compute[1], 5e9) == 6.0


def test_hardware_names():
    assert hardware_for("gpu:h100", "gpu").name == "gpu:h100"
    assert hardware_for("tpu:v5e:1x1", "tpu").name == "tpu:v5e"
    assert hardware_for("gpu:unheard-of", "gpu").name.startswith("gpu")
    assert hardware_for("cpu", "cpu").name == "cpu"


def test_program_without_steps():
    got = evaluate(jax.make_jaxpr(lambda x: x)(X), CPU)
    assert (got.peak_bytes, got.live_bytes, got.seconds) == (M, (), 0.0)


def test_peak_step_names_its_equation():
    got = evaluate(jax.make_jaxpr(lambda x: (x @ x @ x).sum() + np.float32(1))(X), CPU)
    assert got.live_bytes[got.peak_step] == got.peak_bytes
    assert got.equations[got.peak_step].primitive.name in ("dot_general", "reduce_sum")


def test_the_forward_pass_of_a_checkpointed_scan_is_seen_through():
    """However JAX writes it down, it costs what the scan does; nested scans are not priced as unknown."""
    w = jax.ShapeDtypeStruct((128, 128), jnp.float32)

    def loss(wrap):
        def inner(c, w):
            return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), c, None, length=5)[0]

        return lambda w, x: jnp.sum(lax.scan(lambda c, _: (wrap(inner)(c, w), None), x, None, length=4)[0])

    plain, segmented = (
        evaluate(jax.make_jaxpr(jax.value_and_grad(loss(wrap)))(w, X), CPU) for wrap in (lambda f: f, jax.checkpoint)
    )
    assert segmented.matrix_flops == pytest.approx(plain.matrix_flops * 4 / 3)
    assert segmented.seconds < 1.5 * plain.seconds
    assert segmented.peak_bytes < plain.peak_bytes / 2


def test_a_ragged_product_holds_what_the_backend_makes_of_it():
    """XLA:CPU has none, so JAX hands it a product over masked copies of the rows, one for each group."""
    rows, groups = jax.ShapeDtypeStruct((512, 64), jnp.float32), jax.ShapeDtypeStruct((8,), jnp.int32)
    weights = jax.ShapeDtypeStruct((8, 64, 128), jnp.float32)
    fun = jax.grad(lambda w, x, g: jnp.sum(lax.ragged_dot(jnp.tanh(x), w, g) ** 2))
    predicted = evaluate(jax.make_jaxpr(fun)(weights, rows, groups), CPU).peak_bytes
    found = jax.jit(fun).lower(weights, rows, groups).compile().memory_analysis()
    compiled = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    assert predicted == pytest.approx(compiled, rel=0.15)


T, B, H = 32, 64, 128
STACK = T * B * H * 4


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def recurrence(x, w):
    return lax.scan(lambda c, x: (jnp.tanh(c @ w + x),) * 2, jnp.zeros((B, H)), x)[1]


def two_ways(x, w):
    return jnp.concatenate(
        [recurrence(x, w), lax.scan(lambda c, x: (jnp.tanh(c @ w + x),) * 2, x[0], x, reverse=True)[1]]
    )


def in_steps_of(count, wrap):
    def loss(x, w):
        inner = wrap(lambda c: lax.scan(lambda c, _: (jnp.tanh(c @ w), None), c, None, length=count)[0])
        return jnp.sum(lax.scan(lambda c, _: (inner(c), None), x[0], None, length=count)[0])

    return loss


def until_it_is_large(x, w):
    def step(state):
        i, c = state
        return i + 1, lax.scan(lambda c, x: (jnp.sin(c @ w + x), None), c, x)[0]

    return jnp.sum(lax.while_loop(lambda s: s[0] < jnp.int32(jnp.sum(w)), step, (0, x[0]))[1])


def runge_kutta(x, w):
    def step(c, _):
        first = jnp.tanh(c @ w)
        second = jnp.tanh((c + first / 2) @ w)
        return c + (first + 2 * second) / 3, None

    return jnp.sum(lax.scan(step, x[0], None, length=T)[0] ** 2)


LOOPS = {
    "one layer": jax.grad(lambda x, w: jnp.sum(recurrence(x, w) ** 2), 1),
    "two layers": jax.grad(lambda x, w: jnp.sum(recurrence(recurrence(x, w), w) ** 2), 1),
    "two ways": jax.grad(lambda x, w: jnp.sum(two_ways(x, w) ** 2), 1),
    "fixed steps": jax.grad(runge_kutta, 1),
    "scan of scans": jax.grad(in_steps_of(8, lambda f: f), 1),
    "scan of segments": jax.grad(in_steps_of(8, jax.checkpoint), 1),
    "scan in a while loop": until_it_is_large,
}


@pytest.mark.filterwarnings("ignore:remat_plan")
@pytest.mark.skipif(_compat.jaxlib_version() < (0, 12), reason="the rules were read off jaxlib 0.12")
@pytest.mark.parametrize("name", LOOPS)
def test_loops_hold_what_the_compiler_says(name):
    """Carries are written over, rows are slices, stacks of all scans are there from the start."""
    args = (f32(T, B, H), f32(H, H))
    predicted = evaluate(jax.make_jaxpr(LOOPS[name])(*args), CPU).peak_bytes
    found = jax.jit(LOOPS[name]).lower(*args).compile().memory_analysis()
    compiled = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    assert predicted == pytest.approx(compiled, rel=0.03)


@pytest.mark.parametrize(("order", "slower"), [((0, 2, 1, 3), False), ((0, 2, 3, 1), True), ((3, 1, 2, 0), True)])
def test_only_copies_that_split_rows_are_slow(order, slower):
    """One that puts the heads of attention before its positions leaves rows whole."""
    cpu = replace(hardware_for("cpu", "cpu"), turned_bytes_per_second=1e8, turned_operand_bytes_per_second=1e8)
    jaxpr = jax.make_jaxpr(lambda x: jnp.transpose(x, order))(f32(4, 64, 12, 64))
    plain = evaluate(jaxpr, hardware_for("cpu", "cpu")).seconds
    assert (evaluate(jaxpr, cpu).seconds > 10 * plain) == slower
