"""Memory of the table-driven schedules as compiled: slots carries and a constant, for any length."""

import functools

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp

WIDTH, BATCH = 64, 32
CARRY_BYTES = 4 * WIDTH * BATCH


def compiled(length, **options):
    """The gradient step of a tanh RNN of ``length`` steps; inputs are small."""

    def loss(w, h, xs):
        return rp.scan(lambda h, x: (jnp.tanh(h @ w + x), None), h, xs, **options)[0].sum()

    shapes = [jax.ShapeDtypeStruct(s, "float32") for s in ((WIDTH, WIDTH), (BATCH, WIDTH), (length, WIDTH))]
    return jax.jit(jax.grad(loss, (0, 1, 2))).lower(*shapes).compile()


def carries(length, **options):
    return compiled(length, **options).memory_analysis().temp_size_in_bytes / CARRY_BYTES


def test_slots_and_a_constant_whatever_the_length():
    short, long, more = carries(100, slots=8), carries(100_000, slots=8), carries(100_000, slots=24)
    assert short <= long <= short + 1
    assert 24 - 8 <= more - long <= 24 - 8 + 1
    assert long <= 8 + 14


def test_code_does_not_grow_with_the_length():
    sizes = [len(compiled(n, slots=8).as_text()) for n in (100, 100_000)]
    assert sizes[1] < 1.1 * sizes[0]


def test_auto_is_near_its_budget_and_below_plain():
    plain = carries(512, schedule="plain")
    for share in (50, 10):
        assert carries(512, budget=f"{share}%") < share / 100 * plain + 12


def test_while_loop_needs_slots_and_a_constant():
    def loss(h, slots, most):
        far = lambda c: c[1] < most  # noqa: E731
        return rp.while_loop(far, lambda c: (jnp.sin(c[0]), c[1] + 1), (h, 0), most, slots=slots)[0].sum()

    def size(slots, most):
        f = jax.jit(jax.grad(functools.partial(loss, slots=slots, most=most)))
        h = jax.ShapeDtypeStruct((4096,), "float32")
        return f.lower(h).compile().memory_analysis().temp_size_in_bytes / 16384

    few, many = size(8, 1000), size(40, 1_000_000)
    assert few <= 8 + 8
    assert many - few <= 40 - 8 + 1


@pytest.mark.slow
def test_a_million_steps_run():
    def loss(a, xs):
        def body(h, x):
            return h * a + x, None

        return (rp.scan(body, jnp.zeros(64), xs, slots=40)[0] ** 2).sum()

    a, xs = jnp.full(64, 0.999), jnp.full(1_000_000, 1e-3)
    found = jax.jit(jax.grad(loss, (0, 1)))(a, xs)
    # The last carry is 1 almost exactly: x / (1 - a); its derivative by x is a^(n - 1 - i).
    assert abs(float(found[1][-1]) - 2 * 64) < 0.1
    assert abs(float(found[1][-1001]) - 2 * 64 * 0.999**1000) < 0.1
    assert float(found[1][0]) == 0.0
