"""What the library returns is pickled and copied, or says what to store instead."""

import copy
import pickle

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from tests.helpers import few

pytestmark = pytest.mark.usefixtures("quick_search")

W, X = jnp.eye(8) / 2, jnp.ones((64, 8))


def loss(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


@rp.remat(strategy="each_block", verify=False)
def decorated(w, x):
    return loss(w, x)


@rp.checkpoint(strategy="nothing", verify=False)
def layer(w, x):
    return jnp.tanh(x @ w)


@rp.checkpoint
def plain_layer(w, x):
    return jnp.tanh(x @ w)


class Model:
    @rp.remat(strategy="each_block", argnums=1, verify=False)
    def loss(self, w):
        return loss(w, X)


def train_step(w, x):
    return w - 0.1 * jax.grad(rp.remat(loss))(w, x)


def travelled(thing):
    return pickle.loads(pickle.dumps(thing))


WAYS = {"pickled": travelled, "copied": copy.copy, "deeply copied": copy.deepcopy}
way = pytest.mark.parametrize("way", few(WAYS.values(), (travelled, copy.deepcopy)), ids=WAYS)


@way
@pytest.mark.parametrize("f", [decorated, layer, plain_layer, Model.loss], ids=["remat", "checkpoint", "jax", "method"])
def test_decorated_functions_are_themselves(way, f):
    assert way(f) is f


@way
def test_planned_functions_keep_their_plans(way, monkeypatch):
    planned = rp.remat(loss, budget="80%", verify=False)
    want = jax.grad(planned)(W, X)
    again = way(planned)
    assert again.plans == planned.plans
    assert again is not planned
    monkeypatch.setattr("remat_plan.plans.book.plan_program", None)  # nothing is planned again
    assert jnp.allclose(jax.grad(again)(W, X), want)
    assert again.__name__ == "loss"


@way
def test_explicit_schedules_travel(way):
    schedule = rp.plan(loss, W, X, strategy="each_block", verify=False).schedule
    again = way(rp.remat(loss, strategy=schedule, verify=False))
    assert jnp.allclose(jax.grad(again)(W, X), jax.grad(loss)(W, X), atol=1e-6)


@way
def test_functions_with_a_plan(way):
    plan = rp.plan(loss, W, X, strategy="each_block", verify=False)
    again = way(plan.apply(loss))
    assert again.plan == plan
    assert jnp.allclose(jax.grad(again)(W, X), jax.grad(loss)(W, X), atol=1e-6)


@way
@pytest.mark.parametrize(
    "make",
    [
        lambda: rp.analyze(loss, W, X),
        lambda: rp.plan(loss, W, X, budget="80%", verify=False),
        lambda: rp.compare(loss, W, X, budgets=["80%", "1%"], verify=False),
        lambda: rp.tradeoff(loss, W, X, points=3),
        lambda: rp.fit(train_step, W, X, budget="1GB").report,
        lambda: rp.fit(train_step, W, X, budget="1GB").plans,
    ],
    ids=["analysis", "plan", "comparison", "curve", "report", "plans of a step"],
)
def test_results(way, make):
    found = make()
    again = way(found)
    assert again == found
    assert str(again) == str(found)


def test_a_stored_curve_makes_no_plans():
    curve = rp.tradeoff(loss, W, X, points=3)
    assert copy.deepcopy(curve).plan("80%", verify=False) == curve.plan("80%", verify=False)
    with pytest.raises(ValueError, match=r"this curve was unpickled .* call rp\.tradeoff"):
        travelled(curve).plan("80%")


def test_fitted_steps_say_what_to_store():
    step = rp.fit(train_step, W, X, budget="1GB")
    assert copy.deepcopy(step) is copy.copy(step) is step
    with pytest.raises(TypeError, match=r"cannot be pickled: .* Store step\.report and step\.plans"):
        pickle.dumps(step)


def test_methods_of_planned_classes_are_bound():
    assert jnp.allclose(jax.grad(Model().loss)(W), jax.grad(loss)(W, X), atol=1e-6)

    class Applied:
        loss = rp.plan(Model.loss.fn, Model(), W, argnums=1, strategy="each_block", verify=False).apply(Model.loss.fn)

    assert jnp.allclose(jax.grad(Applied().loss)(W), jax.grad(loss)(W, X), atol=1e-6)
