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


def test_unknown_primitive_is_expensive(forgetful):
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


def flops_of(fun, *args):
    """The FLOPs of everything in a function's jaxpr."""
    return jaxpr_flops(jax.make_jaxpr(fun)(*args))


def test_a_call_is_known_by_its_types_and_not_by_its_name(forgetful):
    """What a primitive that nobody has heard of calls is counted through, and warns about nothing."""
    body = jax.make_jaxpr(lambda x: x @ x)(f32(4, 4))
    call = jax.extend.core.Primitive("mystery_call")
    call.multiple_results = True
    call.def_abstract_eval(lambda x, **_: [x])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert eqn_flops(only(lambda x: call.bind(x, held=body), f32(4, 4))) == 2 * 4**3


def test_a_structure_of_other_types_is_a_region(forgetful):
    body = jax.make_jaxpr(lambda x: x @ x)(f32(4, 4))
    call = jax.extend.core.Primitive("mystery_structure")
    call.def_abstract_eval(lambda x, **_: x)
    eqn = only(lambda x: call.bind(x, held=(body, body)), f32(3, 4, 4))
    assert kind_of(eqn) == Kind.REGION
    assert eqn_flops(eqn) == 2 * 2 * 4**3


def test_a_primitive_that_jax_writes_as_a_function_costs_what_the_function_does():
    from jax._src.interpreters import mlir

    primitive = jax.extend.core.Primitive("mystery_function")
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: x @ x, multiple_results=False))
    assert eqn_flops(only(primitive.bind, f32(4, 4))) == 2 * 4**3


def test_flops_of_linear_algebra_are_per_matrix():
    for fun in (jnp.linalg.cholesky, jnp.linalg.eigh, jnp.linalg.svd, lambda x: lax.linalg.lu(x)[0], jnp.linalg.qr):
        one, many = flops_of(fun, f32(512, 512)), flops_of(fun, f32(8, 512, 512))
        assert many == pytest.approx(8 * one, rel=0.1)
        assert flops_of(fun, f32(1024, 1024)) == pytest.approx(8 * one, rel=0.1)
    jaxpr = jax.make_jaxpr(lambda x: lax.linalg.cholesky(x, symmetrize_input=False))(f32(30, 30)).jaxpr
    assert [eqn_flops(e) for e in jaxpr.eqns if e.primitive.name == "cholesky"] == [30**3 / 3]


def test_fourier_transforms_are_per_transform():
    c64 = jax.ShapeDtypeStruct((16, 256), jnp.complex64)
    assert flops_of(jnp.fft.fft, c64) == 5 * 16 * 256 * 8
    assert flops_of(jnp.fft.fft2, c64) == 5 * 16 * 256 * 12


def test_ragged_products_do_not_pay_for_every_group():
    rows, groups = f32(64, 8), jax.ShapeDtypeStruct((4,), jnp.int32)
    forward = only(lax.ragged_dot, rows, f32(4, 8, 16), groups)
    assert eqn_flops(forward) == 2 * 64 * 8 * 16
    weights = jax.make_jaxpr(jax.grad(lambda w, x, g: lax.ragged_dot(x, w, g).sum()))(f32(4, 8, 16), rows, groups)
    found = [eqn_flops(e) for e in weights.jaxpr.eqns if e.primitive.name == "ragged_dot_general"]
    assert found[-1] == 2 * 64 * 8 * 16


def test_gradients_of_grouped_convolutions_cost_what_the_convolution_does():
    x, w = f32(2, 8, 8, 4), f32(3, 3, 1, 8)

    def fun(x, w):
        return conv(x, w, window_strides=(1, 1), feature_group_count=4)

    once = eqn_flops(only(fun, x, w))
    step = jax.make_jaxpr(jax.grad(lambda x, w: fun(x, w).sum(), (0, 1)))(x, w)
    assert [eqn_flops(e) for e in step.jaxpr.eqns if e.primitive.name == "conv_general_dilated"] == [once] * 3


def test_sorting_and_scattering():
    x = f32(64, 16)
    assert eqn_flops(only(lambda x: lax.sort(x, dimension=1), x)) == 5 * 64 * 16 * 4
    rows = jnp.arange(4)
    assert eqn_flops(only(lambda x: x.at[rows].add(1.0), x)) == 4 * 16


def test_a_sum_over_an_axis_of_vmap_is_a_sum(forgetful):
    eqns = jax.make_jaxpr(jax.vmap(lambda x: lax.psum(x, "i"), axis_name="i"))(f32(3, 5)).jaxpr.eqns
    eqn = next(eqn for eqn in eqns if eqn.primitive.name == "psum")
    assert kind_of(eqn) == Kind.REDUCE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert eqn_flops(eqn) == 15
