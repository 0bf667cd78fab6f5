"""Strategies and structures: every one finds schedules for every other, and scanned layers follow the laws of chains."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.graph.schedule import check_cover
from remat_plan.graph.structure import structure_of
from remat_plan.planning.constraints import NO_CONSTRAINTS
from remat_plan.planning.strategies.find import find_schedules, make_task
from remat_plan.planning.strategies.records import Settings
from remat_plan.report.strategies import Strategies
from remat_plan.search.judge import Judge
from remat_plan.small.progress import Progress
from remat_plan.verify.targets import resolve
from tests.helpers import CPU, assert_trees_close, few, flat_gradient, plain_gradient, traced
from tests.strategies import least
from tests.structured_zoo import STRUCTURED

pytestmark = pytest.mark.filterwarnings("ignore:remat_plan. a while loop")

STEPS, WIDTH, ROWS = 16, 64, 4096
W = (
    jax.ShapeDtypeStruct((STEPS, WIDTH, 2 * WIDTH), "float32"),
    jax.ShapeDtypeStruct((STEPS, 2 * WIDTH, WIDTH), "float32"),
)
X = jax.ShapeDtypeStruct((ROWS, WIDTH), "float32")


def block(x, w):
    return x + jnp.tanh(jnp.sin(x @ w[0])) @ w[1], None


def scanned(w, x):
    return jnp.mean(lax.scan(block, x, w)[0] ** 2)


def unrolled(w, x):
    for i in range(STEPS):
        x = block(x, (w[0][i], w[1][i]))[0]
    return jnp.mean(x**2)


@functools.cache
def judge_of(fn):
    return Judge(traced(fn, W, X), resolve("cpu"), Progress("test", False))


LAWFUL = {"memory": {}, "budgeted": {}, "each_block": {}, "log": {}, "binomial": {"slots": 3}, "dots": {}, "speed": {}}


@functools.cache
def shares(fn, name):
    """The peaks of a strategy, predicted and compiled, as shares of those of the function as it is."""
    judge = judge_of(fn)
    schedule, plain = least(judge, name, **LAWFUL[name]), judge.program.plain
    predicted = judge.predicted_bytes(schedule) / judge.predicted_bytes(plain)
    return predicted, judge.compiled_bytes(schedule) / judge.compiled_bytes(plain)


@pytest.mark.parametrize("name", few(LAWFUL, ["binomial"]))
def test_scanned_layers_shrink_as_written_out_ones_do(name):
    for written_out, under_a_scan in zip(shares(unrolled, name), shares(scanned, name), strict=True):
        assert written_out < 0.9
        assert under_a_scan <= 1.25 * written_out


@pytest.mark.slow
def test_a_scanned_model_needs_less_without_a_budget():
    def peak(fn):
        memory = jax.jit(jax.grad(fn)).lower(W, X).compile().memory_analysis()
        return memory.temp_size_in_bytes

    assert peak(rp.remat(scanned)) < 0.5 * peak(scanned)


FIND = [row for row in Strategies() if row.find is not None and row.settings not in ("Collection", "Mirror")]
QUICK = {("memory", "scanned"), ("each_block", "cond_in_scan")}
PAIRS = [(row.name, member) for row in FIND for member in STRUCTURED]


@functools.cache
def member_of(name):
    loss, args = STRUCTURED[name]
    program = traced(loss, *args)
    return program, jax.jit(plain_gradient(program))(*program.call.leaves)


@pytest.mark.parametrize(("strategy", "member"), few(PAIRS, QUICK))
def test_every_strategy_finds_schedules_for_every_structure(strategy, member):
    """It covers the program, is the same every time, and the gradients are those of the function."""
    program, want = member_of(member)
    row = rp.strategies()[strategy]
    task = make_task(program.graph, CPU, NO_CONSTRAINTS, Settings(slots=2 if strategy == "binomial" else None))
    found = find_schedules(row, task)
    assert found == find_schedules(row, task)
    assert found.schedules
    for schedule in dict.fromkeys((found.schedules[0], found.schedules[-1])):
        check_cover(schedule, 0, len(program.graph.ops))
        got = jax.jit(flat_gradient(program, schedule))(*program.call.leaves)
        assert_trees_close(got, want, 2e-4, 2e-5)
    if strategy in LAWFUL and any(structure_of(op) for op in program.graph.ops):
        assert any(segment.choices for schedule in found.schedules for segment in schedule)


def named_inside(w, x):
    def step(x, w):
        return x + jnp.tanh(jnp.sin(checkpoint_name(x @ w[0], "hidden"))) @ w[1], None

    return jnp.mean(lax.scan(step, x, w)[0] ** 2)


def named_outside(w, x):
    return scanned(w, checkpoint_name(jnp.sin(x * w[0][0, 0, 0]), "hidden"))


@pytest.mark.parametrize("fn", [named_inside, named_outside])
@pytest.mark.parametrize("strategy", [rp.Collection(names=["hidden"]), rp.Mirror(counts={"hidden": 0}), "collection"])
def test_names_are_found_in_loops_and_beside_them(fn, strategy):
    plain = rp.plan(fn, W, X, strategy="everything", target="cpu", verify=False)
    plan = rp.plan(fn, W, X, strategy=strategy, target="cpu", verify=False)
    assert plan.predicted_peak_bytes < (0.8 if fn is named_inside else 1.001) * plain.predicted_peak_bytes
    with pytest.raises(ValueError, match="no value is named 'other'"):
        rp.plan(fn, W, X, strategy=rp.Collection(names=["hidden", "other"]), target="cpu", verify=False)
