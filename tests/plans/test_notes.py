"""What a plan says beside its figures."""

import re

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.small.budget import parse_budget

IMAGES = jax.ShapeDtypeStruct((64, 28, 28, 1), jnp.float32)
FILTERS = [jax.ShapeDtypeStruct((3, 3, *channels), jnp.float32) for channels in ((1, 16), (16, 32))]


def network(filters, x):
    for kernel in filters:
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x)
    return jnp.mean(x**2)


def slow_note(**options):
    plan = rp.plan(network, FILTERS, IMAGES, target="cpu", verify=False, **options)
    notes = [note for note in plan.notes if "slow" in note]
    return plan, notes[0] if notes else None


def test_where_the_last_bytes_take_most_of_the_time_the_memory_is_told_that_does_not():
    """Batches of images in slices: gradients of convolutions run far slower in loops on a CPU."""
    plan, note = slow_note(budget="60%")
    assert plan.overhead > 1
    needed, overhead = re.match(
        r"this budget is slow to meet: at a peak of (.*) the predicted overhead is (.*)%", note
    ).groups()
    larger, quiet = slow_note(budget=int(1.01 * parse_budget(needed).size_bytes))
    assert quiet is None
    assert larger.overhead == pytest.approx(float(overhead) / 100, abs=0.01)
    assert larger.overhead < 0.2


@pytest.mark.parametrize("options", [{"budget": "95%"}, {"strategy": "memory"}])
def test_nothing_is_told_where_a_step_is_not_slow(options):
    assert slow_note(**options)[1] is None
