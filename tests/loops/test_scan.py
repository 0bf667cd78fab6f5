"""``rp.scan`` against ``jax.lax.scan``: values and gradients, in double precision, under every schedule and transform."""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remat_plan as rp
from remat_plan.loops.binomial import binomial_scan
from remat_plan.loops.body import prepare
from remat_plan.loops.taped import make_taped
from tests.helpers import assert_trees_close

CHECKPOINTED = ("plain", "each", "sqrt", "log", ("nested", (3, 5)), ("nested", (2, 3, 3)))
EXACT = {"rtol": 1e-11, "atol": 1e-13}


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def inputs(length, width=4, batch=2):
    keys = jax.random.split(jax.random.key(length), 3)
    w = jax.random.normal(keys[0], (width, width))
    h = jax.random.normal(keys[1], (batch, width))
    return w, h, jax.random.normal(keys[2], (length, batch, width))


def rnn(scan, w, h, xs):
    """A recurrent network whose weights are closed over and whose outputs count too."""

    def body(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h.sum()

    h, ys = scan(body, h, xs)
    return (h**2).sum() + jnp.sin(ys).sum()


def gradient(scan, argnums=(0, 1, 2)):
    return jax.value_and_grad(functools.partial(rnn, scan), argnums)


def ours(**options):
    return functools.partial(rp.scan, **options)


@pytest.mark.parametrize(
    ("length", "reverse"),
    [(13, True), (1, False), *(pytest.param(*c, marks=pytest.mark.slow) for c in ((13, False), (1, True)))],
)
def test_every_schedule_has_the_gradients_of_lax_scan(length, reverse):
    """Under one jit for all: value, and gradients of weights, first carry and inputs."""
    args = inputs(length)
    options = [{"schedule": s} for s in (CHECKPOINTED[2:5] if reverse else CHECKPOINTED)]
    options += [{"schedule": "binomial", "slots": s} for s in (1, 3)] + [{}] + [{"budget": "60%"}] * (length > 1)

    @jax.jit
    def all_gradients(*args):
        return [gradient(ours(reverse=reverse, **o))(*args) for o in options]

    want = jax.jit(gradient(functools.partial(jax.lax.scan, reverse=reverse)))(*args)
    for found in all_gradients(*args):
        assert_trees_close(found, want, **EXACT)


@settings(max_examples=3)
@given(st.integers(1, 24), st.integers(1, 6), st.integers(1, 4))
def test_binomial_for_any_length_slots_and_tape(length, slots, tape):
    args = inputs(length, 2, 1)
    want = jax.jit(gradient(jax.lax.scan))(*args)

    def scan(body, init, xs):
        loop = prepare(body, init, xs, length, "test")
        carry, ys = binomial_scan(loop, slots, tape, False)
        return loop.body.carry.pack(carry), loop.body.y.pack(ys)

    assert_trees_close(jax.jit(gradient(scan))(*args), want, **EXACT)


def mixed(scan, scale, xs):
    """Integer, key and boolean carries, inputs and outputs; a traced integer and a key closed over."""
    key, factor = jax.random.key(3), jnp.int32(scale[0]) * 0 + 2

    def body(carry, x):
        h, (count, stream), odd = carry
        stream, now = jax.random.split(stream)
        noise = jax.random.normal(jax.random.fold_in(now, count), h.shape) + jax.random.uniform(key)
        h = jnp.sin(h * scale + x["a"] * factor) + 0.1 * noise * odd
        return (h, (count + x["step"], stream), ~odd), {"h": h, "count": count, "key": now, "none": None}

    start = (scale * 0.5, (0, jax.random.key(1)), True)
    (h, (count, stream), _), ys = scan(body, start, xs)
    bits = jax.random.key_data(stream).sum() + jax.random.key_data(ys["key"]).sum()
    return h.sum() + (ys["h"] ** 2).sum() + count, (ys["count"], bits)


@pytest.mark.parametrize("schedule", ["sqrt", pytest.param("binomial", marks=pytest.mark.slow)])
def test_integers_keys_and_closed_over_values(schedule):
    xs = {"a": jnp.linspace(0.0, 1.0, 7), "step": jnp.arange(7), "key": jax.random.split(jax.random.key(5), 7)}
    find = lambda scan: jax.value_and_grad(  # noqa: E731
        lambda scale, a: mixed(scan, scale, {**xs, "a": a}), (0, 1), has_aux=True
    )
    scale = jnp.array([0.3, 0.7])
    found = jax.jit(find(ours(schedule=schedule)))(scale, xs["a"])
    assert_trees_close(found, jax.jit(find(jax.lax.scan))(scale, xs["a"]), **EXACT)


def test_binomial_under_vmap_both_ways():
    w, h, xs = inputs(7)
    ws = jnp.stack([w, 2 * w, -w])
    for inner in (True, False):

        def total(scan, ws, inner=inner):
            if inner:  # the gradient is mapped
                return jax.vmap(lambda w: gradient(scan)(w, h, xs))(ws)
            return jax.grad(lambda ws: jax.vmap(lambda w: rnn(scan, w, h, xs))(ws).sum())(ws)  # a map is differentiated

        found = jax.jit(functools.partial(total, ours(slots=2)))(ws)
        assert_trees_close(found, jax.jit(functools.partial(total, jax.lax.scan))(ws), **EXACT)


def test_gradients_of_gradients():
    """Forward and reverse mode of the gradient of the table-driven schedule."""
    args = inputs(5, 3, 1)

    def steepness(scan, w):
        return sum((g**2).sum() for g in gradient(scan)(w, *args[1:])[1])

    def second(scan, w):
        along = jax.jvp(functools.partial(steepness, scan), (w,), (jnp.ones_like(w),))
        return jax.grad(functools.partial(steepness, scan))(w), along

    want = jax.jit(functools.partial(second, jax.lax.scan))(args[0])
    found = jax.jit(functools.partial(second, ours(slots=2)))(args[0])
    assert_trees_close(found, want, rtol=1e-9, atol=1e-11)


def test_forward_mode_where_jax_checkpoint_does_it():
    args = inputs(11)
    tangents = jax.tree.map(jnp.ones_like, args)

    def pushed(scan):
        return jax.jit(lambda *given: jax.jvp(functools.partial(rnn, scan), given, tangents))(*args)

    want = pushed(jax.lax.scan)
    for schedule in ("each", "sqrt", "log", ("nested", (2, 3, 2))):
        assert_trees_close(pushed(ours(schedule=schedule)), want, **EXACT)


def test_only_what_is_differentiated_is_computed():
    """Inputs that are data get no gradient buffer: the backward loop carries none."""
    w, h, xs = inputs(50)
    text = {n: jax.jit(jax.grad(functools.partial(rnn, ours(slots=4)), n)).lower(w, h, xs).as_text() for n in (0, 2)}
    buffers = [text[n].count("tensor<50x2x4xf64>") for n in (0, 2)]
    assert buffers[0] < buffers[1]
    compiled = jax.jit(jax.grad(functools.partial(rnn, ours(slots=4)))).lower(w, h, xs).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < xs.nbytes


@pytest.mark.parametrize("options", [{"schedule": "plain"}, {"schedule": "sqrt"}, {"slots": 2}, {"schedule": "log"}])
def test_empty_things(options):
    assert rp.scan(lambda c, x: (c, x), 1.5, jnp.zeros((0, 3)), **options)[1].shape == (0, 3)
    assert rp.scan(lambda c, x: ((), x + 1), (), jnp.arange(4), **options)[1].tolist() == [1, 2, 3, 4]
    last, ys = rp.scan(lambda c, _: (c * 2, None), 1, None, 5, **options)
    assert int(last) == 32
    assert ys is None


def test_numbers_become_what_the_body_makes_of_them():
    for options in ({"schedule": "sqrt"}, {"slots": 2}):
        for init in (0, 0.0):
            last, _ = rp.scan(lambda c, x: (c + x, None), init, jnp.arange(3, dtype=jnp.float32), **options)
            assert last.dtype == jnp.float32


@pytest.mark.usefixtures("quick_search")
@pytest.mark.filterwarnings("ignore:.*no known trip count")  # said once by the planner, which assumes one
def test_inside_a_planned_function():
    w, h, xs = inputs(12)
    loss = functools.partial(rnn, ours(slots=3))
    plan = rp.plan(loss, w, h, xs, budget="100%")
    assert_trees_close(jax.jit(jax.grad(plan.apply(loss)))(w, h, xs), jax.grad(loss)(w, h, xs), **EXACT)


def test_residuals_of_weights_alone_are_made_once():
    """A weight cast to another type is no residual of every step."""
    w, h, xs = inputs(5, 16, 2)

    def trace(w):
        cast = lambda h, x: (jnp.sin((h.astype("float32") @ jnp.cos(w).astype("float32")).astype(h.dtype)) + x, None)  # noqa: E731
        loop = prepare(cast, h, xs, 5, "test")
        taped = make_taped(loop.body, loop.closed, [True], [True])
        assert taped.tape_bytes <= 3 * h.nbytes
        assert len(taped.compute_once(loop.closed)) == len(taped.once) >= 1
        return w

    jax.make_jaxpr(trace)(w)
