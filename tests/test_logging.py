"""What is logged: nothing by default, what was compiled and chosen to who asks."""

import io
import logging
import re
import sys

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from tests.helpers import few

pytestmark = pytest.mark.usefixtures("quick_search")


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


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("progress", few([None, False], [None]))
def test_a_terminal_is_told_in_one_line_what_came_out(monkeypatch, progress):
    monkeypatch.setattr(sys, "stderr", Terminal())
    rp.plan(loss, *ARGS, budget="90%", progress=progress)
    jax.grad(rp.remat(loss, budget="90%", progress=progress))(*ARGS)
    rp.fit(lambda w, x: jax.grad(rp.mark(loss))(w, x), *ARGS, budget="90%", progress=progress)
    lines = [line for line in sys.stderr.getvalue().splitlines() if " -> " in line]
    assert len(lines) == (0 if progress is False else 3), lines
    for name, line in zip(("loss", "loss", "<lambda>"), lines, strict=False):
        figures = r"[\d.]+ kB -> [\d.]+ kB \(\d+% of .*\), [+-][\d.]+% compiled, \d+ compiles?, [\d.]+ s"
        assert re.search(rf"remat_plan: {name} {figures}$", line), line
