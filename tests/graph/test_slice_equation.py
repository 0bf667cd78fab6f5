"""Equations that hold others, run on slices: values and derivatives are those of the whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from remat_plan import _compat
from remat_plan.graph.axes import Axis, axis_of
from remat_plan.graph.slice_equation import Slice, cut, run_slice
from tests.graph.slices import check_claims, claims_of, close, only, pieces_of
from tests.helpers import few

X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), "float32")
W = jnp.asarray(np.random.default_rng(1).normal(size=(4, 4)), "float32")


@jax.custom_jvp
def doubled(x, n):
    """Its rule is not its derivative, and calls it again; one operand is an integer."""
    return jnp.sin(x) * n, n + 1


@doubled.defjvp
def _(primals, tangents):
    y, m = doubled(*primals)
    return (y, m), (2 * tangents[0] * jnp.cos(y), np.zeros(m.shape, jax.dtypes.float0))


@jax.custom_jvp
def shaped(x):
    """Its rule reads numbers of rows, and an array."""
    return x + SHIFT + lax.broadcasted_iota("float32", x.shape, 0)


SHIFT = jnp.arange(24.0).reshape(6, 4)


@shaped.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return shaped(x), t * x * SHIFT * lax.broadcasted_iota("float32", x.shape, 0)


@jax.custom_jvp
def clipped(x):
    """Its rule mixes rows; the function does not."""
    return jnp.clip(x, -1, 1)


clipped.defjvp(lambda p, t: (clipped(*p), t[0] - jnp.cumsum(t[0], 0)))


@jax.custom_jvp
def raising(x):
    return x


@raising.defjvp
def _(primals, tangents):
    raise ValueError("not differentiable")


COUNTS = jnp.arange(24, dtype="int32").reshape(6, 4)
CUSTOM = {
    "relu": jax.nn.relu,
    "softplus": jax.nn.softplus,
    "relu6": jax.nn.relu6,
    "rule calls itself": lambda x: doubled(x, COUNTS)[0],
    "rule reads constants": shaped,
}


def summed_in_slices(fn, axis_in, units, x, scanned):
    """The sum of squares of a function of one equation, slice by slice along one dimension of its first operand."""
    closed = jax.make_jaxpr(fn)(x)
    eqn = closed.jaxpr.eqns[-1]
    constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    axis = axis_of(eqn, [axis_in, *[None] * (len(eqn.invars) - 1)], [None] * len(eqn.outvars))

    def loss(x):
        values = [constants.get(a, x) if not _compat.is_literal(a) else a.val for a in eqn.invars]

        def one(piece):
            args = [v if d is None else cut(v, d, piece) for v, d in zip(values, axis.operands, strict=True)]
            return jnp.sum(run_slice(eqn, args, axis, piece)[0] ** 2)

        if scanned:
            slices = jnp.arange(0, units, units // 3)
            return lax.scan(lambda c, i: (c + one(Slice(units // 3, units, i)), None), jnp.float32(0), slices)[0]
        return sum(one(piece) for piece in pieces_of(units))

    return loss


def derivatives(f, twice):
    """A value, a gradient, a tangent, and the gradient of a gradient."""

    def all_of(x):
        second = jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 2))(x) if twice else 0.0
        return *jax.value_and_grad(f)(x), jax.jvp(f, (x,), (x + 1,))[1], second

    return jax.jit(all_of)(X)


IN_SCANS = jax.__version_info__ >= (0, 12)
"""Before, JAX itself differentiates a scan twice without the rules that are called in rules."""

CASES = [*((name, True, IN_SCANS) for name in CUSTOM), *((name, False, True) for name in CUSTOM if "rule" in name)]
FEW = [("rule reads constants", True, IN_SCANS), ("rule calls itself", False, True)]


@pytest.mark.parametrize(("name", "scanned", "twice"), few(CASES, FEW))
def test_the_rule_of_a_custom_jvp_goes_with_it(name, scanned, twice):
    got = derivatives(summed_in_slices(CUSTOM[name], 0, 6, X, scanned), twice)
    expected = derivatives(lambda x: jnp.sum(CUSTOM[name](x) ** 2), twice)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def test_a_rule_that_mixes_elements_is_refused():
    assert claims_of(only(clipped, X)[0]) == [Axis((1,), (1,))]
    assert claims_of(only(jax.jit(clipped), X)[0]) == [Axis((1,), (1,))]
    assert claims_of(only(raising, X)[0]) == []


def steps(reverse=False, extra=False):
    def body(carry, row):
        c, s = carry
        c = jnp.tanh(c @ W + row)
        out = (c * 2, jnp.sum(c)) if extra else c * 2
        return (c, s + c[:, 0]), out

    return lambda x, rows: lax.scan(body, (x, x[:, 0]), rows, reverse=reverse)


ROWS = jnp.asarray(np.random.default_rng(2).normal(size=(3, 6, 4)), "float32")

NESTED = {
    "jit": (jax.jit(lambda x, w: jax.nn.softmax(x @ w)), (X, W), 1),
    "jit of sums": (jax.jit(lambda x: (x * 2, jnp.sum(x, 0), jnp.max(x))), (X,), 2),
    "jit in jit": (jax.jit(lambda x: jax.jit(lambda y: y + COUNTS)(jax.nn.relu(x)) * 2), (X,), 2),
    "iota and constants inside": (jax.jit(lambda x: x + SHIFT * lax.broadcasted_iota("float32", x.shape, 0)), (X,), 2),
    "checkpoint": (jax.checkpoint(lambda x, w: jnp.sin(x @ w)), (X, W), 2),
    "carried": (steps(), (X, ROWS), 3),
    "backwards": (steps(reverse=True), (X, ROWS), 3),
    "sums of every step": (steps(extra=True), (X, ROWS), 3),
    "dropped": (jax.jit(lambda x: (lax.top_k(x, 2)[0].T, lax.sort([x.T, x.T], dimension=0)[1])), (X,), 1),
    "logsumexp": (jax.jit(lambda x: jax.nn.logsumexp(x, 1)), (X,), 1),
    "gelu, silu": (jax.jit(lambda x: jax.nn.gelu(x) + jax.nn.silu(x)), (X,), 2),
    "jit in scan": (lambda x, r: lax.scan(lambda c, r: (jax.nn.softplus(c + r), c), x, r), (X, ROWS), 2),
}


@pytest.mark.parametrize("name", few(NESTED, ["jit", "checkpoint", "carried"]))
def test_what_is_inside_runs_on_slices(name):
    fn, args, count = NESTED[name]
    assert check_claims(fn, *args) == count


def test_gradients_of_a_scan_in_slices():
    def fn(x):
        return lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), x, ROWS)[0]

    loss = summed_in_slices(fn, 0, 6, X, scanned=True)
    np.testing.assert_allclose(jax.grad(loss)(X), jax.grad(lambda x: jnp.sum(fn(x) ** 2))(X), rtol=1e-4, atol=1e-5)


def test_a_checkpoint_stays_one():
    eqn, values = only(jax.checkpoint(jnp.sin, policy=jax.checkpoint_policies.everything_saveable), X)
    piece = Slice(2, 6, 1)
    traced = jax.make_jaxpr(lambda x: run_slice(eqn, [x], Axis((0,), (0,)), piece))(X[:2])
    assert _compat.checkpointed_jaxpr(traced.eqns[0]) is not None
    assert traced.eqns[0].params.get("policy", eqn.params.get("policy")) is eqn.params.get("policy")


def test_the_start_of_a_slice_may_be_traced():
    eqn, _ = only(lambda: lax.broadcasted_iota("bfloat16", (600, 2), 0))
    rows = jax.jit(lambda i: run_slice(eqn, [], Axis((), (0,)), Slice(1, 3, i))[0])
    close([jnp.concatenate([rows(i) for i in range(3)])], [lax.broadcasted_iota("bfloat16", (600, 2), 0)])


STEPS = (
    jnp.tanh,
    jax.nn.relu,
    jax.nn.softmax,
    lambda x: x @ W,
    lambda x: x - jnp.mean(x, 1, keepdims=True),
    lambda x: x.reshape(3, 2, 4).sum(1).repeat(2, 0),
    lambda x: jnp.sort(x, 1)[:, ::-1],
    lambda x: x.T[::-1].T,
    lambda x: jnp.where(x > 0, x, SHIFT),
    lambda x: jnp.concatenate([x[:, 2:], x[:, :2]], 1),
    lambda x: jnp.take_along_axis(x, COUNTS % 4, 1),
)


def test_random_programs_inside_a_call():
    """A call, a checkpoint, a scan around a random chain of operations; all claims, by rows and by columns, hold."""
    count = 0

    @settings(max_examples=5)
    @given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4), st.sampled_from((jax.jit, jax.checkpoint, None)))
    def check(chosen, wrap):
        nonlocal count

        def chain(x):
            return functools.reduce(lambda y, f: f(y), chosen, x)

        fn = (lambda x, r: lax.scan(lambda c, r: (chain(c) + r, c[:, 0]), x, r)) if wrap is None else wrap(chain)
        count += check_claims(fn, *((X, ROWS) if wrap is None else (X,)))

    check()
    assert count >= 5
