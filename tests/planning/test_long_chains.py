"""Chains of many layers keep the quality of short ones."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.cost.builder import Rules
from remat_plan.cost.whole_step import StepProgram
from remat_plan.planning.planner import Planner
from tests.helpers import CPU, assert_trees_close, few, flat_gradient, plain_gradient, planner_schedules, traced

S = jax.ShapeDtypeStruct


def loss(params, x):
    for w in params:
        x = x + jnp.tanh(x @ w)
    return jnp.sum(x**2)


def arguments(count, width=64, rows=1024):
    return [S((width, width), "float32")] * count, S((rows, width), "float32")


class Chain:
    """A planned chain of ``count`` layers, and what its schedules cost by the evaluator."""

    def __init__(self, count):
        self.program = traced(loss, *arguments(count))
        self.rules = Rules(self.program.graph, CPU)
        planner = Planner(self.program.graph, self.rules)
        self.curve = planner.curve
        self.cuts = planner.cuts
        self.plain = self.timeline(self.program.plain)

    def timeline(self, schedule):
        return StepProgram(self.rules).loss_timeline(schedule)

    def own(self, timeline):
        """Bytes beside arguments and results."""
        return timeline.peak_bytes - timeline.argument_bytes - timeline.output_bytes

    def point(self, share):
        """The schedule for a share of the plain step's bytes: promised seconds and predicted bytes, as shares."""
        limit = share * self.own(self.plain)
        point = max(p for p, size in enumerate(self.curve.limits) if size <= limit)
        found = self.timeline(self.curve[point])
        return self.curve.seconds[point] / self.plain.seconds, self.own(found) / self.own(self.plain)


@pytest.fixture(scope="module")
def chains():
    return {count: Chain(count) for count in (60, 200, 600)}


@pytest.mark.parametrize("share", few([0.15, 0.3, 0.51, 0.8], [0.15, 0.51]))
def test_bytes_and_seconds_do_not_depend_on_the_length(chains, share):
    short_seconds, _ = chains[60].point(share)
    for chain in chains.values():
        seconds, predicted = chain.point(share)
        assert seconds <= short_seconds + 0.01
        assert predicted <= share * 1.05


def test_a_longer_chain_needs_a_smaller_share(chains):
    least = [chain.curve.limits[0] / chain.own(chain.plain) for chain in chains.values()]
    assert least[0] > least[1] > least[2]
    assert least[2] < 0.01
    lowest = chains[200].own(chains[200].timeline(chains[200].curve[0]))
    assert lowest <= 1.1 * chains[200].curve.limits[0]


def test_more_memory_is_never_promised_to_cost_more(chains):
    for chain in chains.values():
        assert all(a >= b for a, b in zip(chain.curve.seconds, chain.curve.seconds[1:], strict=False))


def test_values_and_gradients_of_a_chain_in_groups():
    params = [jax.random.normal(jax.random.key(i), (4, 4)) * 0.02 for i in range(129)]
    program = traced(loss, params, jnp.ones((3, 4)))
    leaves = program.call.leaves
    want = plain_gradient(program)(*leaves)
    for schedule in planner_schedules(program, limit=2):
        assert_trees_close(flat_gradient(program, schedule)(*leaves), want)


@pytest.mark.slow
def test_a_plan_within_a_low_budget():
    plan = rp.plan(loss, *arguments(200), budget="30%", target="cpu", verify=False)
    assert plan.predicted_peak_bytes <= plan.budget_bytes
    assert plan.overhead < 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("count", "budget"), [(500, "51%"), (2000, "51%"), (3000, "30%")])
def test_long_chains_compile_within_their_budget(count, budget):
    plan = rp.plan(loss, *arguments(count), budget=budget, target="cpu")
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    assert plan.overhead < 0.2


@pytest.mark.slow
def test_no_schedule_nests_deeper_than_python_calls():
    """Differentiating a checkpoint in a checkpoint calls deeper at each level; the least memory of all nests 99 deep."""
    with pytest.raises(rp.BudgetError) as refused:
        rp.plan(loss, *arguments(100), budget="1%", target="cpu", verify=False)
    plan = rp.plan(loss, *arguments(100), budget=refused.value.minimum_bytes, target="cpu", verify=False)
    assert plan.predicted_peak_bytes < 0.1 * plan.plain_peak_bytes
    assert plan.overhead < 1.2
    jax.make_jaxpr(jax.grad(plan.apply(loss)))(*arguments(100))


@pytest.mark.slow
def test_what_nests_less_deep_compiles_too():
    with pytest.raises(rp.BudgetError) as refused:
        rp.plan(loss, *arguments(100), budget="1%", target="cpu")
    plan = rp.plan(loss, *arguments(100), budget=refused.value.minimum_bytes, target="cpu")
    assert plan.compiled_peak_bytes < 0.1 * plan.plain_peak_bytes
    assert plan.overhead < 1.2
