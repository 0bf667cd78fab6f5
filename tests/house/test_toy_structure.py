"""A new structure, made here and nowhere else: a primitive that runs its region twice, one after the other."""

import jax
import jax.numpy as jnp
import pytest
from jax.extend import core
from jax.interpreters import ad, mlir

import remat_plan as rp
from remat_plan.graph.structure import register
from remat_plan.structures.call import Call

twice_p = core.Primitive("twice")
twice_p.multiple_results = True


def run_twice(*args, jaxpr):
    *consts, x = args
    f = core.jaxpr_as_fun(jaxpr)
    return f(*consts, *f(*consts, x))


twice_p.def_impl(run_twice)
twice_p.def_abstract_eval(lambda *avals, jaxpr: list(jaxpr.out_avals))
mlir.register_lowering(twice_p, mlir.lower_fun(run_twice, multiple_results=True))
ad.primitive_jvps[twice_p] = lambda primals, tangents, jaxpr: jax.jvp(
    lambda *a: run_twice(*a, jaxpr=jaxpr), tuple(primals), tuple(ad.instantiate_zeros(t) for t in tangents)
)


class Twice(Call):
    """Runs its region twice."""

    name = "twice"
    primitives = ("twice",)

    def run_counts(self, op):
        return (2.0,)

    def wrap(self, eqn, body):
        return lambda *args: body((*args[:-1], *body(args)))


def layers(w, x):
    jaxpr = jax.make_jaxpr(lambda w, x: x + jnp.tanh(jnp.tanh(x @ w) @ w))(w, x)
    for _ in range(3):
        (x,) = twice_p.bind(w, x, jaxpr=jaxpr)
    return jnp.sum(x**2)


def test_a_new_structure_is_planned_inside():
    w, x = jnp.eye(128) / 2, jnp.ones((4096, 128)) / 3
    opaque = rp.plan(layers, w, x, strategy="each_block", verify=False)
    assert "twice" not in str(opaque)
    register(Twice())
    plan = rp.plan(layers, w, x, strategy="each_block", verify=False)
    assert "twice" in str(plan)
    value, gradient = jax.value_and_grad(plan.apply(layers))(w, x)
    wanted, right = jax.value_and_grad(layers)(w, x)
    assert float(value) == pytest.approx(float(wanted), rel=1e-6)
    assert jnp.allclose(gradient, right, rtol=1e-4, atol=1e-5)


def test_a_structure_that_lacks_methods_is_refused():
    class Once:
        name, primitives = "once", ("once",)
        is_open = regions = run_counts = loop = unit = emit = lambda self, *_: None

    with pytest.raises(TypeError, match="Once is no structure: it has no choices, describe"):
        register(Once())
