"""The strategy ``split``: what needs most runs in slices, everything else is left as it is."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.graph.schedule import as_is
from remat_plan.graph.ways import Plain, Split
from remat_plan.planning.constraints import NO_CONSTRAINTS, make_constraints
from remat_plan.planning.splits import SLICES
from remat_plan.planning.strategies.find import find_schedules, make_task
from remat_plan.planning.strategies.records import NO_SETTINGS
from remat_plan.planning.strategies.registry import lookup
from tests.helpers import CPU, assert_trees_close, few, traced

WORDS, WIDTH, TOKENS = 1024, 32, 256
KEYS = jax.random.split(jax.random.key(0), 3)
PARAMS = {"up": jax.random.normal(KEYS[0], (WIDTH, 64)) / 6, "w": jax.random.normal(KEYS[1], (WIDTH, WORDS)) / 6}
X = jax.random.normal(KEYS[2], (TOKENS, WIDTH))


def layer(p, x):
    return x + jnp.tanh(x @ p["up"]) @ p["up"].T


def head(p, x):
    logits = checkpoint_name(x @ p["w"], "logits")
    return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[:, 0])


def model(p, x):
    """Small layers before a large head."""
    return head(p, layer(p, layer(p, layer(p, x))))


def wide(p, x):
    """Equal layers with a large hidden value, the first of which reads what is not differentiated."""
    for _ in range(6):
        x = x + jnp.tanh(x @ p["w"]) @ p["w"].T / 32
    return jnp.mean(x**2)


def scanned(p, x):
    return jnp.mean(lax.scan(lambda x, _: (x + jnp.tanh(x @ p["w"]) @ p["w"].T, None), x, None, length=3)[0] ** 2)


def found(fn, constraints=NO_CONSTRAINTS, spread=False, **options):
    program = traced(fn, PARAMS, X, **options)
    task = make_task(program.graph, CPU, constraints, NO_SETTINGS, spread)
    return program.graph, find_schedules(lookup("split"), task)


def splits_in(schedule):
    return [segment for segment in schedule if isinstance(segment.way, Split)]


def test_the_head_is_split_and_nothing_else():
    graph, made = found(model)
    assert made.notes == ("1 run of blocks is split, all else is unchanged",)
    assert {splits_in(schedule)[0].way.slices for schedule in made.schedules} == set(SLICES)
    for schedule in made.schedules:
        (segment,) = splits_in(schedule)
        assert graph.values[segment.way.value].aval.shape == (TOKENS, WORDS)
        assert all(other.way == Plain() for other in schedule if other is not segment)
    assert any(splits_in(s)[0].way.gradient_first for s in made.schedules)


def test_equal_layers_are_split_alike():
    for schedule in found(wide)[1].schedules:
        ways = [segment.way for segment in splits_in(schedule)]
        assert len(ways) == 6
        assert len({(way.dimension, way.slices) for way in ways}) == 1


@pytest.mark.parametrize("fn", few([model, wide, scanned], [scanned]))
def test_a_plan_without_a_budget(fn):
    """The fewest bytes of all numbers of slices, half of those of the function at most."""
    plan = rp.plan(fn, PARAMS, X, strategy="split")
    assert plan.budget_bytes is None
    assert plan.compiled_peak_bytes < 0.6 * plan.written_peak_bytes
    gradient = jax.jit(jax.grad(plan.apply(fn)))(PARAMS, X)
    assert_trees_close(gradient, jax.grad(fn)(PARAMS, X), 1e-4, 1e-5)
    again = rp.Plan.from_json(plan.to_json())
    assert again.schedule == plan.schedule


def test_a_budget_chooses_among_the_numbers_of_slices():
    plan = rp.plan(model, PARAMS, X, strategy="split", budget="70%", verify=False)
    assert plan.predicted_peak_bytes <= plan.budget_bytes
    with pytest.raises(rp.BudgetError):
        rp.plan(model, PARAMS, X, strategy="split", budget="300kB", verify=False)


def test_it_stands_in_comparisons():
    table = rp.compare(model, PARAMS, X, budgets=["70%"], strategies=["split", "each_block"], verify=False)
    by_name = {row.strategy: row.plan.predicted_peak_bytes for row in table.rows}
    assert by_name["split"] < by_name["each_block"]
    assert "split" in str(table)


@pytest.mark.parametrize(
    "constraints",
    [
        make_constraints((), (), (), True),
        make_constraints((), (), (), ["logits"]),
        make_constraints(["logits"], (), ()),
    ],
    ids="nothing named saved".split(),
)
def test_constraints_are_respected(constraints):
    graph, made = found(head, constraints)
    assert made.schedules == ((as_is(0, len(graph.ops)),),)
    assert made.notes == ("nothing that can run in slices needs much memory",)


def test_arrays_on_several_devices_stay_whole():
    assert not any(map(splits_in, found(model, spread=True)[1].schedules))
    assert any(map(splits_in, found(model)[1].schedules))


def test_what_cannot_be_split_is_left_as_it_is():
    def mixed(p, x):
        return jnp.sum(jnp.cumsum(jnp.cumsum(x @ p["w"], 0), 1))

    graph, made = found(mixed)
    assert all(segment.way == Plain() for schedule in made.schedules for segment in schedule)
    assert rp.plan(lambda v: v, jnp.float32(1.0), strategy="split", verify=False).is_identity
