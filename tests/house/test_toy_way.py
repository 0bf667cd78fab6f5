"""A new way to run a run of equations, made here and nowhere else: under a name that profilers show."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.graph.schedule import as_is, saving
from remat_plan.graph.ways import WAYS, Schedule, Segment, Way, register_way

W = jnp.stack([jnp.eye(64) / 2] * 6)
X = jnp.linspace(-1, 1, 2048 * 64).reshape(2048, 64)


@dataclass(frozen=True)
class Named(Way):
    name: str
    schedule: Schedule

    def emit(self, emitter, segment, waits, env, again):
        with jax.named_scope(self.name):
            emitter.run(self.schedule, env, again=again)

    def describe(self):
        return f"as {self.name!r}"


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(jnp.sin(x) @ w)
    return jnp.sum(x**2)


@pytest.fixture
def schedules(monkeypatch):
    monkeypatch.setitem(WAYS, "named", Named)
    register_way("named", Named)
    end = rp.plan(loss, W, X, strategy="everything", verify=False).schedule[-1].end
    half = end // 2
    inside = saving(0, half // 2), saving(half // 2, half)
    return (*inside, as_is(half, end)), (Segment(0, half, Named("first half", inside)), as_is(half, end))


def test_a_new_way_is_run_judged_shown_and_stored(schedules):
    without, plan = (rp.plan(loss, W, X, strategy=schedule) for schedule in schedules)
    assert plan.predicted_peak_bytes == without.predicted_peak_bytes < plan.plain_peak_bytes
    assert plan.compiled_peak_bytes == without.compiled_peak_bytes
    assert "as 'first half'" in str(plan)
    again = rp.Plan.from_json(plan.to_json())
    assert again == plan
    gradient = jax.jit(jax.grad(again.apply(loss)))
    assert jnp.allclose(gradient(W, X), jax.grad(loss)(W, X), rtol=1e-4, atol=1e-4)
    assert "jvp(first half)" in gradient.lower(W, X).compile().as_text()
