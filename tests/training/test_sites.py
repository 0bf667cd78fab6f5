"""What is found of the marks in a step: which programs, what is differentiated in them."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.training.calls import StepCall
from remat_plan.training.settings import Settings, parameter_names
from remat_plan.training.sites import find_sites

X, W = jnp.ones((32, 8)), jnp.eye(8) * 0.9


def layers(w, x):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def loss(w, batch):
    y = layers(w, batch["x"])
    return jnp.mean((y - batch["y"]) ** 2), {"prediction": y, "count": batch["x"].shape[0]}


BATCH = {"x": X, "y": 2 * X}


def sites_of(step, *args):
    call = StepCall.of(step, args, parameter_names(step, len(args)), Settings())
    return find_sites(call.step().trace)[0]


def only_parameters(wrap):
    return lambda w, b: jax.value_and_grad(rp.remat(loss), has_aux=True)(w, b)


STEPS = {
    "aux": lambda w, b: jax.value_and_grad(rp.remat(loss), has_aux=True)(w, b),
    "jitted": lambda w, b: jax.jit(jax.value_and_grad(jax.jit(rp.remat(loss)), has_aux=True))(w, b),
    "closure": lambda w, b: jax.value_and_grad(rp.remat(lambda w: loss(w, b)), has_aux=True)(w),
    "scanned": lambda w, b: jax.lax.scan(
        lambda c, _: (c, jax.value_and_grad(rp.remat(loss), has_aux=True)(w, b)), 0.0, None, length=3
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_loss_is_told_from_any_function(name):
    (site,) = sites_of(STEPS[name], W, BATCH)
    program = site.program()
    assert program.is_loss
    assert program.call.differentiated == ((True,) if name == "closure" else (True, False, False))


def test_layers_that_are_equal_are_one_site():
    layer = rp.remat(lambda w, x: jnp.tanh(x @ w))

    def step(ws, x):
        def total(ws):
            y = x
            for w in ws:
                y = layer(w, y)
            return jnp.sum(y)

        return jax.grad(total)(ws)

    sites = sites_of(step, [W] * 4, X)
    assert [site.calls for site in sites] == [4]
    assert not sites[0].program().is_loss
    assert sites[0].moved == [True, True]  # the first layer's input is fixed, those of the others are not


def test_a_mark_in_a_mark_is_a_part_of_it():
    inner = rp.remat(layers)
    (site,) = sites_of(lambda w, x: jax.grad(rp.remat(lambda w: jnp.sum(inner(w, x))))(w), W, X)
    assert sum(op.eqn.primitive.name == "dot_general" for op in site.program().graph.ops) == 2


def test_marks_without_a_gradient_are_none():
    assert not sites_of(lambda w, x: rp.remat(layers)(w, x), W, X)
    planned = rp.remat(lambda w: loss(w, BATCH)[0], strategy="nothing", verify=False)
    assert not sites_of(lambda w: jax.grad(planned)(w), W)  # it has a plan of its own


def test_a_step_that_differentiates_forward_through_a_mark():
    def step(w, x):
        marked = rp.remat(lambda w: jnp.sum(layers(w, x)))
        return jax.jvp(jax.grad(marked), (w,), (w,))

    (site,) = sites_of(step, W, X)
    assert site.program().is_loss
