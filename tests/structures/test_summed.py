"""Loops that add up a scalar: which do, the ways to run them, and what the evaluator says of these."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import remat_plan as rp
from remat_plan.cost.builder import Rules
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import Choice, Part, as_is, saving, structured
from remat_plan.graph.structure import adds_up, structure_of
from remat_plan.graph.valid import check_schedule
from remat_plan.planning.planner import RegionPlanner
from remat_plan.structures.scan import Scan
from tests.helpers import CPU, assert_trees_close, traced

WIDTH, ROWS, STEPS, LAYERS = 64, 512, 8, 4
WS = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
XS = jax.ShapeDtypeStruct((STEPS, ROWS, WIDTH), jnp.float32)
VALUES = [jax.random.normal(key, (WIDTH, WIDTH)) / 8 for key in jax.random.split(jax.random.key(0), LAYERS)]
DATA = jax.random.normal(jax.random.key(1), XS.shape)


def batch_loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def accumulated(ws, xs):
    """What people write who have no room for a batch: a loop over parts of it."""
    return lax.scan(lambda total, x: (total + batch_loss(ws, x), None), 0.0, xs)[0] / STEPS


def scanned(step, init=0.0, pick=lambda made: made[0]):
    def loss(ws, xs):
        return jnp.sum(pick(lax.scan(lambda carry, x: step(carry, x, ws), init, xs)))

    return loss


def loop_in(fn):
    graph = traced(fn, WS, XS).graph
    (op,) = [op for op in graph.ops if op.primitive == "scan"]
    return graph, op


SUMS = {
    "accumulated": accumulated,
    "from zero": scanned(lambda total, x, ws: (batch_loss(ws, x) + total, None)),
    "two parts": scanned(lambda total, x, ws: (total + (batch_loss(ws, x) - 0.1 * batch_loss(ws, 2 * x)), None)),
    "half": scanned(lambda total, x, ws: (total + batch_loss(ws, x).astype("bfloat16"), None), jnp.bfloat16(0)),
}
NONE = {
    "rows": scanned(lambda total, x, ws: (total + batch_loss(ws, x), total), pick=lambda made: made[0] + made[1].sum()),
    "two": scanned(
        lambda c, x, ws: ((c[0] + batch_loss(ws, x), c[1] + 1.0), None), (0.0, 0.0), lambda made: made[0][0]
    ),
    "stacked": scanned(lambda c, x, ws: (c + 1.0, batch_loss(ws, x)), pick=lambda made: made[1]),
    "read": scanned(lambda total, x, ws: (total + batch_loss(ws, x * total), None)),
    "scaled": scanned(lambda total, x, ws: (0.9 * total + batch_loss(ws, x), None)),
    "twice": scanned(lambda total, x, ws: (total + total + batch_loss(ws, x), None)),
    "doubled": lambda ws, xs: lax.scan(lambda total, x: (total + total, None), jnp.sum(ws[0]), xs)[0],
    "vector": scanned(lambda total, x, ws: (total + jnp.sum(x @ ws[0], 0), None), jnp.zeros(WIDTH)),
    "telling": scanned(lambda total, x, ws: (jax.debug.print("{}", x[0, 0]) or total + batch_loss(ws, x), None)),
}


@pytest.mark.parametrize("name", [*SUMS, *NONE])
def test_which_loops_add_up_a_scalar(name):
    graph, op = loop_in({**SUMS, **NONE}[name])
    loop = structure_of(op).loop(graph, op)
    if name == "two":  # what nobody reads is carried no more
        assert len(loop.carried) == 1
    assert adds_up(loop) == (name in SUMS or name == "two")
    choices = [c for c in Scan().choices(Rules(graph, CPU), op, RegionPlanner()) if c.gradient_first]
    assert bool(choices) == adds_up(loop)


def test_what_else_a_loop_makes_may_be_anything_that_is_not_differentiated():
    """How many parts were good, and what each came to, as training loops report; not what the loss depends on."""

    def loss(ws, xs, told):
        def step(carry, x):
            total, good, last = carry
            part = batch_loss(ws, x + 1e-3 * last)
            return (total + part, good + (part < 0.5), told(part)), (part, x[0])

        carry, rows = lax.scan(step, (jnp.float32(0), jnp.int32(0), jnp.float32(0)), xs)
        return carry[0] / STEPS, (carry[1:], rows)

    for told, expected in ((lambda part: jnp.float32(0), True), (lambda part: part, False)):
        fn = partial(loss, told=told)
        graph = traced(fn, WS, XS, has_aux=True).graph
        (op,) = [op for op in graph.ops if op.primitive == "scan"]
        assert adds_up(structure_of(op).loop(graph, op)) == expected
        plan = rp.plan(fn, VALUES, DATA, budget="60%", has_aux=True)
        choices = [choice for segment in plan.schedule for _, choice in segment.choices]
        assert any(choice.gradient_first for choice in choices) == expected
        assert plan.compiled_peak_bytes <= plan.budget_bytes
        ours, plain = (jax.jit(jax.value_and_grad(f, has_aux=True)) for f in (plan.apply(fn), fn))
        assert_trees_close(ours(VALUES, DATA), plain(VALUES, DATA))


@pytest.mark.parametrize("alike", [True, False])
def test_gradients_are_not_added_up_over_devices_in_each_step(alike):
    """Weights that are the same on all devices have a gradient that is summed over them: once behind the loop."""

    def local(ws, xs):
        ws = [lax.pcast(w, "i", to="varying") for w in ws] if alike else ws
        zero = lax.pcast(jnp.float32(0), "i", to="varying")
        return lax.psum(lax.scan(lambda total, x: (total + batch_loss(ws, x), None), zero, xs)[0], "i")

    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    graph = traced(jax.shard_map(local, mesh=mesh, in_specs=(P(), P(None, "i")), out_specs=P()), WS, XS).graph
    (call,) = [op for op in graph.ops if structure_of(op)]
    (region,) = structure_of(call).regions(graph, call)
    (op,) = [op for op in region.ops if op.primitive == "scan"]
    assert adds_up(structure_of(op).loop(region, op)) == alike


def by_choice(graph, op, choice):
    return as_is(0, op.index), structured(op.index, choice), as_is(op.index + 1, len(graph.ops))


def first(op, schedule):
    return Choice((Part(op.eqn.params["length"], schedule),), gradient_first=True)


def test_nothing_runs_twice_and_little_is_kept():
    graph, op = loop_in(accumulated)
    rules, n = Rules(graph, CPU), len(structure_of(op).regions(graph, op)[0].ops)
    plain, ours, lean = (
        StepProgram(rules).loss_timeline(by_choice(graph, op, choice))
        for choice in (
            Choice((Part(STEPS, (as_is(0, n),)),)),
            first(op, (as_is(0, n),)),
            first(op, (saving(0, n),)),
        )
    )
    assert ours.flops == pytest.approx(plain.flops, rel=1e-3)
    value_bytes = 4 * ROWS * WIDTH
    assert plain.peak_bytes - ours.peak_bytes > (STEPS - 1) * LAYERS * value_bytes * 0.9
    assert ours.inside_bytes < 2 * LAYERS * value_bytes + 4 * LAYERS * WIDTH**2
    assert lean.flops > 1.25 * plain.flops


def test_a_plan_makes_the_gradient_with_the_sum():
    """By hand: ``jax.value_and_grad`` in the loop. As predicted, and as compiled."""
    plan = rp.plan(accumulated, VALUES, DATA, budget="60%")
    (choice,) = [choice for segment in plan.schedule for _, choice in segment.choices]
    assert choice.gradient_first
    assert plan.compiled_peak_bytes <= 1.03 * plan.predicted_peak_bytes
    assert "gradient in the forward pass" in str(plan)
    (row, *_) = [d for d in plan.decisions if "gradient in the forward pass" in d.action]
    assert row.saved_bytes == sum(w.nbytes for w in VALUES)

    def by_hand(ws, xs):
        def step(carry, x):
            made = jax.value_and_grad(batch_loss)(ws, x)
            return jax.tree.map(jnp.add, carry, made), None

        zeros = jax.tree.map(jnp.zeros_like, (jnp.float32(0), list(ws)))
        return lax.scan(step, zeros, xs)[0]

    hand = jax.jit(by_hand).lower(WS, XS).compile().memory_analysis()
    hand_bytes = hand.temp_size_in_bytes + hand.argument_size_in_bytes + hand.output_size_in_bytes
    assert plan.compiled_peak_bytes <= 1.02 * hand_bytes
    found = jax.jit(jax.value_and_grad(plan.apply(accumulated)))(VALUES, DATA)
    assert_trees_close(found, jax.jit(jax.value_and_grad(accumulated))(VALUES, DATA))
    assert rp.Plan.from_json(plan.to_json()) == plan


def test_below_that_steps_are_recomputed():
    least = rp.plan(accumulated, VALUES, DATA, budget="60%").compiled_peak_bytes
    plan = rp.plan(accumulated, VALUES, DATA, budget=int(0.9 * least))
    (choice,) = [choice for segment in plan.schedule for _, choice in segment.choices]
    assert choice.gradient_first
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    assert plan.step_flops > 1.1 * plan.plain_flops
    found = jax.jit(jax.grad(plan.apply(accumulated)))(VALUES, DATA)
    assert_trees_close(found, jax.jit(jax.grad(accumulated))(VALUES, DATA))


def test_what_cannot_make_its_gradient_so():
    graph, op = loop_in(NONE["scaled"])
    n = len(structure_of(op).regions(graph, op)[0].ops)
    with pytest.raises(ValueError, match="in the forward pass: it does more than add up one scalar"):
        check_schedule(graph, by_choice(graph, op, first(op, (as_is(0, n),))))
    graph, op = loop_in(accumulated)
    n = len(structure_of(op).regions(graph, op)[0].ops)
    check_schedule(graph, by_choice(graph, op, first(op, (as_is(0, n),))))
    parts = Part(STEPS - 1, (as_is(0, n),)), Part(1, (as_is(0, n),))
    for choice in (
        Choice(parts, gradient_first=True),
        Choice((Part(STEPS, (as_is(0, n),), (2,)),), gradient_first=True),
        Choice((Part(STEPS, (as_is(0, n),)),), slots=2, gradient_first=True),
    ):
        with pytest.raises(ValueError, match="its steps are not run alike, once each"):
            check_schedule(graph, by_choice(graph, op, choice))
