"""What a session measures and what it tries where the curves end."""

import jax
import pytest

import remat_plan as rp
from benchmarks.common import raw_step
from benchmarks.models import small
from remat_plan.by_name import Request
from remat_plan.program import trace_program
from remat_plan.report.progress import Progress
from remat_plan.session import Session
from remat_plan.units import BudgetError
from remat_plan.verify.targets import resolve


def session_of(model):
    program = trace_program(model.loss, (model.params, model.batch), {}, 0, False, (), "replan")
    return Session(program, resolve("cpu"), Progress("tests", False))


def of_xla(step, structs):
    memory = jax.jit(step, compiler_options=rp.compiler_options("cpu")).lower(*structs).compile().memory_analysis()
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


@pytest.mark.parametrize("name", ["densenet", "resnet50"])
def test_the_plain_peak_is_that_of_the_function_as_it_is(name):
    """Both repeat equations in their normalisations, which are merged before planning."""
    model = small(name)
    session = session_of(model)
    assert session.program.graph.merged > 0
    assert session.baseline_bytes(True) == pytest.approx(of_xla(*raw_step(model, model.loss)), abs=256)


def test_a_plan_that_recomputes_nothing_fits_too():
    model = small("densenet")
    plan = rp.plan(model.loss, model.params, model.batch, budget="100%", target="cpu")
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    assert of_xla(*raw_step(model, plan.apply(model.loss))) <= plan.budget_bytes


@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_below_the_curves_segments_that_save_nothing_are_tried(name):
    model = small(name)
    session = session_of(model)
    lean = session.lean_schedules(Request("auto", False, (0,), False, (), "replan"))
    assert lean
    least = min(session.timeline(schedule).peak_bytes for schedule in lean)
    with pytest.raises(BudgetError) as told:
        rp.plan(model.loss, model.params, model.batch, budget=1, target="cpu", verify=False)
    assert told.value.minimum_bytes <= least
    rp.plan(model.loss, model.params, model.batch, budget=least, target="cpu", verify=False)
