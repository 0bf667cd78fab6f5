"""What a search for one program begins with."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.search import confirm, known
from remat_plan.search.driver import Driver
from remat_plan.verify.targets import Target


def loss(w, x):
    for _ in range(8):
        x = jnp.tanh(x @ w)
    return (x**2).sum()


ARGS = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((1024, 64), jnp.float32)


@pytest.mark.parametrize(("slow", "plain", "begins"), [(False, 0.7, 0.7), (True, 0.7, 1.0), (True, 1.2, 1.2)])
def test_a_plain_step_below_its_prediction_promises_nothing_where_few_compiles_are_left(
    slow, plain, begins, monkeypatch
):
    seen = []

    class Seen(Driver):
        def search(self, budget_bytes):
            seen.append(self.rate)
            return super().search(budget_bytes)

    monkeypatch.setattr(confirm, "Driver", Seen)
    monkeypatch.setattr(confirm, "rate", lambda *asked: plain)
    monkeypatch.setattr(Target, "compiles_slowly", property(lambda self: slow))
    known.forget()
    rp.plan(loss, *ARGS, budget="60%")
    assert seen == [begins]
