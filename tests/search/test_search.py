"""What a search measures, and what it tries where the curves end."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from benchmarks.common import raw_step
from benchmarks.headlines.lstm import lstm
from benchmarks.headlines.resnets import Shape, resnet
from benchmarks.models import small
from remat_plan.graph.schedule import emptied
from remat_plan.planning.strategies.registry import lookup
from remat_plan.plans.one_program import make_plan
from remat_plan.search import judge as judging
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.front import find
from remat_plan.search.judge import Judge
from remat_plan.small.budget import BudgetError, parse_budget
from remat_plan.small.progress import Progress
from remat_plan.traced.programs import trace_program
from remat_plan.verify.compile import CompiledMemory
from remat_plan.verify.targets import resolve
from tests.helpers import CPU, few

REQUEST = Request(lookup("auto"), True, (0,), False, (), "replan")


def judge_of(loss, *args):
    program = trace_program(loss, args, {}, 0, False, (), "replan")
    return Judge(program, resolve("cpu"), Progress("tests", False))


def plan_by(judge, budget):
    return make_plan(judge, Candidates(judge.rules, judge.progress), parse_budget(budget), REQUEST, 0.0)


def of_xla(step, structs):
    memory = jax.jit(step, compiler_options=rp.compiler_options("cpu")).lower(*structs).compile().memory_analysis()
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


SLOW = pytest.mark.slow
OWN = {"tiny": lambda: resnet("tiny", Shape((1,), 8, False, 8, 16, 10), False)}


def model_of(name):
    return OWN[name]() if name in OWN else small(name)


@pytest.mark.parametrize("name", ["tiny", *(pytest.param(n, marks=SLOW) for n in ("densenet", "resnet50"))])
def test_the_plain_peak_is_that_of_the_function_as_it_is(name):
    """All repeat equations in their normalisations, which are merged before planning."""
    model = model_of(name)
    judge = judge_of(model.loss, model.params, model.batch)
    assert judge.program.graph.merged > 0
    assert judge.compiled_bytes(judge.baseline) == pytest.approx(of_xla(*raw_step(model, model.loss)), abs=256)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "densenet"])
def test_a_plan_that_recomputes_nothing_fits_too(name):
    model = model_of(name)
    plan = rp.plan(model.loss, model.params, model.batch, budget="100%", target="cpu")
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    assert of_xla(*raw_step(model, plan.apply(model.loss))) <= plan.budget_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "gpt2", "unet"])
def test_the_least_is_no_more_than_with_segments_that_save_nothing(name):
    model = small(name)
    judge = judge_of(model.loss, model.params, model.batch)
    curve = Candidates(judge.rules, judge.progress).planner(REQUEST.constraints).curve
    least = min(judge.predicted_bytes(emptied(schedule)) for schedule in curve[:17])
    with pytest.raises(BudgetError) as told:
        rp.plan(model.loss, model.params, model.batch, budget=1, target="cpu", verify=False)
    assert told.value.minimum_bytes <= least
    rp.plan(model.loss, model.params, model.batch, budget=least, target="cpu", verify=False)


def chain(weights, x):
    for w in weights:
        x = jax.nn.gelu(jnp.tanh(x @ w) @ w.T)
    return jnp.sum(x)


CHAIN = [jax.ShapeDtypeStruct((32, 64), "float32")] * 6, jax.ShapeDtypeStruct((4096, 32), "float32")


class KnowingJudge(Judge):
    """Compiles each schedule of the chain once for all tests."""

    memories: ClassVar[dict[Any, CompiledMemory]] = {}

    def __init__(self):
        program = trace_program(chain, CHAIN, {}, 0, False, (), "replan")
        with pytest.MonkeyPatch.context() as patch:  # what is chosen depends on no machine
            patch.setattr("remat_plan.search.judge.hardware_of", lambda *_: CPU)
            super().__init__(program, resolve("cpu"), Progress("", False))

    def compiled(self, schedule):
        self.asked.append(schedule)
        if schedule not in self.memories:
            self.memories[schedule] = super().compiled(schedule)
        self.compiles = self.count()
        return self.memories[schedule]

    def compiled_peak(self, budget, request=REQUEST):
        plan = make_plan(self, Candidates(self.rules, self.progress), parse_budget(budget), request, 0.0)
        assert self.compiled_bytes(plan.schedule) == plan.compiled_peak_bytes
        return plan.compiled_peak_bytes

    def count(self):
        """How often it compiled, the plain step included."""
        return len(set(self.asked))


@pytest.fixture(scope="module")
def reachable():
    """The least peak that the search reaches."""
    with pytest.raises(BudgetError) as told:
        KnowingJudge().compiled_peak(1)
    return told.value.minimum_bytes


@pytest.mark.parametrize("share", few([1.0, 1.02, 1.1, 1.6], [1.0]))
def test_few_compiles_find_a_budget(reachable, share):
    budget, judge = int(share * reachable), KnowingJudge()
    assert 0.9 * budget < judge.compiled_peak(budget) <= budget
    assert judge.count() <= 5


@pytest.mark.slow
def test_a_strategy_by_name_is_searched_with_few_compiles_too():
    """Of its own schedules only, though others are between them."""
    judge = KnowingJudge()
    request = dataclasses.replace(REQUEST, strategy=lookup("milp"))
    family = Candidates(judge.rules, judge.progress).named(request).schedules
    budget = sorted(map(judge.predicted_bytes, family))[len(family) // 2]
    assert 0.8 * budget < judge.compiled_peak(budget, request) <= budget
    assert judge.count() <= 5
    assert {*judge.asked} <= {*family, judge.program.plain, judge.unplanned}


@pytest.mark.slow
def test_a_strategy_with_one_schedule_has_that_one_compiled():
    judge = KnowingJudge()
    request = dataclasses.replace(REQUEST, strategy=lookup("each_block"))
    judge.compiled_peak(judge.predicted_bytes(judge.program.plain) - 1, request)
    assert judge.count() == 2


def scanned_rnn(w, xs):
    def step(h, x):
        z = jax.nn.sigmoid(h @ w[0] + x)
        return z * h + (1 - z) * jnp.tanh(h @ w[1] + x), None

    return jnp.mean(jax.lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[0] ** 2)


RNN = (jax.ShapeDtypeStruct((32, 32), "float32"),) * 2, jax.ShapeDtypeStruct((200, 32, 32), "float32")


@pytest.fixture
def compiles(monkeypatch):
    """The peaks of all programs that are compiled from here on."""
    peaks = []
    original = judging.compile_memory

    def counted(*args, **kwargs):
        memory = original(*args, **kwargs)
        peaks.append(memory.total_bytes)
        return memory

    monkeypatch.setattr(judging, "compile_memory", counted)
    return peaks


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "tried"), [("75%", 2), ("50%", 2), ("30%", 1)])
def test_what_is_known_to_be_too_large_is_not_compiled(compiles, budget, tried):
    """The next point of the curve needs a third more, as the evaluator knows; one between the two may be tried."""
    judge = judge_of(scanned_rnn, *RNN)
    plan = plan_by(judge, budget)
    assert 2 <= len(compiles) <= 1 + tried
    assert compiles[0] == plan.written_peak_bytes
    assert compiles[1] <= plan.budget_bytes
    assert plan.compiled_peak_bytes <= plan.budget_bytes


@pytest.mark.slow
def test_the_way_to_the_steepest_neighbour_is_tried_too():
    """Groups of steps need 1 GB and steps that save their products 8: in between, some of both are best."""
    model = lstm(4096, 1, 1024, 64, 50, 2000)
    judge = judge_of(model.loss, model.params, model.batch)
    plan = plan_by(judge, "10%")
    assert 0.95 * plan.budget_bytes <= plan.compiled_peak_bytes <= plan.budget_bytes
    assert plan.overhead < 0.25


@pytest.mark.slow
def test_predictions_alone_go_between_neighbours_too():
    """At 7 % of the bytes all steps are in groups; for twice as many, fewer of them can be."""
    model = lstm(1024, 1, 256, 16, 50, 200)
    judge = judge_of(model.loss, model.params, model.batch)
    budget_bytes = int(0.15 * judge.predicted_bytes(judge.program.plain))
    found = find(judge, Candidates(judge.rules, judge.progress), budget_bytes, REQUEST)
    assert 0.9 * budget_bytes <= judge.predicted_bytes(found) <= budget_bytes
    assert judge.overhead(found) < 0.15


@pytest.mark.slow
def test_seconds_are_read_of_what_is_compiled_anyway(compiles):
    judge = judge_of(scanned_rnn, *RNN)
    plan = plan_by(judge, "50%")
    before = len(compiles)
    assert plan.compiled_overhead == judge.compiled_overhead(plan.schedule)
    assert judge.compiled_overhead(judge.unplanned) == 0.0
    assert len(compiles) == before
    planned, plain = judge.compiled_seconds(plan.schedule), judge.compiled_seconds(judge.unplanned)
    assert plan.compiled_overhead == planned / plain - 1


def test_a_loop_of_unknown_length_has_no_seconds():
    plan = rp.plan(scanned_rnn, *RNN, strategy=rp.Binomial(slots=8))
    assert plan.compiled_peak_bytes is not None
    assert plan.compiled_overhead is None
