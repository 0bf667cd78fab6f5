"""Barriers in steps of loops: none where a step is one segment, so that it needs what a hand-written one needs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from remat_plan._compat import open_jaxpr, sub_jaxprs
from remat_plan.cost.hardware import hardware_for
from remat_plan.graph.schedule import Choice, Part, around, as_is, saving, structured
from remat_plan.graph.structure import structure_of
from remat_plan.planning.constraints import NO_CONSTRAINTS
from remat_plan.planning.strategies.find import find_schedules, make_task
from remat_plan.planning.strategies.records import NO_SETTINGS
from remat_plan.planning.strategies.registry import lookup
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve
from tests.helpers import assert_trees_close, traced, under

LAYERS, WIDTH, ROWS = 6, 64, 256
SHAPES = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), np.float32), jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32)


def layer(x, w):
    h = x @ w
    return x + jnp.tanh(h) * jax.nn.sigmoid(h), None


def loss_with(wrap, layers=LAYERS, unroll=1):
    def loss(weights, x):
        return jnp.sum(lax.scan(wrap(layer), x, weights[:layers], unroll=unroll)[0] ** 2)

    return loss


def barriers(jaxpr):
    """Which of the recomputed parts of a jaxpr have barriers around them."""
    found = []
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        if "prevent_cse" in eqn.params:
            found.append(bool(np.any(eqn.params["prevent_cse"])))
        for inner in sub_jaxprs(eqn.params):
            found += barriers(inner)
    return found


def with_step(program, schedule, count=LAYERS):
    """The program with its scan run in parts of ``count`` steps and the rest, each step by a schedule."""
    (op,) = [op for op in program.graph.ops if structure_of(op) is not None]
    (body,) = structure_of(op).regions(program.graph, op)
    counts = [count, LAYERS - count] if count < LAYERS else [count]
    choice = Choice(tuple(Part(c, schedule(len(body.ops))) for c in counts))
    n = len(program.graph.ops)
    return under(program, (as_is(0, op.index), structured(op.index, choice), as_is(op.index + 1, n)))


def one(n):
    return (saving(0, n, []),)


def two(n):
    return saving(0, n // 2, []), saving(n // 2, n, [])


def nested(n):
    return (around(0, n, two(n)),)


@pytest.mark.parametrize(("schedule", "barred"), [(one, False), (two, True), (nested, True)])
def test_only_a_step_that_is_one_segment_does_without_barriers(schedule, barred):
    run = with_step(traced(loss_with(lambda f: f), *SHAPES), schedule)
    assert set(barriers(jax.make_jaxpr(jax.grad(run))(*SHAPES))) == {barred}


def test_a_stretch_of_one_step_keeps_its_barriers():
    run = with_step(traced(loss_with(lambda f: f), *SHAPES), one, count=LAYERS - 1)
    assert sorted(set(barriers(jax.make_jaxpr(jax.grad(run))(*SHAPES)))) == [False, True]


def unrolls(jaxpr):
    return {eqn.params["unroll"] for eqn in open_jaxpr(jaxpr)[0].eqns if eqn.primitive.name == "scan"}


@pytest.mark.parametrize("unroll", [2, pytest.param(4, marks=pytest.mark.slow), True])
def test_steps_in_one_iteration_stay_there_behind_barriers(unroll):
    program = traced(loss_with(lambda f: f, unroll=unroll), *SHAPES)
    made = jax.make_jaxpr(jax.grad(with_step(program, one)))(*SHAPES)
    assert set(barriers(made)) == {True}
    assert unrolls(made) == {LAYERS if unroll is True else unroll}
    weights, x = jax.random.normal(jax.random.key(0), SHAPES[0].shape) / 8, jnp.ones(SHAPES[1].shape)
    got, want = [jax.grad(f)(weights, x) for f in (with_step(program, one), loss_with(lambda f: f))]
    assert_trees_close(got, want, rtol=1e-4)


def test_steps_that_keep_products_need_no_more_than_by_hand():
    keep = jax.checkpoint_policies.dots_saveable
    by_hand = loss_with(lambda f: jax.checkpoint(f, prevent_cse=False, policy=keep))
    program = traced(loss_with(lambda f: f), *SHAPES)
    task = make_task(program.graph, hardware_for("cpu", "cpu"), NO_CONSTRAINTS, NO_SETTINGS)
    ours = under(program, find_schedules(lookup("dots"), task).schedules[0])
    target = resolve(None)
    peaks = [compile_memory(jax.value_and_grad(f), SHAPES, target).total_bytes for f in (ours, by_hand)]
    plain = compile_memory(jax.value_and_grad(loss_with(lambda f: f)), SHAPES, target).total_bytes
    assert peaks[0] <= peaks[1] < plain
