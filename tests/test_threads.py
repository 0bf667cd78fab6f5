"""Planning and calling planned functions from several threads at once."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_plan as rp
from remat_plan import fitting
from remat_plan.plans import book
from remat_plan.search import known

pytestmark = pytest.mark.usefixtures("quick_search")

THREADS = 8


def loss(w, x):
    x, _ = jax.lax.scan(lambda c, _: (jnp.tanh(jnp.tanh(c @ w) @ w), None), x, None, length=4)
    return jnp.mean(jnp.tanh(x @ w) ** 2)


W = jnp.eye(8) / 2


def rows(n):
    return jnp.linspace(-1, 1, 8 * n).reshape(n, 8)


def at_once(work, inputs):
    """Run ``work`` on each input, in a thread of its own, all begun together."""
    ready = threading.Barrier(len(inputs))

    def begin(given):
        ready.wait(60)
        return work(given)

    with ThreadPoolExecutor(len(inputs)) as pool:
        return list(pool.map(begin, inputs))


@pytest.fixture
def planned_sizes(monkeypatch):
    """How many rows the programs had that were planned, in order."""
    made, plan_program = [], book.plan_program

    def counted(program, *args):
        made.append(program.call.leaves[1].shape[0])
        return plan_program(program, *args)

    monkeypatch.setattr(book, "plan_program", counted)
    return made


@pytest.mark.parametrize("jitted", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    "sizes",
    [(64,) * THREADS, pytest.param(tuple(range(32, 32 + 4 * THREADS, 4)), marks=pytest.mark.slow)],
    ids=["same", "different"],
)
def test_each_shape_is_planned_once(sizes, jitted, planned_sizes):
    planned = rp.remat(loss, strategy="each_block", verify=False)
    step = jax.value_and_grad(planned)
    step = jax.jit(step) if jitted else step
    found = at_once(lambda n: step(W, rows(n)), sizes)
    for n, (value, gradient) in zip(sizes, found, strict=True):
        want, right = jax.value_and_grad(loss)(W, rows(n))
        assert np.allclose(value, want, atol=1e-6)
        assert np.allclose(gradient, right, atol=1e-6)
    assert sorted(planned_sizes) == sorted(set(sizes))
    assert len(planned.plans) == len(set(sizes))


@pytest.mark.slow
def test_plans_of_several_threads_are_those_of_one(monkeypatch):
    """All but what is said of the search: how much is compiled depends on what others have compiled by then."""

    def planned(n):
        plan = json.loads(rp.plan(loss, W, rows(n), budget="70%").to_json())
        return {key: value for key, value in plan.items() if key not in ("search", "notes", "digest")}

    sizes = (64, 96) * (THREADS // 2)
    want = {n: planned(n) for n in set(sizes)}
    assert at_once(planned, sizes) == [want[n] for n in sizes]
    monkeypatch.setattr(known.KnownProgram, "now", lambda self: {})
    assert at_once(planned, sizes) == [want[n] for n in sizes]


def test_what_several_threads_compiled_is_known_to_all():
    numbers = range(40)

    def add(number):
        program = known.KnownProgram("several threads")
        program.add(number, number)
        return set(program.now())

    found = at_once(add, numbers)
    assert all(number in seen for number, seen in zip(numbers, found, strict=True))
    assert set(known.KnownProgram("several threads").now()) == set(numbers)


@pytest.mark.slow
def test_one_plan_is_applied_by_all():
    plan = rp.plan(loss, W, rows(64), strategy="each_block")
    applied = plan.apply(loss)
    want = jax.grad(loss)(W, rows(64))
    for gradient in at_once(lambda _: jax.grad(applied)(W, rows(64)), range(THREADS)):
        assert np.allclose(gradient, want, atol=1e-6)


@pytest.mark.slow
def test_a_fitted_step_is_fitted_once_for_each_shape(monkeypatch):
    fitted, fit_step = [], fitting.fit_step

    def counted(step, *args):
        fitted.append(step)
        return fit_step(step, *args)

    monkeypatch.setattr(fitting, "fit_step", counted)

    def train_step(w, x):
        return w - 0.1 * jax.grad(rp.remat(loss))(w, x)

    sizes = (64, 48) * (THREADS // 2)
    step = rp.fit(train_step, W, rows(64), budget="80%")
    found = at_once(lambda n: step(W, rows(n)), sizes)
    for n, new in zip(sizes, found, strict=True):
        assert np.allclose(new, W - 0.1 * jax.grad(loss)(W, rows(n)), atol=1e-6)
    assert len(fitted) == 2
