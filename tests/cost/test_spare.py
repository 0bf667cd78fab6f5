"""Memory of outputs that are not written yet: what lies in it, inside loops too. In units of one 128 x 128 matrix."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate
from remat_plan.cost.spare import bytes_without, place
from remat_plan.cost.steps import RegionCost
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve

M = 128 * 128 * 4
X = jax.ShapeDtypeStruct((128, 128), jnp.float32)
CPU = hardware_for("cpu", "cpu")


def check(fun, *args, peak):
    """Compare a peak with what is predicted and with what is compiled."""
    predicted, compiled = evaluate(jax.make_jaxpr(fun)(*args), CPU), compile_memory(fun, args, resolve("cpu"))
    assert (predicted.peak_bytes / M, compiled.total_bytes / M) == (pytest.approx(peak, abs=0.02),) * 2


def test_what_a_loop_makes_lies_in_the_memory_of_what_is_returned():
    """x, what is returned, and two more arrays of a step: the third one lies in what is returned."""

    def fun(x):
        def step(c, _):
            first = (x + c) @ x
            second = jnp.sin(first) @ x
            return c + jnp.max((first + second) @ second @ x[:, :1]), None

        total, _ = lax.scan(step, 0.0, None, length=3)
        return x * total

    check(fun, X, peak=4)


def test_what_enters_a_loop_and_what_leaves_it_are_one_piece_of_memory():
    """x, the sum, what is returned, and one array of a step: the other one lies in what is returned, the sum does not."""

    def fun(x):
        total, _ = lax.scan(lambda c, _: (c + (x + c) @ x, None), jnp.ones_like(x), None, length=3)
        return jnp.sin(total) @ x

    check(fun, X, peak=4)


def test_arrays_of_one_number_are_made_inside_of_loops():
    """x, three arrays of a step, and no zeros."""

    def fun(x):
        zeros = jnp.zeros_like(x)

        def step(c, _):
            chosen = jnp.where(x > c, (x + c) @ x, zeros)
            return c + jnp.max(chosen @ (chosen + x) @ x[:, :1]), None

        return lax.scan(step, 0.0, None, length=3)[0]

    check(fun, X, peak=4)


def test_the_cotangent_of_a_loss_is_one():
    """What a loop adds up for a gradient is returned as it is: x, w, the gradient, and two arrays of a step."""

    @jax.custom_jvp
    def loss(w, x):
        return jnp.sum(x @ w)

    @loss.defjvp
    def _(args, tangents):
        (w, x), (dw, _) = args, tangents
        step = lambda c, _: (c + x @ jnp.sin((x + c) @ w), None)  # noqa: E731
        gradient, _ = lax.scan(step, jnp.zeros_like(w), None, length=3)
        return loss(w, x), jnp.sum(gradient * dw)

    check(jax.grad(loss), X, X, peak=5)


def test_buffers_are_placed_largest_first_where_room_ends_soonest():
    buffers = {"large": (4, 2, 3), "late": (2, 5, 6), "early": (2, 0, 1), "long": (2, 0, 9), "huge": (9, 0, 0)}
    assert place(buffers, [(4, 0, 7)]) == {"large", "early", "late"}
    assert place(buffers, [(4, 0, 7), (2, 0, 10)]) == {"large", "early", "late", "long"}
    assert place(buffers, [(4, 3, 3)]) == place({}, [(4, 0, 7)]) == set()


INTERVALS = st.tuples(st.integers(1, 4), st.integers(0, 6), st.integers(0, 3)).map(lambda b: (b[0], b[1], b[1] + b[2]))


@given(st.lists(INTERVALS, max_size=8), st.lists(INTERVALS, max_size=3))
def test_there_is_room_for_all_that_is_placed(buffers, spans):
    found = place(dict(enumerate(buffers)), spans)
    for step in range(11):
        there = sorted([buffers[n][0] for n in found if buffers[n][1] <= step <= buffers[n][2]], reverse=True)
        room = sorted([size for size, start, end in spans if start <= step < end], reverse=True)
        assert len(there) <= len(room)
        assert all(size <= span for size, span in zip(there, room, strict=False))


def test_what_lies_elsewhere_is_not_needed_inside():
    region = RegionCost(7, live_bytes=(3, 7, 4), buffers=((3, 0, 1), (4, 1, 2)))
    assert bytes_without(region, [0]) == 4
    assert bytes_without(region, [1]) == 3
    assert bytes_without(region, [0, 1]) == 0
