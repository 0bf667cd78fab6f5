"""What overhead is set against."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from remat_plan.report.progress import Progress
from remat_plan.search.judge import Judge
from remat_plan.verify.targets import resolve
from tests.helpers import traced

W, X = [jnp.ones((128, 128)) / 128] * 4, jnp.ones((512, 128))


def loss(weights, x):
    """Normalisations as they are written everywhere: ``x - mean(x)`` stands in each twice."""
    for w in weights:
        mean = jnp.mean(x, -1, keepdims=True)
        variance = jnp.mean((x - mean) ** 2, -1, keepdims=True)
        x = x + jnp.tanh(((x - mean) * jax.lax.rsqrt(variance + 1e-6)) @ w)
    return jnp.mean(x**2)


def make(measured):
    judge = Judge(traced(loss, W, X), resolve("cpu"), Progress("test", False))
    judge.hardware = replace(judge.hardware, measured=measured, turned_operand_bytes_per_second=1e9)
    return judge


def test_measured_rates_set_overhead_against_the_function_as_it_is():
    judge = make(measured=True)
    plain = judge.program.plain
    assert judge.unplanned != plain
    as_it_is, merged = judge.traced(judge.unplanned).seconds, judge.traced(plain).seconds
    assert as_it_is > merged
    assert judge.plain_seconds == judge.timeline(plain).seconds * as_it_is / merged
    assert judge.overhead(judge.unplanned) == 0.0
    assert judge.overhead(plain) < 0


def test_data_sheets_set_it_against_the_program_that_the_bound_is_of():
    judge = make(measured=False)
    assert judge.plain_seconds == judge.timeline(judge.program.plain).seconds
    assert judge.overhead(judge.program.plain) == judge.overhead(judge.unplanned) == 0.0
