"""What overhead is set against."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.cost.hardware import hardware_for
from remat_plan.graph.schedule import WRITTEN, as_is, saving
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search import judge
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.front import fastest_first
from remat_plan.search.judge import Judge
from remat_plan.search.mark import Mark, overhead
from remat_plan.small.progress import Progress
from remat_plan.verify.targets import resolve
from tests.cost.memory_bound import LOOPS, SHAPES
from tests.helpers import traced

W, X = [jnp.ones((128, 128)) / 128] * 4, jnp.ones((512, 128))


def loss(weights, x):
    """Normalisations as they are written everywhere: ``x - mean(x)`` stands in each twice."""
    for w in weights:
        mean = jnp.mean(x, -1, keepdims=True)
        variance = jnp.mean((x - mean) ** 2, -1, keepdims=True)
        x = x + jnp.tanh(((x - mean) * jax.lax.rsqrt(variance + 1e-6)) @ w)
    return jnp.mean(x**2)


MEASURED = replace(hardware_for("cpu", "cpu"), measured=True, turned_operand_bytes_per_second=1e9)


def make():
    return Judge(traced(loss, W, X), resolve("cpu"), Progress("test", False))


def test_measured_rates_set_overhead_against_the_function_as_it_is(monkeypatch):
    monkeypatch.setattr("remat_plan.search.judge.hardware_of", lambda *args: MEASURED)
    judge = make()
    plain = judge.program.plain
    assert judge.unplanned != plain
    assert judge.traced(judge.unplanned).seconds > judge.traced(plain).seconds
    assert judge.plain_seconds > judge.timeline(plain).seconds
    assert judge.overhead(judge.unplanned) == 0.0
    assert judge.overhead(plain) == judge.timeline(plain).seconds / judge.plain_seconds - 1 < 0


def test_a_step_as_written_has_no_overhead_by_measured_rates(monkeypatch):
    monkeypatch.setattr("remat_plan.search.judge.hardware_of", lambda *args: MEASURED)
    judge = make()
    request = Request(lookup("auto"), True, (0,), False, (), "replan")
    mark = Mark(judge, Candidates(judge.rules, judge.progress), request)
    assert overhead([mark], (WRITTEN,)) == 0.0
    assert overhead([mark], (judge.program.plain,)) < 0


def test_data_sheets_set_it_against_the_program_that_the_bound_is_of():
    judge = make()
    assert judge.plain_seconds == judge.timeline(judge.program.plain).seconds
    assert judge.overhead(judge.program.plain) == judge.overhead(judge.unplanned) == 0.0


@pytest.mark.parametrize("target", ["cpu", "gpu:h100", "tpu:v5e:1x1"])
def test_time_saved_is_told_whether_choices_count_on_it_or_not(monkeypatch, target):
    """That the compilers agree is tested with them: ``tests/cost/test_accuracy_accelerators.py``."""
    monkeypatch.setattr("remat_plan.search.judge.hardware_of", lambda *args: hardware_for(target, target[:3]))
    plan = rp.plan(LOOPS["scan"], *SHAPES, budget="60%", target="cpu", verify=False)
    assert plan.overhead < -0.15
    assert "predicted: faster than the plain step, with less memory traffic" in str(plan)
    assert not any("certificate" in note for note in plan.notes), "there is no gap"
    assert rp.Plan.from_json(plan.to_json()) == plan


def test_what_was_judged_is_compared_without_being_judged_again(monkeypatch):
    """A search compares all that it knows for each schedule that is proposed: more of them than timelines are kept."""
    monkeypatch.setattr(judge, "_MOST_TIMELINES", 1)
    made, evaluated = make(), []
    timeline = judge.StepProgram.loss_timeline
    monkeypatch.setattr(judge.StepProgram, "loss_timeline", lambda self, s: evaluated.append(s) or timeline(self, s))
    schedules = [(as_is(0, 3), saving(3, n), as_is(n, len(made.program.graph.ops))) for n in (6, 9, 12)]
    for _ in range(3):
        fastest_first(made, schedules, 1 << 40)
    assert sorted(evaluated, key=len) == sorted([*schedules, made.program.plain], key=len)
