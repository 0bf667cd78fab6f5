"""Two traces are the same program only if nothing tells them apart."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from remat_plan.graph.equal import Source
from remat_plan.graph.equal import same_program as compare

X = jnp.ones((4, 4))


def same_program(one, other):
    """Compare both ways; it must not matter which one came first."""
    same = compare(Source(one), Source(other))
    assert compare(Source(other), Source(one)) == same
    return same


def program(scale=1.0, axis=0, twice=False, length=3, gelu=True, seed=5):
    """A function that is another program for every other argument."""

    def body(c, _):
        return c * np.float32(scale), None

    def fn(x):
        key = jax.random.fold_in(jax.random.key(0), seed)
        x = jax.nn.softmax(jax.lax.scan(body, x, None, length=length)[0], axis=axis)
        x = jax.nn.gelu(x) if gelu else jnp.tanh(x)
        y = x @ x + jax.random.normal(key, x.shape)
        return (y, y) if twice else (y, x)

    return jax.make_jaxpr(fn)(X)


def test_made_again_it_is_the_same():
    assert same_program(program(), program())
    assert same_program(program(scale=2.5), program(scale=2.5))


@pytest.mark.parametrize(
    "change", [{"scale": 2.0}, {"axis": 1}, {"twice": True}, {"length": 4}, {"gelu": False}, {"seed": 6}]
)
def test_what_is_changed_is_seen(change):
    assert not same_program(program(), program(**change))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: x * np.float32(1), lambda x: x * np.float32(2)),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x.astype("bfloat16"), lambda x: x.astype("float16")),
        (lambda x: x - x.T, lambda x: x.T - x),
        (lambda x: (x, x + 1), lambda x: (x + 1, x)),
        (lambda x: x, lambda x: x + 0),
        (lambda x: 1.0, lambda x: 2.0),
        (jax.checkpoint(jnp.sin), jnp.sin),
        (jax.checkpoint(jnp.sin), jax.checkpoint(jnp.sin, prevent_cse=False)),
    ],
)
def test_near_misses(one, other):
    assert not same_program(jax.make_jaxpr(one)(X), jax.make_jaxpr(other)(X))


def test_types_and_settings_count():
    trace = functools.partial(jax.make_jaxpr, lambda x: x @ x)
    one = trace()(X)
    assert not same_program(one, trace()(X.astype(jnp.bfloat16)))
    assert not same_program(one, trace()(X[:2, :2]))
    with jax.default_matmul_precision("highest"):
        assert not same_program(one, trace()(X))


def test_constants_of_the_outermost_jaxpr_are_inputs():
    table, other = np.arange(16.0, dtype="float32").reshape(4, 4), np.ones((4, 4), "float32")
    one, two = (jax.make_jaxpr(lambda x, t=t: x * t)(X) for t in (table, other))
    assert same_program(one, two)
    assert not same_program(one, jax.make_jaxpr(lambda x: x * table[0])(X))


def custom_vjp(scale):
    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, None), lambda _, g: (g * scale,))
    return jax.make_jaxpr(f)(X)


def custom_jvp(scale, symbolic_zeros=False):
    @jax.custom_jvp
    def f(x):
        return x

    f.defjvp(lambda primals, tangents: (primals[0], tangents[0] * scale), symbolic_zeros=symbolic_zeros)
    return jax.make_jaxpr(f)(X)


@pytest.mark.parametrize("make", [custom_vjp, custom_jvp])
def test_rules_are_compared_by_what_they_do(make):
    assert same_program(make(2.0), make(2.0))
    assert not same_program(make(1.0), make(2.0))
    one, two = jnp.ones((4, 4)), jnp.ones((4, 4))
    assert same_program(make(one), make(one))
    assert not same_program(make(one), make(two)), "arrays in rules are compared as objects"


def test_rules_that_ask_for_symbolic_zeros_cannot_be_compared():
    one = custom_jvp(2.0, symbolic_zeros=True)
    assert same_program(one, one)
    assert not same_program(one, custom_jvp(2.0, symbolic_zeros=True))


def test_activations_with_rules_of_their_own():
    one, two, three = (jax.make_jaxpr(lambda x, f=f: f(x))(X) for f in (jax.nn.relu, jax.nn.relu, jax.nn.relu6))
    assert same_program(one, two)
    assert not same_program(one, three)
    assert Source(one).outlives_its_trace()


def test_a_rule_that_closes_over_a_tracer_does_not_outlive_it():
    kept = []

    def outer(scale):
        kept.append(Source(custom_vjp(scale)).outlives_its_trace())
        return scale

    jax.jit(outer)(2.0)
    assert kept == [False]
    assert Source(custom_vjp(2.0)).outlives_its_trace()


def test_rules_are_compared_by_the_outputs_that_are_used():
    """Mapped, this rule takes no cotangent for its second output (jax 0.12), which the program does not use."""

    def program(scale):
        @jax.custom_vjp
        def fn(x, w):
            return jnp.sin(x) * w, 2.0 * w

        fn.defvjp(lambda x, w: (fn(x, w), (x, w)), lambda kept, ct: (ct[0] * scale, ct[0] * kept[0] + ct[1]))
        return jax.make_jaxpr(lambda x, w: jnp.cos(jax.vmap(fn, in_axes=(0, None))(x, w)[0]))(X, X[0])

    assert same_program(program(1.0), program(1.0))
    assert not same_program(program(1.0), program(2.0))
    assert Source(program(1.0)).outlives_its_trace()


SEEN = []


def told(make, call=jax.debug.callback):
    def f(x):
        call(make(), jnp.sum(x))
        return x * 2

    return jax.make_jaxpr(f)(X)


def to(place, name="mean"):
    return lambda v: place.append((name, v))


@pytest.mark.parametrize("call", [jax.debug.callback, lambda f, v: io_callback(f, None, v)])
def test_callbacks_are_compared_by_their_code_and_what_they_captured(call):
    assert same_program(told(lambda: SEEN.append, call), told(lambda: SEEN.append, call))
    assert same_program(told(lambda: to(SEEN), call), told(lambda: to(SEEN), call))
    assert not same_program(told(lambda: to(SEEN), call), told(lambda: to(SEEN, "max"), call))
    assert not same_program(told(lambda: to(SEEN), call), told(lambda: to([]), call))
    assert not same_program(told(lambda: to([]), call), told(lambda: to([]), call)), "each has a list of its own"
    assert not same_program(told(lambda: lambda v: None, call), told(lambda: lambda v: v, call))
