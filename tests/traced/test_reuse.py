"""What was planned and emitted is run again for the same program, and only for the same program."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_plan as rp
from remat_plan import _compat
from remat_plan.plans import book
from remat_plan.rewrite.emit import Emitter
from remat_plan.traced import reuse
from tests.helpers import assert_trees_close

pytestmark = pytest.mark.usefixtures("quick_search")

LAYERS, BATCH, WIDTH = 6, 128, 8
W = jnp.asarray(np.random.default_rng(1).normal(size=(LAYERS, WIDTH, WIDTH)), jnp.float32) / 3
X = jnp.asarray(np.random.default_rng(2).normal(size=(BATCH, WIDTH)), jnp.float32)


def loss(w, x):
    for i in range(LAYERS):
        x = jnp.tanh(x @ w[i])
    return jnp.mean(x**2)


@pytest.fixture
def made(monkeypatch):
    """Counts plans and emissions."""
    counts = {"plans": 0, "emissions": 0}
    plan, emit = book.plan_program, Emitter.__init__

    def counting_plan(*args, **kwargs):
        counts["plans"] += 1
        return plan(*args, **kwargs)

    def counting_emit(self, *args, **kwargs):
        counts["emissions"] += 1
        return emit(self, *args, **kwargs)

    monkeypatch.setattr(book, "plan_program", counting_plan)
    monkeypatch.setattr(Emitter, "__init__", counting_emit)
    return counts


def test_the_second_step_neither_plans_nor_traces(made):
    traces = []

    def counted(w, x):
        traces.append(1)
        return loss(w, x)

    f = rp.remat(counted, strategy="each_block", verify=False)
    step = jax.jit(jax.value_and_grad(f))
    step(W, X)
    before = dict(made), len(traces)
    step(W + 1, X)
    assert (made, len(traces)) == before
    assert made["plans"] == 1
    assert len(traces) == 1


@pytest.mark.slow
def test_traced_again_nothing_is_planned_or_emitted_again(made):
    f = rp.remat(loss, budget="80%", verify=False)
    want = jax.grad(loss)(W, X)
    jax.grad(f)(W, X)
    before = dict(made)
    for transform in (jax.grad(f), jax.jit(jax.grad(f)), jax.jit(lambda w, x: jax.grad(f)(w, x))):
        assert_trees_close(transform(W, X), want)
    jax.vmap(f, (None, 0))(W, jnp.stack([X, X]))
    assert made == before
    f(W, X[:64])
    assert made["plans"] == 2


def test_a_plan_that_is_applied_is_emitted_once(made):
    f = rp.plan(loss, W, X, strategy="each_block", verify=False).apply(loss)
    jax.grad(f)(W, X)
    before = dict(made)
    assert_trees_close(jax.jit(jax.grad(f))(W, X), jax.grad(loss)(W, X))
    assert made == before


def test_closed_over_values_may_change_between_calls(made):
    state = {"scale": 1.0, "table": jnp.ones(WIDTH), "depth": 3}

    def f(w, x):
        for i in range(state["depth"]):
            x = jnp.tanh(x @ w[i]) * state["scale"] + state["table"]
        return jnp.sum(x)

    planned = rp.remat(f, strategy="each_block", verify=False)
    changes = [("scale", 2.0), ("table", jnp.arange(float(WIDTH))), ("depth", 4), ("table", jnp.zeros(WIDTH))]
    assert_trees_close(jax.grad(planned)(W, X), jax.grad(f)(W, X))
    for name, value in changes:
        state[name] = value
        assert_trees_close(jax.value_and_grad(planned)(W, X), jax.value_and_grad(f)(W, X))
    assert made["plans"] == 3, "another table is the same program"


@pytest.mark.slow
def test_closed_over_tracers_do_not_leak():
    kept = rp.remat(lambda scale, w, x: loss(w * scale, x), strategy="each_block", verify=False)

    def outer(scale, w):
        inner = rp.remat(lambda x: loss(w * scale, x), strategy="each_block", verify=False)
        return inner(X) + inner(2 * X) + kept(scale, w, X)

    want = jax.grad(lambda s, w: loss(w * s, X) * 2 + loss(w * s, 2 * X))(0.5, W)
    with jax.checking_leaks():
        assert_trees_close(jax.jit(jax.grad(outer))(0.5, W), want)
        assert_trees_close(jax.grad(jax.jit(outer))(0.5, W), want)
    assert_trees_close(jax.jit(jax.grad(outer))(0.5, W), want)
    assert_trees_close(jax.jit(jax.grad(outer))(0.5, W), want)


@pytest.mark.slow
def test_a_function_used_under_two_traces_with_another_tracer_each_time():
    box = {}
    planned = rp.remat(lambda x: loss(W * box["scale"], x), strategy="each_block", verify=False)

    def with_scale(scale):
        box["scale"] = scale
        return planned(X)

    for scale in (0.5, 2.0):
        want = jax.grad(lambda s: loss(W * s, X))(scale)
        assert_trees_close(jax.grad(with_scale)(scale), want)
        assert_trees_close(jax.jit(jax.grad(with_scale))(scale), want)
    assert_trees_close(with_scale(3.0), loss(W * 3.0, X))


def test_settings_of_the_trace_count(made):
    f = rp.remat(loss, strategy="memory", verify=False)
    f(W, X)
    with jax.default_matmul_precision("highest"):
        assert "HIGHEST" in str(jax.make_jaxpr(f)(W, X))
    assert "HIGHEST" not in str(jax.make_jaxpr(f)(W, X))


def test_custom_rules_of_their_own_are_not_mixed_up():
    def make(factor):
        @jax.custom_vjp
        def scaled(x):
            return x

        scaled.defvjp(lambda x: (x, None), lambda _, g: (g * factor,))
        return scaled

    rules = [make(1.0), make(3.0)]
    planned = rp.remat(lambda w, x: loss(w, rules[0](x)), strategy="each_block", verify=False)
    one = jax.grad(planned, argnums=1)(W, X)
    rules.reverse()
    assert_trees_close(jax.grad(planned, argnums=1)(W, X), 3 * one)


def test_few_emissions_are_kept(monkeypatch):
    monkeypatch.setattr("remat_plan.traced.reuse.MOST_SHAPES", 2)
    planned = rp.checkpoint(jnp.sin, strategy="nothing", verify=False)
    for n in (1, 2, 3, 1):
        planned(jnp.ones(n))
    assert len(planned.book.emissions.kept) == 2
    assert len(planned.plans) == 3, "making a plan takes longer than emitting it again"


@pytest.mark.parametrize("door", ["remat", "apply"])
def test_a_plan_that_the_compiler_undoes_is_told_of_once(door, monkeypatch):
    def loss(w, x):
        for _ in range(6):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    args = jnp.eye(16), jnp.ones((64, 16))
    plan = rp.plan(loss, *args, strategy="each_block", verify=False)
    monkeypatch.setattr(reuse, "_options_asked", False)
    for undone in (True, False, None):
        if undone is None:
            rp.compiler_options()  # who has asked for the options need not be told
        monkeypatch.setattr(_compat, "drops_checkpoint_barriers", lambda undone=undone: undone is not False)
        fn = plan.apply(loss) if door == "apply" else rp.remat(loss, strategy="each_block", verify=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                jax.grad(fn)(*args)
        told = [str(w.message) for w in caught if "undoes jax.checkpoint" in str(w.message)]
        assert len(told) == int(undone is True)
        assert not told or "jax.jit(step, compiler_options=remat_plan.compiler_options())" in told[0]


def test_loops_are_not_undone(monkeypatch):
    monkeypatch.setattr(_compat, "drops_checkpoint_barriers", lambda: True)

    def scanned(ws, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0])

    args = jnp.stack([jnp.eye(16)] * 8), jnp.ones((64, 16))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.grad(rp.remat(scanned, strategy="each_block", verify=False))(*args)
    assert not [w for w in caught if "undoes" in str(w.message)]
