"""What was lowered for one schedule and is repeated in another comes out as if it were lowered there."""

import pytest

from benchmarks.models import small
from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.recording import Recording, Recordings
from remat_plan.cost.whole_step import StepProgram
from remat_plan.planning.planner import Planner
from tests.cost.test_whole_step import schedules
from tests.helpers import CPU, few, traced
from tests.zoo import ZOO

pytestmark = pytest.mark.filterwarnings("ignore:remat_plan")
HARDWARE = {"cpu": CPU, "gpu": hardware_for("gpu:h100", "gpu"), "tpu": hardware_for("tpu:v5e", "tpu")}


def check(program, hardware):
    """Every schedule by itself, then one after another with what the others left, twice."""

    def timeline(schedule):
        step = StepProgram(rules)
        return step.loss_timeline(schedule) if program.is_loss else step.pullback_timeline(schedule)

    rules = Rules(program.graph, hardware)
    candidates = schedules(program, Planner(program.graph, rules))
    alone = []
    for schedule in candidates:
        rules.recordings = Recordings()
        alone.append(timeline(schedule))
    rules.recordings = Recordings()
    assert [timeline(s) for s in candidates] == alone
    assert [timeline(s) for s in candidates] == alone


MODELS = [
    ("mlp", "cpu"),
    ("mlp", "gpu"),
    ("mlp", "tpu"),
    ("gpt2", "cpu"),
    ("unet", "gpu"),
    ("resnet50", "tpu"),
    ("densenet", "cpu"),
]


@pytest.mark.parametrize(("name", "device"), few(MODELS, [("mlp", "gpu")]))
def test_models(name, device):
    model = small(name)
    check(traced(model.loss, model.params, model.batch), HARDWARE[device])


QUICK = [("scan_inside", "cpu"), ("batch_norm", "gpu"), ("custom_vjp", "tpu")]


@pytest.mark.parametrize(("name", "device"), few([(n, device) for n in ZOO for device in HARDWARE], QUICK))
def test_programs(name, device):
    case = ZOO[name]
    check(traced(case.fn, *case.args, **case.options), HARDWARE[device])


def test_a_second_timeline_lowers_next_to_nothing(monkeypatch):
    """All of a chain of segments is repeated: its forward pass, and the backward pass of each of them."""
    model = small("gpt2")
    program = traced(model.loss, model.params, model.batch)
    rules = Rules(program.graph, CPU)
    schedule = Planner(program.graph, rules).curve[0]
    StepProgram(rules).loss_timeline(schedule)
    counted, repeat = [], Recording.repeat
    monkeypatch.setattr(Recording, "repeat", lambda self, *given: counted.append(1) or repeat(self, *given))
    StepProgram(rules).loss_timeline(schedule)
    assert len(counted) == 1 + sum(segment.checkpointed for segment in schedule)
