"""``rp.mark``: what ``rp.fit`` plans, and nothing anywhere else; what functions with plans print."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp

pytestmark = pytest.mark.usefixtures("quick_search")

W, X = jnp.eye(32) / 2, jnp.ones((1024, 32))


def loss(w, x):
    for _ in range(6):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def step(w, x):
    return w - jax.grad(rp.mark(loss))(w, x)


def test_a_mark_alone_is_the_function_as_it_is():
    marked = rp.mark(loss)
    assert str(jax.make_jaxpr(jax.grad(marked))(W, X)) == str(jax.make_jaxpr(jax.grad(loss))(W, X))
    assert not marked.plans


@pytest.mark.slow
def test_a_marked_function_is_planned_in_a_fitted_step():
    fitted = rp.fit(step, W, X, budget="80%")
    assert fitted.plan.compiled_peak_bytes is None or fitted.report.planned.peak_bytes <= fitted.report.budget_bytes
    assert not fitted.plan.is_identity
    assert jnp.allclose(fitted(W, X), jax.jit(step)(W, X), atol=1e-6)


@pytest.mark.parametrize("options", [{"budget": "60%"}, {"strategy": "memory"}])
def test_a_mark_has_no_plan_of_its_own(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"rp.mark takes no {name}: give the budget to rp.fit"):
        rp.mark(loss, **options)


def test_what_has_a_plan_says_what_it_gained():
    planned = rp.remat(loss, budget="80%")
    assert repr(planned) == "<loss: planned when it is first called>"
    planned(W, X)
    (plan,) = planned.plans.values()
    assert repr(planned) == f"<loss: {plan!r}>"
    assert repr(rp.mark(loss)) == "<loss: marked, planned by rp.fit>"
    assert repr(plan.apply(loss)) == f"<loss: {plan!r}>"
    fitted = rp.fit(step, W, X, budget="80%")
    assert repr(fitted) == f"<step: {fitted.report!r}>"
