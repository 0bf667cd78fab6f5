"""What is remembered of a program from one plan to the next, and what tells programs apart."""

import dataclasses
import re
from unittest.mock import ANY

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.action import Action, register_action
from remat_plan.planning import planner, splits
from remat_plan.planning.constraints import NO_CONSTRAINTS, make_constraints
from remat_plan.planning.limits import resolve
from remat_plan.small import remembered
from tests.helpers import sine_by_rule, traced

pytestmark = pytest.mark.usefixtures("quick_search")

W, X = [jnp.eye(16) / 3] * 5, jnp.linspace(0, 1, 16 * 512).reshape(512, 16)


@pytest.fixture
def solved(monkeypatch):
    """How many runs of programs were solved."""
    found = []
    solve = planner.find_options
    monkeypatch.setattr(planner, "find_options", lambda *args: found.append(args) or solve(*args))
    return found


def layers(act):
    def loss(ws, x):
        for w in ws:
            x = act(x @ w)
        return jnp.sum(x)

    return loss


def planned(fn=None, **options):
    return rp.plan(fn or layers(jnp.sin), W, X, budget="80%", target="cpu", verify=False, **options)


def test_another_budget_solves_nothing_again(solved):
    first = planned()
    assert solved
    solved.clear()
    again = planned()
    less = rp.plan(layers(jnp.sin), W, X, budget="60%", target="cpu", verify=False)
    assert solved == []
    assert (again.schedule, again.overhead) == (first.schedule, first.overhead)
    remembered.forget()
    assert rp.plan(layers(jnp.sin), W, X, budget="60%", target="cpu", verify=False).schedule == less.schedule


@pytest.mark.parametrize(
    "other",
    [
        lambda: planned(layers(jnp.cos)),
        lambda: planned(argnums=1),
        lambda: planned(never_recompute=["dot_general"]),
        lambda: register_action(Action("elsewhere", offered=False)) or planned(),
    ],
    ids=["function", "arguments", "constraint", "action"],
)
def test_another_program_is_solved(solved, other):
    planned()
    solved.clear()
    other()
    assert solved


def test_another_budget_predicts_no_schedule_twice(monkeypatch):
    found = []
    evaluated = StepProgram.loss_timeline
    monkeypatch.setattr(StepProgram, "loss_timeline", lambda self, s: found.append(s) or evaluated(self, s))
    first = planned()
    assert len(found) == len(set(found)) > 1
    assert planned() == dataclasses.replace(first, planning_seconds=ANY)
    rp.plan(layers(jnp.sin), W, X, budget="60%", target="cpu", verify=False)
    assert len(found) == len(set(found))


def test_timelines_tell_of_the_lines_of_their_own_program():
    def other(ws, x):
        for w in ws:
            x = jnp.sin(x @ w)
        return jnp.sum(x)

    def told(fn):
        with pytest.raises(rp.BudgetError) as info:
            rp.plan(fn, W, X, budget=1, target="cpu", verify=False)
        return set(re.findall(r"test_remembered.py:\d+", str(info.value)))

    one, another = told(layers(jnp.sin)), told(other)
    assert one
    assert another
    assert one.isdisjoint(another)


def test_another_budget_slices_nothing_again(monkeypatch):
    """The batch is small, so that the program may be run in slices of it."""
    found = []
    monkeypatch.setattr("remat_plan.graph.slices._make", lambda *args: found.append(args))
    monkeypatch.setattr(splits, "LEAST_SLICE_BYTES", 0)
    planned()
    assert found
    found.clear()
    rp.plan(layers(jnp.sin), W, X, budget="70%", target="cpu", verify=False)
    assert not [segment for _, segment, _ in found if segment.end - segment.start > len(W)]


def test_a_rule_of_its_own_makes_another_program(solved):
    planned(layers(sine_by_rule(True)))
    solved.clear()
    planned(layers(sine_by_rule(False)))
    assert solved


def test_what_is_found_within_limits_of_regions_is_not_remembered():
    """These go by addresses, which another program may have."""

    def scanned(ws, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.sin(jnp.cos(x @ w)), None), x, ws)[0])

    graph = traced(scanned, jnp.stack(W), X).graph
    free = resolve(graph, NO_CONSTRAINTS).key
    assert free is not None
    assert free == resolve(graph, NO_CONSTRAINTS).key
    assert resolve(graph, make_constraints((), (), ("dot_general",), ())).key is None
