"""Scans in scans: factors, lengths that do not divide, memory as compiled."""

import functools

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.loops.nested import check_factors, log_factors, nested_scan, sqrt_factors

WIDTH, BATCH = 64, 16
CARRY_BYTES = 4 * WIDTH * BATCH
INPUT_BYTES = 4 * WIDTH * WIDTH


def temporaries(scan, length, argnum=1):
    """Compiled temporaries of the gradient of a chain of layers with stacked weights."""

    def loss(h, ws):
        return scan(lambda h, w: (jnp.tanh(h @ w), None), h, ws)[0].sum()

    shapes = jax.ShapeDtypeStruct((BATCH, WIDTH), "float32"), jax.ShapeDtypeStruct((length, WIDTH, WIDTH), "float32")
    return jax.jit(jax.grad(loss, argnum)).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def nested(length, factors):
    return functools.partial(nested_scan, length=length, factors=factors)


@pytest.mark.parametrize("length", [61, pytest.param(97, marks=pytest.mark.slow)])
def test_prime_lengths_copy_no_inputs(length):
    """A few carries and rows more than the nearest length that divides, far from a copy of the stacked weights."""
    size = temporaries(nested(length, sqrt_factors(length)), length)
    near = {61: (64, (8, 8)), 97: (100, (10, 10))}[length]
    assert size < temporaries(nested(*near), near[0]) + 25 * CARRY_BYTES
    assert size < 0.5 * length * INPUT_BYTES


def test_memory_falls_from_plain_to_each_to_sqrt():
    length = 256
    plain = temporaries(lambda b, h, ws: jax.lax.scan(b, h, ws), length)
    each = temporaries(functools.partial(rp.scan, length=length, schedule="each"), length)
    sqrt = temporaries(nested(length, sqrt_factors(length, 6.0)), length)
    assert each < 0.6 * plain
    assert sqrt < 0.6 * each


def test_log_grows_with_the_logarithm():
    """Without inputs to copy: 4 times the length, about one more level of 4 carries."""

    def size(length):
        def loss(h):
            scan = nested(length, log_factors(length))
            return scan(lambda h, _: (jnp.sin(h), None), h, None)[0].sum()

        h = jax.ShapeDtypeStruct((4096,), "float32")
        return jax.jit(jax.grad(loss)).lower(h).compile().memory_analysis().temp_size_in_bytes / 16384

    sizes = [size(n) for n in (64, 256, 1024)]
    assert sizes[2] < 40
    assert all(b - a < 8 for a, b in zip(sizes, sizes[1:], strict=False))


def test_factors():
    assert sqrt_factors(100) == (10, 10)
    assert sqrt_factors(61)[0] * sqrt_factors(61)[1] >= 61
    assert sqrt_factors(100, 4.0) == (20, 5)
    for n in (1, 2, 5, 61, 1000):
        factors = log_factors(n)
        assert check_factors(factors, n, "scan") == factors
        assert max(factors) <= 4


@pytest.mark.parametrize("reverse", [pytest.param(False, marks=pytest.mark.slow), True])
def test_outputs_are_stacked_in_order(reverse):
    for length, factors in ((7, (3, 3)), (7, (2, 2, 2)), (3, (5, 2)), (1, (2, 2)), (11, (11,)), (11, (1, 3, 4))):
        run = functools.partial(lambda c, x: (c + x, {"c": c, "x": 2 * x}))
        want = jax.lax.scan(run, 0, jnp.arange(length), reverse=reverse)
        found = nested_scan(run, 0, jnp.arange(length), length, factors, reverse=reverse)
        assert int(found[0]) == int(want[0])
        assert found[1]["c"].tolist() == want[1]["c"].tolist()
        assert found[1]["x"].tolist() == want[1]["x"].tolist()
