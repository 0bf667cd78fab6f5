"""Seconds by rates: classes of work, the cache, fresh memory, steps of loops."""

from dataclasses import replace
from statistics import median

import jax
import jax.numpy as jnp
import pytest

from benchmarks.common import RESULTS, Options
from benchmarks.predictions import steps_of
from benchmarks.timing import SIZES, Store, predict
from remat_plan.compiled.seconds import CLOCK_HERTZ
from remat_plan.cost import hardware as table
from remat_plan.cost.hardware import Hardware, hardware_for
from remat_plan.cost.memory import evaluate
from remat_plan.cost.work import work_class
from tests.cost.tpu_kernels import KERNELS

TOY = Hardware("gpu:toy", 1e12, 1e10, 1e13)
X = jnp.ones((512, 512))


def classes(fn, *args):
    return [work_class(eqn) for eqn in jax.make_jaxpr(fn)(*args).jaxpr.eqns]


def conv(x, w, **settings):
    given = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC"), **settings}
    return jax.lax.conv_general_dilated(x, w, **given)


@pytest.mark.parametrize(
    ("fn", "args", "work"),
    [
        (jnp.matmul, (X, X), "product large float32"),
        (jnp.matmul, (X[:, :64], X[:64]), "product thin float32"),
        (jnp.matmul, (jnp.ones((4, 256, 64)), jnp.ones((4, 64, 256))), "product batched float32"),
        (jnp.matmul, (X.astype(jnp.bfloat16), X.astype(jnp.bfloat16)), "product large bfloat16"),
        (conv, (jnp.ones((1, 16, 16, 4)), jnp.ones((3, 3, 4, 4))), "convolution window float32"),
        (conv, (jnp.ones((1, 16, 16, 4)), jnp.ones((1, 1, 4, 4))), "convolution pointwise float32"),
        (conv, (jnp.ones((1, 32, 32, 4)), jnp.ones((30, 30, 4, 4))), "convolution kernel-gradient float32"),
        (
            lambda x, w: conv(x, w, padding=((1, 1), (1, 1)), lhs_dilation=(2, 2)),
            (jnp.ones((1, 16, 16, 4)), jnp.ones((3, 3, 4, 4))),
            "convolution dilated float32",
        ),
        (conv, (jnp.ones((1, 2, 2, 4)), jnp.ones((3, 3, 4, 4))), "convolution narrow float32"),
        (jnp.tanh, (X,), "tanh float32"),
        (lambda x: x + x, (X,), "element-wise float32"),
    ],
)
def test_an_equation_is_of_one_class(fn, args, work):
    assert work in classes(fn, *args)


def test_rows_and_columns_are_summed_at_rates_of_their_own():
    assert "reduce rows float32" in classes(lambda x: jnp.sum(x, axis=1), X)
    assert "reduce columns float32" in classes(lambda x: jnp.sum(x, axis=0), X)


def test_a_measured_rate_counts_for_its_class_only():
    jaxpr = jax.make_jaxpr(lambda x: jnp.tanh(x @ x))(X)
    slow = replace(TOY, rates={"product large float32": 1e9})
    extra = 2 * 512**3 * (1 / 1e9 - 1 / 1e12)
    assert evaluate(jaxpr, slow).seconds == pytest.approx(evaluate(jaxpr, TOY).seconds + extra)
    other = replace(TOY, rates={"product thin float32": 1e9})
    assert evaluate(jaxpr, other).seconds == evaluate(jaxpr, TOY).seconds


def test_fresh_memory_costs_by_the_byte_of_temporaries_above_a_size():
    jaxpr = jax.make_jaxpr(lambda x: jnp.sum(jnp.sin(x @ x) @ x))(X)
    before = evaluate(jaxpr, TOY)
    temporary = before.peak_bytes - before.argument_bytes - before.output_bytes
    assert temporary >= 2 * X.nbytes
    fresh = replace(TOY, fresh_seconds_per_byte=1e-9, fresh_least_bytes=temporary)
    assert evaluate(jaxpr, fresh).seconds == pytest.approx(before.seconds + 1e-9 * temporary)
    assert evaluate(jaxpr, replace(fresh, fresh_least_bytes=temporary + 1)) == before


