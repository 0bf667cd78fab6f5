"""``goal="time"`` and the last word on seconds: who is asked, and what it takes to change the schedule."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.clock.turns import Ratio
from remat_plan.planning.strategies.registry import lookup
from remat_plan.plans import one_program
from remat_plan.search.candidates import TIME, Candidates, Request
from remat_plan.search.judge import Judge
from remat_plan.search.seconds import SURE, by_clock, can_run, faster_by, find_fastest, proposed
from remat_plan.small.progress import Progress
from remat_plan.verify.targets import resolve
from tests.helpers import assert_trees_close, traced

pytestmark = pytest.mark.usefixtures("quick_search")

W = [jnp.ones((32, 32)) / 32] * 6
X = jnp.ones((512, 32))


def loss(weights, x):
    for w in weights:
        x = x + jnp.tanh(jnp.sin(x) @ w)
    return jnp.mean(x**2)


@functools.cache
def judge():
    return Judge(traced(loss, W, X), resolve("cpu"), Progress("test", False))


def searched():
    return Candidates(judge().rules, judge().progress), Request(
        lookup("auto"), True, (0,), False, (), "replan", goal=TIME
    )


def exactly(value):
    return Ratio(value, value, value)


def test_the_fastest_is_taken_and_plain_stays_where_nothing_is_surely_faster():
    candidates, request = searched()
    schedules = proposed(judge(), candidates, request)
    assert judge().program.plain not in schedules
    assert len(schedules) > 2
    chosen = schedules[-1]
    for value, want in ((1 - 2 * SURE, chosen), (1 - SURE / 2, judge().program.plain), (1.2, judge().program.plain)):

        def seconds(asked, value=value):
            return [exactly(value if s == chosen else 1.0) for s in asked]

        assert find_fastest(judge(), candidates, request, seconds) == want


def test_some_candidates_need_much_less_memory():
    candidates, request = searched()
    peaks = [judge().predicted_bytes(s) for s in proposed(judge(), candidates, request)]
    assert min(peaks) < 0.6 * judge().predicted_bytes(judge().program.plain)


def test_constraints_hold_whatever_is_fastest():
    def named(w, x):
        return jnp.mean(checkpoint_name(jnp.tanh(x @ w), "act") ** 2)

    plan = rp.plan(named, W[0], X, goal="time", must_recompute=["act"])
    assert plan.schedule != rp.plan(named, W[0], X, goal="time").schedule
    assert [s for s in plan.schedule if s.checkpointed]


def test_an_unchanged_function_promises_nothing():
    """Its compiled peak is that of the plain step, however far from it the predicted one is."""

    def small(w, x):
        for _ in range(3):
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    plan = rp.plan(small, jnp.ones((16, 16)) / 16, jnp.ones((64, 16)), strategy="everything")
    assert plan.compiled_peak_bytes == plan.plain_peak_bytes > plan.predicted_peak_bytes
    assert not [note for note in plan.notes if "was predicted" in note]


def test_noise_and_silence_change_nothing():
    a, b, c = ((name,) for name in "abc")
    noisy = {a: exactly(1.0), b: Ratio(0.8, 0.6, 1.1), c: None}
    assert faster_by(lambda asked: [noisy[s] for s in asked], a, [b, c]) == a
    assert faster_by(lambda asked: [None for _ in asked], a, [b]) == a
    sure = noisy | {b: Ratio(0.8, 0.7, 0.9)}
    assert faster_by(lambda asked: [sure[s] for s in asked], a, [c, b, a]) == b


def test_the_clock_runs_what_it_is_asked_for():
    assert can_run(judge())
    slow = judge().program.plain
    (ratio,) = by_clock(judge())([slow])
    assert 0 < ratio.low <= ratio.value <= ratio.high
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (W, X))
    assert not can_run(Judge(traced(loss, *shapes), resolve("cpu"), Progress("test", False)))


@pytest.mark.slow
def test_a_plan_for_time_by_the_clock():
    plan = rp.plan(loss, W, X, goal="time")
    assert plan.budget == "none"
    assert plan.budget_bytes is None
    assert "schedules by the clock" in "".join(plan.notes)
    assert sum(row.chosen for row in plan.search.rows) == 1
    assert all(row.measured_overhead is not None for row in plan.search.rows)
    assert rp.Plan.from_json(plan.to_json()) == plan
    assert_trees_close(jax.grad(plan.apply(loss))(W, X), jax.grad(loss)(W, X), 1e-5, 1e-6)


def test_a_plan_for_time_by_the_compiler():
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (W, X))
    plan = rp.plan(loss, *shapes, goal="time")
    assert "schedules by the compiler" in "".join(plan.notes)
    assert all(row.measured_overhead is None and row.compiled_overhead is not None for row in plan.search.rows)
    least = min(row.compiled_overhead for row in plan.search.rows)
    (chosen,) = [row for row in plan.search.rows if row.chosen]
    assert chosen.compiled_overhead <= least + SURE


def test_what_stays_is_not_called_the_fastest(monkeypatch):
    measured = iter([Ratio(1.001, 0.9, 1.1)])
    monkeypatch.setattr(one_program, "by_clock", lambda _: lambda asked: [next(measured, exactly(1.0)) for _ in asked])
    plan = rp.plan(loss, W, X, goal="time")
    assert plan.compiled_peak_bytes == plan.plain_peak_bytes
    assert re.fullmatch(r"none of \d+ other schedules by the clock is clearly faster", plan.notes[0])


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"goal": "speed"}, "goal='speed': choose 'memory' .* or 'time'"),
        ({"goal": "time", "budget": "60%"}, "so it does not take budget. For the fastest plan within a budget"),
        ({"goal": "time", "strategy": "memory"}, "so it does not take strategy"),
        ({"goal": "time", "verify": False}, "so it does not take verify=False"),
    ],
)
def test_what_contradicts_the_goal(more, text):
    with pytest.raises(ValueError, match=text):
        rp.plan(loss, W, X, **more)


@pytest.mark.slow
def test_the_log_of_a_search():
    plan = rp.plan(loss, W, X, budget="60%")
    chosen = [row for row in plan.search.rows if row.chosen]
    assert [row.compiled_peak_bytes for row in chosen] == [plan.compiled_peak_bytes]
    assert chosen[0].overhead == plan.overhead
    assert chosen[0].fits
    assert chosen[0].compiled_overhead == plan.compiled_overhead
    text = str(plan.search)
    assert "Schedules that the search compiled" in text
    assert "chosen" in text
    assert "compiler" in text
    assert "too large" in text or all(row.fits for row in plan.search.rows)
    assert "<table" in plan.search._repr_html_()
    data = json.loads(plan.to_json())
    data["search"][0]["overhead"] = None
    with pytest.raises(ValueError, match=r"search\[0\].overhead is null, not a number"):
        rp.Plan.from_json(json.dumps(data))
