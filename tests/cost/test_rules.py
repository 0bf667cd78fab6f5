"""FLOP counts and fusion kinds of single equations, against counts done by hand."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost import rules
from remat_plan.cost.rules import Kind, eqn_flops, jaxpr_flops, kind_of


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def only(fun, *args):
    """The last equation of a function's jaxpr."""
    return jax.make_jaxpr(fun)(*args).jaxpr.eqns[-1]


@pytest.fixture
def forgetful(monkeypatch):
    monkeypatch.setattr(rules, "_warned", set())


@pytest.mark.parametrize(
    ("fun", "args", "flops"),
    [
        (lambda a, b: a @ b, (f32(3, 5), f32(5, 7)), 2 * 3 * 5 * 7),
        (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (f32(4, 3, 5), f32(4, 5, 7)), 2 * 4 * 3 * 5 * 7),
        (lambda a, b: lax.dot_general(a, b, (((0, 1), (0, 1)), ((), ()))), (f32(3, 5, 2), f32(3, 5, 7)), 420),
        (lambda a: a + a, (f32(3, 5),), 15),
        (jnp.exp, (f32(3, 5),), 8 * 15),
        (lambda a: lax.reduce_sum_p.bind(a, axes=(0,), out_sharding=None), (f32(3, 5),), 15),
        (lambda a: a.T, (f32(3, 5),), 0),
    ],
    ids=["matmul", "batched", "two contracted", "add", "exp", "sum", "transpose"],
)
def test_flops_by_hand(fun, args, flops):
    assert eqn_flops(only(fun, *args)) == flops


def conv(x, w, **kw):
    return lax.conv_general_dilated(x, w, padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), **kw)


def test_convolution_flops():
    """Twice (outputs) x (window) x (input channels of a group)."""
    x, w = f32(2, 8, 8, 4), f32(3, 3, 4, 6)
    assert eqn_flops(only(lambda x, w: conv(x, w, window_strides=(1, 1)), x, w)) == 2 * (2 * 8 * 8 * 6) * 9 * 4
    assert eqn_flops(only(lambda x, w: conv(x, w, window_strides=(2, 2)), x, w)) == 2 * (2 * 4 * 4 * 6) * 9 * 4
    grouped = only(lambda x, w: conv(x, w, window_strides=(1, 1), feature_group_count=4), x, f32(3, 3, 1, 8))
    assert eqn_flops(grouped) == 2 * (2 * 8 * 8 * 8) * 9


def test_gradient_of_strided_convolution_costs_what_the_convolution_costs():
    """It is a convolution of a dilated input, whose zeros no kernel multiplies."""
    w = jnp.ones((3, 3, 4, 6))

    def forward(x):
        return conv(x, w, window_strides=(2, 2))

    x = f32(2, 8, 8, 4)
    backward = jax.make_jaxpr(jax.grad(lambda x: forward(x).sum()))(x)
    convolutions = [eqn_flops(e) for e in backward.jaxpr.eqns if e.primitive.name == "conv_general_dilated"]
    assert convolutions[-1] == pytest.approx(eqn_flops(only(forward, x)))


def test_scan_counts_every_iteration():
    def fun(x, w):
        return lax.scan(lambda c, w: (c @ w, None), x, w)[0]

    assert jaxpr_flops(jax.make_jaxpr(fun)(f32(4, 4), f32(10, 4, 4))) == 10 * 2 * 4**3


def test_cond_costs_its_dearest_branch():
    def fun(p, x):
        return lax.cond(p, lambda x: x @ x, lambda x: x + x, x)

    got = jaxpr_flops(jax.make_jaxpr(fun)(True, f32(4, 4)))
    assert got == pytest.approx(2 * 4**3, abs=2)  # the predicate is converted


def test_calls_are_counted_through():
    fun = jax.jit(lambda x: jax.checkpoint(lambda x: x @ x)(x))
    assert jaxpr_flops(jax.make_jaxpr(fun)(f32(4, 4))) == 2 * 4**3


def test_while_warns_once_and_is_not_free(forgetful):
    eqn = only(lambda x: lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x @ x, x), f32(4, 4))
    with pytest.warns(UserWarning, match="no known trip count"):
        first = eqn_flops(eqn)
    assert first >= rules.UNKNOWN_TRIP_COUNT * 2 * 4**3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert eqn_flops(eqn) == first


def test_unknown_primitive_is_dear(forgetful):
    primitive = jax.extend.core.Primitive("mystery")
    primitive.def_abstract_eval(lambda x: x)
    eqn = only(primitive.bind, f32(8))
    assert kind_of(eqn) == Kind.OPAQUE
    with pytest.warns(UserWarning, match="mystery"):
        assert eqn_flops(eqn) > 8


def test_kinds():
    x = f32(4, 4)
    assert kind_of(only(lambda x: x.reshape(16), x)) == Kind.ALIAS
    assert kind_of(only(lambda x: x + 1, x)) == Kind.CHEAP
    assert kind_of(only(jnp.exp, x)) == Kind.EXPENSIVE
    assert kind_of(only(lambda x: lax.reduce_max(x, (0,)), x)) == Kind.REDUCE
    assert kind_of(only(lambda x: x @ x, x)) == Kind.OPAQUE
    assert kind_of(only(lambda x: lax.scan(lambda c, _: (c, None), x, None, length=2)[0], x)) == Kind.REGION
    assert kind_of(only(lax.optimization_barrier, x)) == Kind.BARRIER
