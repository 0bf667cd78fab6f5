"""``plan.measure`` and ``step.measure``: what is run, what is said, what is refused."""

import json
import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import optax
import pytest

import remat_plan as rp
from remat_plan.results.measurement import Measurement
from tests.compiles import counting_compiles
from tests.helpers import searching_quickly

pytestmark = pytest.mark.usefixtures("quick_search")

W, X = jnp.ones((16, 16)) / 16, jnp.ones((512, 16))


def loss(w, x, scale=1.0):
    for _ in range(8):
        x = jnp.tanh(x @ w)
    return scale * jnp.sum(x)


@pytest.fixture(scope="module")
def plan():
    with searching_quickly():
        return rp.plan(loss, W, X, budget="70%")


@pytest.fixture(scope="module")
def measured(plan):
    return plan.measure(W, X, rounds=4)


def test_both_steps_are_measured(measured, plan):
    assert isinstance(measured, Measurement)
    assert measured.plain.seconds > 0
    assert measured.planned.seconds > 0
    assert measured.overhead_low <= measured.overhead <= measured.overhead_high
    assert measured.predicted_overhead == plan.overhead
    assert measured.rounds == 4
    assert measured.plain.peak_bytes is None or measured.plain.peak_bytes > 0


def test_a_measurement_is_shown_and_stored(measured):
    text = str(measured)
    assert "both steps in turns" in text
    assert "lowest and highest round: " in text
    assert "95% interval of the median: " in str(replace(measured, rounds=6))
    assert measured.device in text
    assert f"jax {jax.__version__}" in text
    assert "overhead" in repr(measured)
    assert "<table " in measured._repr_html_()
    data = json.loads(measured.to_json())
    assert data["kind"] == "measurement"
    assert data["plain"]["seconds"] == measured.plain.seconds
    pytest.importorskip("matplotlib")
    assert len(measured.plot().patches) == 2


def test_the_function_is_no_part_of_a_plan(plan):
    again = rp.plan(lambda w, x: loss(w, x), W, X, budget="70%")
    assert again.function is not plan.function
    assert again.schedule == plan.schedule
    assert "function" not in json.loads(plan.to_json())
    for read in (pickle.loads(pickle.dumps(plan)), rp.Plan.from_json(plan.to_json())):
        assert read == plan
        assert read.function is None
        with pytest.raises(ValueError, match=r"plan\.measure\(\*args, fn=loss_fn\)"):
            read.measure(W, X)
        assert read.measure(W, X, fn=loss, rounds=1).planned.seconds > 0
    assert plan.function is loss


@pytest.mark.slow
def test_keyword_arguments_and_functions_with_remat_of_their_own():
    def own(w, x, scale):
        return jax.checkpoint(loss)(w, x, scale)

    plan = rp.plan(own, W, X, budget="70%", kwargs={"scale": 2.0})
    assert plan.measure(W, X, kwargs={"scale": 3.0}, rounds=1).planned.seconds > 0


def test_a_plan_of_a_pullback_is_measured_too():
    layer = rp.checkpoint(lambda w, x: jnp.tanh(x @ w) @ w, strategy="memory")
    jax.grad(lambda w, x: jnp.sum(layer(w, x)))(W, X)
    (plan,) = layer.plans.values()
    assert plan.function is None, "it may hold tracers"
    assert plan.measure(W, X, fn=layer.__wrapped__, rounds=1).planned.seconds > 0


def test_a_plan_knows_what_was_differentiated():
    planned = rp.remat(loss, strategy="dots", verify=False)
    jax.grad(planned, argnums=1)(W, X)
    (plan,) = planned.plans.values()
    assert plan.program.differentiated == (1,)
    read = rp.Plan.from_json(plan.to_json())
    assert read.measure(W, X, fn=loss, rounds=1).planned.seconds > 0


@pytest.mark.parametrize(
    ("args", "settings", "error", "told"),
    [
        ((W, jax.ShapeDtypeStruct(X.shape, X.dtype)), {}, TypeError, "shapes without values"),
        ((W, X[:100]), {}, ValueError, "made for another program"),
        ((W, X), {"rounds": 0}, ValueError, "rounds=0: give an integer of at least 1"),
        ((W, X), {"rounds": 1.5}, TypeError, "rounds=1.5: give an integer of at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(plan, args, settings, error, told):
    with pytest.raises(error, match=told):
        plan.measure(*args, **settings)


def test_nothing_is_measured_inside_a_trace(plan):
    with pytest.raises(TypeError, match=r"JaxprTracer float.*Pass arrays, outside jax\.jit"):
        jax.jit(lambda w, x: plan.measure(w, x).overhead)(W, X)


def test_a_fitted_step_is_measured_and_its_arguments_stay():
    def loss_fn(params, batch):
        for w in params:
            batch = jnp.tanh(batch @ w)
        return jnp.mean(batch**2)

    adam = optax.adam(1e-3)

    def train_step(params, state, batch):
        value, grads = jax.value_and_grad(rp.remat(loss_fn))(params, batch)
        updates, state = adam.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    params = [W] * 6
    args = params, adam.init(params), X
    step = rp.fit(train_step, *args, budget="75%", donate_argnums=(0, 1))
    jax.block_until_ready([jnp.copy(x) for x in jax.tree.leaves(args)])  # what copies donated arguments is compiled
    with counting_compiles() as compiled:
        measured = step.measure(*args, rounds=2)
    assert compiled() == 1, "the step as written; the fitted one is what runs"
    assert measured.planned.seconds > 0
    assert measured.predicted_overhead == step.report.overhead
    assert float(args[0][0][0, 0]) == float(W[0, 0])  # not donated
