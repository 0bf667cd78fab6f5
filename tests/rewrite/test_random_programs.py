"""Random programs under random schedules: values, gradients and tangents are those of the function, in float64."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import (
    assert_trees_close,
    flat_gradient,
    plain_gradient,
    planner_schedules,
    random_schedule,
    traced,
    under,
)
from tests.programs.generator import arguments, draw, loss_of
from tests.programs.structures import STRUCTURES

pytestmark = pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive .* is not known:UserWarning")

MOVING = 4
"""So many leaves of the arguments are floating point: three of the parameters and the rows."""

DIFFERENTIABLE = tuple(name for name in STRUCTURES if name not in ("custom_vjp", "while"))
"""Structures that can be pushed forward (a ``custom_vjp`` cannot), and whose length is known."""


def programs(longest=14):
    """Operations only, or structures with operations inside; hypothesis draws, so it shrinks what fails."""
    return st.builds(
        lambda rng, depth: draw(rng, longest, depth, DIFFERENTIABLE),
        st.randoms(use_true_random=False),
        st.sampled_from([0, 0, 1]),
    )


def check(program, seed):
    with jax.enable_x64(True):
        args = arguments(dtype=jnp.float64)
        traced_program = traced(loss_of(program), *args, has_aux=True)
        leaves = traced_program.call.leaves
        assert leaves[0].dtype == jnp.float64
        (value, aux), gradients = jax.jit(plain_gradient(traced_program))(*leaves)
        schedules = [random_schedule(traced_program, seed), *planner_schedules(traced_program, 2)[:1]]
        directions = tuple(jnp.ones_like(x) for x in leaves[:MOVING])

        def tangent(run):
            return jax.jit(lambda *xs: jax.jvp(lambda *xs: run(*xs, *leaves[MOVING:])[0], xs, directions))(
                *leaves[:MOVING]
            )

        slope = tangent(traced_program.call.flat_fn)
        for schedule in schedules:
            got = jax.jit(flat_gradient(traced_program, schedule))(*leaves)
            assert_trees_close(got, ((value, aux), gradients), 1e-6, 1e-6)
            assert_trees_close(tangent(under(traced_program, schedule)), slope, 1e-6, 1e-6)


@settings(max_examples=1)
@given(programs(), st.integers(0, 10**6))
def test_random_programs(program, seed):
    check(program, seed)


@pytest.mark.slow
@settings(max_examples=300)
@given(programs(longest=30), st.integers(0, 10**6))
def test_many_random_programs(program, seed):
    check(program, seed)
