"""``rp.while_loop`` against the same loop unrolled: values, gradients, bounds, transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remat_plan as rp
from tests.helpers import assert_trees_close

EXACT = {"rtol": 1e-11, "atol": 1e-13}


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def unrolled(w, h, limit):
    for _ in range(limit):
        h = jnp.tanh(h @ w + 0.1)
    return (h**2).sum() + limit


def looped(w, h, limit, slots=3, max_steps=40):
    """The limit is traced; weights and limit are closed over."""
    carry = (h, 0)
    last, count = rp.while_loop(
        lambda c: c[1] < limit, lambda c: (jnp.tanh(c[0] @ w + 0.1), c[1] + 1), carry, max_steps, slots=slots
    )
    return (last**2).sum() + count


W = np.random.default_rng(0).normal(size=(3, 3))
H = np.ones((2, 3))


@settings(max_examples=2)
@given(st.integers(1, 9), st.lists(st.integers(0, 39), min_size=4, max_size=4))
def test_gradients_for_any_trip_count(slots, limits):
    step = jax.jit(jax.value_and_grad(lambda w, h, limit: looped(w, h, limit, slots), (0, 1)))
    for limit in limits:
        want = jax.value_and_grad(unrolled, (0, 1))(W, H, limit)
        assert_trees_close(step(W, H, limit), want, **EXACT)


def test_trip_counts_that_differ_under_vmap():
    limits = jnp.array([3, 0, 11])
    found = jax.jit(jax.vmap(jax.grad(looped), (None, None, 0)))(W, H, limits)
    for g, limit in zip(found, (3, 0, 11), strict=True):
        assert_trees_close(g, jax.grad(unrolled)(W, H, limit), **EXACT)


def test_too_many_steps_are_told():
    with pytest.raises(RuntimeError, match="still holds after max_steps=5"):
        looped(W, H, 6, max_steps=5)
    assert float(looped(W, H, 5, max_steps=5)) == pytest.approx(float(unrolled(W, H, 5)))

    @jax.jit
    def step(limit):
        start = jnp.ones(2), jnp.int32(7), jnp.uint8(7), True
        run = lambda h: rp.while_loop(  # noqa: E731
            lambda c: c[1] < limit, lambda c: (c[0] * h, c[1] + 1, c[2], c[3]), start, max_steps=5
        )
        return run(2.0), jax.grad(lambda h: run(h)[0].sum())(2.0)

    (h, count, small, flag), gradient = step(13)
    assert np.isnan(h).all()
    assert int(count) == np.iinfo(np.int32).min
    assert int(small) == 255
    assert np.isnan(gradient)
    (h, count, small, flag), gradient = step(12)
    assert h.tolist() == [32.0, 32.0]
    assert float(gradient) == 2 * 5 * 2.0**4


def test_without_a_bound():
    find = lambda a: rp.while_loop(lambda x: jnp.abs(x * x - a) > 1e-12, lambda x: (x + a / x) / 2, a)  # noqa: E731
    assert float(jax.grad(find)(9.0)) == pytest.approx(1 / 6)


def test_derivatives_of_the_gradient():
    along = lambda f: jax.jvp(jax.grad(f), (W,), (W,))[1]  # noqa: E731
    assert_trees_close(along(lambda w: looped(w, H, 7)), along(lambda w: unrolled(w, H, 7)), **EXACT)
    with pytest.raises(TypeError, match="rp.while_loop has no forward-mode derivative"):
        jax.jvp(lambda w: looped(w, H, 7), (W,), (W,))
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(lambda w: jax.grad(looped)(w, H, 7).sum())(W)


def test_bad_input_is_explained():
    bad = [
        (ValueError, "slots=0", {"slots": 0}),
        (TypeError, "slots=2.0: give an integer", {"slots": 2.0}),
        (ValueError, "max_steps=0: give an integer of at least 1", {"max_steps": 0}),
        (TypeError, "max_steps='9': give an integer", {"max_steps": "9"}),
    ]
    for error, text, options in bad:
        with pytest.raises(error, match=text):
            rp.while_loop(lambda x: x < 3, lambda x: x + 1, 0, **options)
    with pytest.raises(TypeError, match="the condition must return one boolean scalar, not float64"):
        rp.while_loop(lambda x: x, lambda x: x + 1, 0.0)
    with pytest.raises(
        TypeError, match=r"rp.while_loop: the carry changes its type .* carry\[1\] goes in as float64\[2\]"
    ):
        rp.while_loop(lambda c: c[0] < 3, lambda c: (c[0], c[1].sum()), (0, jnp.ones(2)))
