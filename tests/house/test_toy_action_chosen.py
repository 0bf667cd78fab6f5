"""A new action that a search chooses where it pays, made here and nowhere else: bfloat16, for some seconds a byte."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.graph import action
from remat_plan.graph.schedule import actions_in

pytestmark = pytest.mark.usefixtures("quick_search")

W = jnp.stack([jnp.eye(128) / 2] * 8)
KNOWN = dict(action._ACTIONS)
X = jnp.linspace(0, 1, 4096 * 128).reshape(4096, 128)


@dataclass(frozen=True)
class Halve:
    name: str
    times: float
    on_host, offered = False, True

    def takes(self, aval):
        return aval.dtype == jnp.float32

    def device_bytes(self, size_bytes):
        return size_bytes // 2

    def seconds(self, size_bytes, rates):
        return self.times * size_bytes / rates.bytes_per_second

    def tag(self, value, name):
        return checkpoint_name(value.astype(jnp.bfloat16), name).astype(value.dtype)


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(jnp.sin(x) @ w)
    return jnp.sum(jnp.tanh(x @ ws[0][:, :8]))


def plan_with(monkeypatch, halve):
    monkeypatch.setattr(action, "_ACTIONS", dict(KNOWN))
    action.register_action(halve)
    return rp.plan(loss, W, X, budget="75%", target="cpu", never_split=True)


def test_it_is_chosen_where_it_pays(monkeypatch):
    plan = plan_with(monkeypatch, Halve("halve", 0.1))
    assert "halve" in actions_in(plan.schedule)
    assert plan.predicted_peak_bytes == pytest.approx(plan.compiled_peak_bytes, rel=0.02)
    gradient, right = (jax.jit(jax.grad(f))(W, X) for f in (plan.apply(loss), loss))
    assert float(jnp.abs(gradient - right).max()) < 2e-2 * float(jnp.abs(right).max())


@pytest.mark.slow
def test_it_is_not_chosen_at_a_high_price(monkeypatch):
    plan = plan_with(monkeypatch, Halve("halve", 0.1))
    plain = plan_with(monkeypatch, Halve("halve at a high price", 1000.0))
    assert actions_in(plain.schedule) == {"save"}
    assert plan.overhead < plain.overhead