def test_what_is_written_in_another_order_is_charged_for_every_operand_read_in_strides():
    """XLA:CPU writes the left operand of ``(x + y).T @ z`` in another order, and fuses the sum into that."""
    cpu = Hardware("cpu", 1e11, 2.5e10, 1e12)
    turning = replace(cpu, turned_bytes_per_second=1e9, turned_operand_bytes_per_second=1e8)

    def extra(fn, *args):
        jaxpr = jax.make_jaxpr(fn)(*args)
        return evaluate(jaxpr, turning).seconds - evaluate(jaxpr, cpu).seconds

    rows = jnp.ones((4, 128, 512))

    def contracted(x):
        return jnp.einsum("bsi,bsj->ij", x, rows)

    assert extra(lambda x, y: x @ y, X, X) == 0.0
    one = extra(contracted, rows)
    assert one == pytest.approx(2 * 2 * rows.nbytes / 1e9 - 4 * rows.nbytes / 1e12, rel=0.5)
    assert extra(lambda x, y: contracted(x + y), rows, rows) > one + 2 * rows.nbytes / 1e8


def test_each_step_of_a_loop_costs_something():
    def fn(x):
        return jax.lax.fori_loop(0, 100, lambda _, x: x + 1, x)

    jaxpr = jax.make_jaxpr(fn)(X)
    more = evaluate(jaxpr, replace(TOY, loop_seconds=1e-3)).seconds - evaluate(jaxpr, TOY).seconds
    assert more == pytest.approx(0.1)


def test_rates_of_the_table_are_found_by_target_and_by_kind():
    assert hardware_for("gpu:h100", "gpu").name == "gpu:h100"
    assert hardware_for("default", "gpu", "NVIDIA A100-SXM4-80GB").name == "gpu:a100"
    assert not hardware_for("cpu", "cpu").measured


def test_a_class_of_any_type_has_a_rate():
    typed = Hardware("toy", 1e9, 1e9, 1e9, rates={"exp": 1e3, "exp float32": 1e6})
    assert typed.work_seconds("exp float32", 1e6) == 1.0
    assert typed.work_seconds("exp bfloat16", 1e3) == 1.0


def test_what_fits_on_the_chip_moves_faster():
    """A result that fits does; of a product, what does not fit as well is as far as memory."""
    tpu = replace(hardware_for("tpu:v5e:1x1", "tpu"), step_seconds=0.0, matrix_flops=1e30)
    chip = tpu.cache_bytes

    def seconds(fun, rows, columns):
        x = jax.ShapeDtypeStruct((rows, columns), jnp.float32)
        return evaluate(jax.make_jaxpr(fun)(x), tpu).seconds

    mib = 1 << 20
    result = seconds(lambda x: x * 2, 4096, 4096)
    assert result == pytest.approx(64 * mib / tpu.bytes_per_second + 64 * mib / tpu.cache_bytes_per_second)
    read = 2 * chip  # and the product, 4 MiB
    product = seconds(lambda x: x.T @ x, 1 << 16, 1 << 10)
    assert product == pytest.approx((read + 4 * mib - chip) / tpu.bytes_per_second + chip / tpu.cache_bytes_per_second)


@pytest.mark.parametrize(("fun", "dtype", "cycles"), KERNELS)
def test_kernels_of_a_tpu_take_what_xla_estimates(fun, dtype, cycles):
    """Of a size that the chip does not hold: of smaller ones the result may stay there, and is counted at a quarter."""
    x = jax.ShapeDtypeStruct((1 << 17, 1 << 10), dtype)
    seconds = evaluate(jax.make_jaxpr(fun)(x), hardware_for("tpu:v5e:1x1", "tpu")).seconds
    assert seconds * CLOCK_HERTZ["tpu:v5e"] / (x.size / 1024) == pytest.approx(cycles, rel=0.15)


