"""Ctrl-C while planning: nothing global stays changed, and the next plan is as good as any."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest

import remat_plan as rp
from remat_plan.search import known
from remat_plan.small import progress
from remat_plan.small.progress import Progress
from tests.helpers import few

pytestmark = pytest.mark.usefixtures("quick_search")

ROOT = Path(__file__).resolve().parents[1]


def loss(w, x):
    x, _ = jax.lax.scan(lambda c, _: (jnp.tanh(jnp.tanh(c @ w) @ w), None), x, None, length=4)
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


ARGS = jnp.eye(16), jnp.ones((256, 16))
ADAM = optax.sgd(0.1)


def train_step(w, state, x):
    gradient = jax.grad(rp.remat(loss))(w, x)
    updates, state = ADAM.update(gradient, state)
    return optax.apply_updates(w, updates), state


DOORS = {
    "plan": lambda: rp.plan(loss, *ARGS, budget="60%", progress=True).to_json(),
    "tradeoff": lambda: rp.tradeoff(loss, *ARGS, points=3, progress=True).to_json(),
    "compare": lambda: rp.compare(loss, *ARGS, budgets=["70%"], verify=False, progress=True).to_json(),
    "fit": lambda: rp.fit(train_step, ARGS[0], ADAM.init(ARGS[0]), ARGS[1], budget="80%", progress=True).plan.to_json(),
}


def settings():
    return gc.get_threshold(), gc.isenabled(), dict(jax.config.values), dict(os.environ)


@pytest.fixture
def stages(monkeypatch):
    """Has ``Progress.say``, which every stage begins with, raise at the stage of a number."""
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
    said, say = [], Progress.say

    def counted(self, *args, **kwargs):
        say(self, *args, **kwargs)
        said.append(args)
        if len(said) == counted.stop:
            raise KeyboardInterrupt

    counted.stop = -1
    monkeypatch.setattr(Progress, "say", counted)
    return said, counted


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "every"])
@pytest.mark.parametrize("door", few(DOORS, ["plan", "compare"]))
def test_interrupted_at_every_stage(door, every, stages, capsys):
    said, counted = stages
    want = DOORS[door]()
    total, before = len(said), settings()
    assert total >= 3
    for number in sorted({1, total // 2, total, *((2, 3, total - 1) if every else ())}):
        said.clear()
        counted.stop = number
        known.forget()  # what was compiled before the last interrupt, which would spare stages
        with pytest.raises(KeyboardInterrupt):
            DOORS[door]()
        assert settings() == before
    counted.stop = -1
    known.forget()
    assert DOORS[door]() == want
    assert settings() == before
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer) and not t.finished.is_set()]


def test_interrupted_on_the_way_out_nothing_is_shown_any_more(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.05)
    shown = Progress("work", enabled=True)

    def interrupted():
        raise KeyboardInterrupt

    shown.__enter__()
    shown.say("solving")
    timer = shown._timer
    monkeypatch.setattr(timer, "cancel", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shown.__exit__(None, None, None)
    timer.join(5)
    assert capsys.readouterr().err == ""
    with shown:
        pass


@pytest.mark.slow
def test_a_decorated_function_plans_on_the_next_call(stages):
    said, counted = stages
    planned = rp.remat(loss, budget="70%")
    counted.stop = 2
    monkey = jax.grad(planned)
    with pytest.raises(KeyboardInterrupt):
        monkey(*ARGS)
    assert not planned.plans
    assert jnp.allclose(monkey(*ARGS), jax.grad(loss)(*ARGS), atol=1e-6)
    assert len(planned.plans) == 1


def run_alone(code):
    """Run code in a process of its own, which must end well."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


ANYWHERE = """
import gc, random, signal, sys, threading, time
import jax, jax.numpy as jnp
import remat_plan as rp
from remat_plan.small import progress

def loss(w, x):
    for _ in range(6):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)

def plan():
    return rp.plan(loss, jnp.eye(16), jnp.ones((256, 16)), budget="70%", progress=True).to_json()

def stop(*_):
    raise KeyboardInterrupt

def settings():
    return gc.get_threshold(), gc.isenabled(), dict(jax.config.values)

progress.PATIENCE_SECONDS = 0.01
want = plan()
started, before = time.perf_counter(), settings()
plan()
took = time.perf_counter() - started
signal.signal(signal.SIGALRM, stop)
rng, interrupted = random.Random(7), 0
for _ in range(12):
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.02, 0.95) * took)
        plan()
    except KeyboardInterrupt:
        interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert settings() == before
    assert plan() == want
assert interrupted >= 4, interrupted
deadline = time.perf_counter() + 5
while threading.active_count() > 1 and time.perf_counter() < deadline:
    time.sleep(0.01)
assert threading.active_count() == 1, threading.enumerate()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(__import__("signal"), "setitimer"), reason="this system has no interval timers")
def test_interrupted_anywhere():
    run_alone(ANYWHERE)


IMPORTING = """
import builtins, sys
import jax, numpy, scipy.optimize

own, count = builtins.__import__, 0

def interrupted(name, *args, **kwargs):
    global count
    count += name.startswith("remat_plan")
    if count == STOP and name.startswith("remat_plan"):
        count += 1
        raise KeyboardInterrupt
    return own(name, *args, **kwargs)

for STOP in (2, 10, 40, 90):
    count, builtins.__import__ = 0, interrupted
    try:
        import remat_plan
        for name in remat_plan.__all__:
            getattr(remat_plan, name)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError(f"not interrupted: {count}")
    finally:
        builtins.__import__ = own
import remat_plan as rp, jax.numpy as jnp
plan = rp.plan(lambda w: jnp.sum(jnp.tanh(w @ w)), jnp.eye(8), budget="1GB", verify=False)
assert "plan" in str(plan).lower()
"""


def test_interrupted_imports_can_be_done_again():
    run_alone(IMPORTING)
