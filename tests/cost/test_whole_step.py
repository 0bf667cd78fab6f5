"""The gradient step put together from VJPs is the one that JAX makes of the same schedule."""

import jax
import pytest

from benchmarks.models import small
from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.memory import evaluate
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import saving
from remat_plan.graph.structure import structure_of
from remat_plan.planning.constraints import NO_CONSTRAINTS
from remat_plan.planning.planner import Planner
from remat_plan.planning.strategies.find import find_schedules, make_task
from remat_plan.planning.strategies.records import NO_SETTINGS
from remat_plan.planning.strategies.registry import lookup
from remat_plan.rewrite.emit import Emitter
from remat_plan.verify.step import GradientStep
from tests.helpers import CPU, few, traced
from tests.zoo import ZOO

pytestmark = pytest.mark.filterwarnings("ignore:remat_plan")
HARDWARE = {"cpu": CPU, "gpu": hardware_for("gpu:h100", "gpu")}

# Programs in which JAX decides more than liveness shows (what a linear solve keeps, where a zero is written out): how
# far both may be apart. Planning never traces candidates: this is how wrong it may be about them.
APART = {
    "complex_inside": 0.07,
    "complex_parameters": 0.07,
    "control_flow": 0.07,
    "custom_jvp": 0.09,
    "custom_linear_solve": 0.1,
    "custom_vjp": 0.09,
    "gradient_inside": 0.11,
    "indexing": 0.15,
    "linear_algebra": 0.13,
    "literal_keys": 0.02,
    "mixed_precision": 0.06,
    "mutable_arrays_without_gradient": 0.04,
    "no_equation_but_one": 0.11,
    "relu_and_friends": 0.03,
    "same_array_twice": 0.06,
    "singular_values": 0.25,  # a forward pass that is differentiated computes the vectors too
    "typed_key_dropout": 0.02,
}

STRUCTURES_APART = {"cpu": (0.11, 0.16), "gpu:h100": (0.13, 0.14)}
"""How far peaks and seconds of programs with loops or branches may be apart: these are put together from passes that are
evaluated one by one, plain ones too. Of the others the bounds are those above."""


def schedules(program, planner):
    task = make_task(program.graph, planner.rules.hardware, NO_CONSTRAINTS, NO_SETTINGS)
    by_rule = [find_schedules(lookup(name), task).schedules for name in ("dots", "each_block")]
    found = [program.plain, *(s for schedules in by_rule for s in schedules)]
    for curve in planner.curves:
        last = len(curve.points) - 1
        found += [curve[p] for p in (0, last // 2, last)]
    return list(dict.fromkeys(found))


def compare(program, hardware, tolerance):
    rules = Rules(program.graph, hardware)
    planner = Planner(program.graph, rules)
    structured = any(structure_of(op) for op in program.graph.ops)
    peak, seconds = STRUCTURES_APART[hardware.name] if structured else (tolerance, tolerance)
    for schedule in schedules(program, planner):
        made = StepProgram(rules).loss_timeline(schedule)
        emitter = Emitter(program.graph, schedule)
        step = GradientStep(lambda *values, run=emitter: run(values), program.call.differentiated)
        found = evaluate(jax.make_jaxpr(step)(*program.call.structs), hardware)
        assert made.argument_bytes == found.argument_bytes
        assert made.output_bytes == pytest.approx(found.output_bytes, rel=0 if structured else tolerance)
        assert made.peak_bytes == pytest.approx(found.peak_bytes, rel=peak), schedule
        assert made.seconds == pytest.approx(found.seconds, rel=seconds), schedule


QUICK = [("mlp", "gpu")]
MODELS = [(name, device) for name in ("gpt2", "unet", "resnet50", "densenet", "mlp") for device in HARDWARE]


@pytest.mark.parametrize(("name", "device"), few(MODELS, QUICK))
def test_models(name, device):
    model = small(name)
    program = traced(model.loss, model.params, model.batch)
    compare(program, HARDWARE[device], 0.002 if device == "cpu" else 0.05)


PROGRAMS = "scan_inside control_flow custom_jvp custom_vjp typed_key_dropout u_net".split()


@pytest.mark.parametrize("name", few(PROGRAMS, ["scan_inside", "custom_vjp", "typed_key_dropout"]))
def test_programs(name):
    case = ZOO[name]
    compare(traced(case.fn, *case.args, **case.options), CPU, APART.get(name, 0.011))


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_all_programs(name):
    case = ZOO[name]
    for hardware in HARDWARE.values():
        compare(traced(case.fn, *case.args, **case.options), hardware, APART.get(name, 0.013))


def test_each_step_knows_the_operation_that_it_is_of():
    """What runs inside a loop is of the loop; forward, again and backward."""
    case = ZOO["scan_inside"]
    program = traced(case.fn, *case.args, **case.options)
    rules = Rules(program.graph, CPU)
    for schedule in (program.plain, (saving(0, len(program.graph.ops)),)):
        timeline = StepProgram(rules).loss_timeline(schedule)
        assert len(timeline.places) == len(timeline.live_bytes)
        assert set(timeline.places) <= {(op.index,) for op in program.graph.ops}
        loops = [(op.index,) for op in program.graph.ops if op.primitive == "scan"]
        assert loops
        assert set(loops) <= set(timeline.places)
