"""Every strategy of the registry: right values and gradients, well-formed schedules, equal every time."""

import functools

import jax
import pytest

from remat_plan.graph.schedule import check_cover
from remat_plan.planning.constraints import NO_CONSTRAINTS
from remat_plan.planning.names import known_names
from remat_plan.planning.strategies.find import find_schedules, make_task
from remat_plan.planning.strategies.records import Settings
from remat_plan.report.strategies import Strategies
from tests.helpers import CPU, assert_trees_close, few, flat_gradient, plain_gradient, traced
from tests.zoo import ZOO

pytestmark = [
    pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive"),
    pytest.mark.filterwarnings("ignore:remat_plan. a while loop"),
]

FIND = [row for row in Strategies() if row.find is not None]
FEW = ("convolution_and_pooling", "own_checkpoint", "u_net")
NAMED = ("collection", "mirror")


@functools.cache
def case_of(name):
    case = ZOO[name]
    program = traced(case.fn, *case.args, **case.options)
    return program, jax.jit(plain_gradient(program))(*program.call.leaves)


def settings_for(row, program):
    if row.name == "mirror":
        return Settings(counts=tuple((name, i % 2) for i, name in enumerate(known_names(program.graph))))
    return Settings(slots=2) if row.name == "binomial" else Settings()


def check(row, name):
    program, want = case_of(name)
    if row.name in NAMED and not known_names(program.graph):
        pytest.skip("the case has no names")
    task = make_task(program.graph, CPU, NO_CONSTRAINTS, settings_for(row, program))
    found = find_schedules(row, task)
    assert found == find_schedules(row, task), "the same every time"
    assert found.schedules
    assert all(found.notes)
    for schedule in dict.fromkeys((found.schedules[0], found.schedules[-1])):
        check_cover(schedule, 0, len(program.graph.ops))
        got = jax.jit(flat_gradient(program, schedule))(*program.call.leaves)
        coarse = any(
            str(value.aval.dtype) == "bfloat16" for value in program.graph.values if hasattr(value.aval, "dtype")
        )
        assert_trees_close(got, want, *((0.05, 0.02) if coarse else (2e-4, 2e-5)))


@pytest.mark.parametrize("name", few(FEW, ["own_checkpoint"]))
@pytest.mark.parametrize("row", FIND, ids=lambda row: row.name)
def test_values_and_gradients(row, name):
    check(row, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in ZOO if n not in FEW])
@pytest.mark.parametrize("row", FIND, ids=lambda row: row.name)
def test_values_and_gradients_of_the_whole_zoo(row, name):
    check(row, name)
