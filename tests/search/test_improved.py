"""Plans of small programs come from the local search too; larger programs and named strategies are left alone."""

import dataclasses

import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost.hardware import hardware_for
from remat_plan.planning.constraints import NO_CONSTRAINTS
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.front import find
from remat_plan.search.judge import Judge
from remat_plan.small.progress import Progress
from remat_plan.verify.targets import resolve as place
from tests.helpers import traced

AUTO = Request(lookup("auto"), False, (0,), False, (), "replan")


def diamond(layers):
    """Two branches of unequal length that are multiplied in the end."""

    def loss(w, x):
        a = b = jnp.tanh(x @ w[0])
        for layer in w[1:layers]:
            a = jnp.tanh(a @ layer)
        for layer in w[layers:]:
            b = jnp.sin(b @ layer)
        return jnp.sum((a * b) ** 2)

    program = traced(loss, [jnp.ones((32, 32))] * (layers + 2), jnp.ones((512, 32)))
    judge = Judge(program, place("cpu"), Progress("test", False))
    return judge, Candidates(judge.rules, Progress("test", False))


@pytest.mark.slow
def test_a_small_program_gets_what_nothing_else_offers():
    judge, candidates = diamond(4)
    curves = candidates.planner(NO_CONSTRAINTS).curves
    points = [schedule for curve in curves for schedule in curve]
    others = [judge.program.plain, *points, *candidates.uniform(AUTO)]
    found = candidates.improved(AUTO, judge.cost, judge.identity)
    gains = []
    for peak, price in map(judge.cost, others):
        best = min(judge.price(s) for s in found if judge.predicted_bytes(s) <= peak)
        assert best <= price * (1 + 1e-6)
        gains.append(price / best)
    assert max(gains) > 1.02
    budget = judge.predicted_bytes(others[gains.index(max(gains))])
    known = min(judge.price(s) for s in others if judge.predicted_bytes(s) <= budget)
    planned = find(judge, candidates, budget, AUTO)
    assert judge.predicted_bytes(planned) <= budget
    assert judge.price(planned) < 0.98 * known


@pytest.mark.slow
def test_what_is_found_depends_on_no_earlier_budget():
    judge, candidates = diamond(1)
    first = candidates.improved(AUTO, judge.cost, judge.identity)
    find(judge, candidates, judge.predicted_bytes(first[0]), AUTO)
    again, fresh = diamond(1)
    assert candidates.improved(AUTO, judge.cost, judge.identity) == first
    assert fresh.improved(AUTO, again.cost, object()) == first, "searched anew"


@pytest.mark.slow
def test_a_program_is_searched_once():
    judged = []

    def counted(judge):
        return lambda schedule: judged.append(schedule) or judge.cost(schedule)

    judge, candidates = diamond(1)
    first = candidates.improved(AUTO, counted(judge), ("once", judge.identity))
    searched = len(judged)
    again, others = diamond(1)
    assert others.improved(AUTO, counted(again), ("once", again.identity)) == first
    assert len(judged) == searched > 0
    longer, others = diamond(2)
    assert others.improved(AUTO, counted(longer), ("once", longer.identity)) != first
    assert len(judged) > searched


@pytest.mark.slow
def test_equations_with_long_gradients_are_searched_less():
    """Each of four cumulative products has over a hundred equations in its gradient, all evaluated each time."""

    def loss(ws, x):
        for w in ws:
            x = lax.cumprod(jnp.tanh(x @ w), 1)
        return jnp.mean(x**2)

    program = traced(loss, [jnp.ones((16, 16))] * 4, jnp.ones((128, 16)))
    judge, judged = Judge(program, place("cpu"), Progress("test", False)), []
    candidates = Candidates(judge.rules, Progress("test", False))
    assert len(candidates.improved(AUTO, lambda s: judged.append(s) or judge.cost(s), object())) > 1
    assert 100 < len(judged) < 250


def test_what_costs_differ_by_tells_programs_apart():
    judge, _ = diamond(2)
    other, _ = diamond(2)
    assert judge.identity == other.identity
    for hardware in (hardware_for("gpu:h100", "gpu"), dataclasses.replace(judge.hardware, rates={"dot": 1.0})):
        other.hardware = hardware
        assert other.identity != judge.identity


def test_larger_programs_and_named_strategies_are_left_alone():
    judge, candidates = diamond(24)
    assert len(judge.program.graph.ops) > 40
    assert candidates.improved(AUTO, judge.cost, judge.identity) == ()
    judge, candidates = diamond(2)
    named = Request(lookup("memory"), False, (0,), False, (), "replan")
    assert candidates.improved(named, judge.cost, judge.identity) == ()
