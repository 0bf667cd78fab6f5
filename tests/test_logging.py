"""What is logged: nothing by default, what was compiled and chosen to who asks."""

import logging

import jax
import jax.numpy as jnp

import remat_plan as rp


def loss(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return jnp.mean(x)


ARGS = jnp.eye(8), jnp.ones((256, 8))


def test_what_was_compiled_and_chosen(caplog):
    caplog.set_level(logging.DEBUG, "remat_plan")
    plan = rp.plan(loss, *ARGS, budget="90%")
    compiled, planned = [
        [record for record in caplog.records if record.name == "remat_plan" and record.levelno == level]
        for level in (logging.DEBUG, logging.INFO)
    ]
    peaks = [record.args[2] for record in compiled]
    assert plan.compiled_peak_bytes in peaks
    assert compiled[0].getMessage().startswith("compiled a schedule for cpu in ")
    (record,) = planned
    assert record.getMessage().startswith(f"planned program {plan.fingerprint} in ")


def test_what_a_fitted_step_came_to(caplog):
    caplog.set_level(logging.INFO, "remat_plan")
    report = rp.fit(lambda w, x: jax.grad(rp.remat(loss))(w, x), *ARGS, budget="90%").report
    (said,) = [record.getMessage() for record in caplog.records if record.name == "remat_plan"]
    assert said.startswith("fitted step <lambda> in ")
    assert said.endswith(f": {report.planned.peak_bytes} bytes of {report.budget_bytes}, {report.compiles} compiles")


def test_silent_by_default(capfd):
    rp.plan(loss, *ARGS, budget="90%")
    assert capfd.readouterr() == ("", "")