def scanned(rows):
    """A loop of so many steps, each of which reads a row and writes one."""

    def loss(x, w):
        def step(carry, wi):
            return jnp.sin(carry) * wi, jnp.cos(carry)

        carry, stacked = jax.lax.scan(step, x, w)
        return carry, stacked

    row = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return jax.make_jaxpr(loss)(row, jax.ShapeDtypeStruct((rows, 256, 256), jnp.float32))


def test_rows_of_a_loop_come_from_memory_though_a_cache_would_hold_them():
    toy = replace(TOY, vector_flops=1e18, bytes_per_second=1e9)
    cached = replace(toy, cache_bytes=1 << 30, cache_bytes_per_second=1e18)
    row = 4 * 256 * 256
    body = 2 * row  # a row is read, another is written; the carry is in the cache
    step = evaluate(scanned(11), cached).seconds - evaluate(scanned(10), cached).seconds
    assert step == pytest.approx((body + row) / 1e9, rel=0.01), "with the zeros that the row is written over"
    assert evaluate(scanned(11), toy).seconds - evaluate(scanned(10), toy).seconds > 1.3 * step


def test_bytes_that_no_cache_holds():
    cached = replace(TOY, bytes_per_second=1e9, cache_bytes=1000, cache_bytes_per_second=1e10)
    assert cached.kernel_seconds(0.0, 1000) == pytest.approx(1e-7)
    assert cached.kernel_seconds(0.0, 1000, far_bytes=500) == pytest.approx(5e-7 + 5e-8)
    assert cached.kernel_seconds(0.0, 1400, far_bytes=500) == pytest.approx(5e-7 + 9e-8), "the others fit"
    assert cached.kernel_seconds(0.0, 1600, far_bytes=500) == pytest.approx(1.6e-6), "the others do not"


def test_zeros_of_stacks_are_written_on_a_gpu_and_left_out_on_a_tpu():
    rates = {"vector_flops": 1e18, "bytes_per_second": 1e9}
    gpu, tpu = replace(TOY, **rates), replace(TOY, name="tpu:toy", **rates)
    stack = 10 * 4 * 256 * 256
    assert evaluate(scanned(10), gpu).seconds - evaluate(scanned(10), tpu).seconds == pytest.approx(stack / 1e9)


def test_arithmetic_and_fresh_memory_of_a_cpu_scale_with_its_cores_and_the_memory_does_not(monkeypatch):
    monkeypatch.setattr(table.os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert table._cores() == 3
    two, four = table._cpu(2), table._cpu(4)
    work = "convolution kernel-gradient float32"
    for seconds in (lambda h: h.work_seconds(work, 1e9), lambda h: h.work_seconds("exp float32", 1e9),
                    lambda h: h.fresh_seconds(1 << 30), lambda h: h.kernel_seconds(0, 1e9, turned_operands=1)):  # fmt: skip
        assert seconds(two) == pytest.approx(2 * seconds(four))
    assert two.kernel_seconds(0, 1e9) == four.kernel_seconds(0, 1e9)
    assert two.work_seconds("product small float32", 1e9) == four.work_seconds("product small float32", 1e9)
    assert two.fresh_seconds((32 << 20) - 1) == 0


@pytest.mark.slow
def test_first_plans_for_a_cpu_are_predicted_within_five_points_of_the_clock():
    """What two cores took is kept with the table of timings; nothing of the profile was read off these models."""
    steps = steps_of("llama", Options(), SIZES)
    ran = [s for s in Store.read(RESULTS / "timing.json").steps if s.model == "llama"]
    off = [row.rates - row.measured.overhead for row in predict(steps, ran, table._cpu(2))]
    assert len(off) == 6
    assert median(map(abs, off)) < 0.05
