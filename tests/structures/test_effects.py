"""Structures with effects: planned inside, each effect once and in order, values and gradients those of the function."""

import functools
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec

import remat_plan as rp
from remat_plan.cost.builder import Rules
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import Choice, Part, around, as_is, saving, structured
from remat_plan.graph.structure import structure_of
from remat_plan.planning.honours import honours, honours_choice
from remat_plan.planning.limits import NO_LIMITS
from remat_plan.planning.planner import solve_region
from tests.helpers import CPU, assert_trees_close, few, flat_gradient, traced

pytestmark = [
    pytest.mark.usefixtures("quick_search"),
    pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive 'io_callback'"),
]

STEPS = 4
W = jnp.asarray(np.random.default_rng(0).normal(size=(STEPS, 8, 8)) / 3, jnp.float32)
X = jnp.asarray(np.random.default_rng(1).normal(size=(16, 8)), jnp.float32)
TOLD: list[int] = []


def note(number, *_):
    TOLD.append(int(number))


def printed(i, x):
    jax.debug.callback(note, i, jnp.mean(x), ordered=True)


def sent(i, x):
    io_callback(note, None, i, lax.stop_gradient(jnp.mean(x)), ordered=True)


def now_and_then(i, x):
    lax.cond(i >= 0, sent, lambda i, x: None, i, x)


def silent(i, x):
    pass


def layer(w, x):
    return x + jnp.tanh(jnp.sin(x @ w) @ w)


def between(tell, i, w, x):
    x = layer(w, x)
    tell(i, x)
    return layer(w, x)


def scanned(step, reverse=False):
    def run(w, x):
        body = lambda c, row: (step(row[0], row[1], c), None)  # noqa: E731
        return lax.scan(body, x, (jnp.arange(STEPS), w), reverse=reverse)[0]

    return run


def in_branches(step):
    def body(i, w, x):
        return lax.cond(i % 2 == 0, step, lambda i, w, x: jnp.cos(layer(w, x)), i, w, x)

    return scanned(body)


def nested(step):
    inner = scanned(step)
    return lambda w, x: lax.scan(lambda c, _: (inner(w, c), None), x, None, length=2)[0]


def mapped(step):
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = PartitionSpec("rows"), PartitionSpec()
    return jax.shard_map(scanned(step), mesh=mesh, in_specs=(whole, rows), out_specs=rows)


def backwards(step):
    return scanned(step, reverse=True)


STRUCTURES = {
    "scan": (scanned, range(STEPS)),
    "reverse": (backwards, range(STEPS - 1, -1, -1)),
    "branches": (in_branches, (0, 2)),
    "nested": (nested, (*range(STEPS), *range(STEPS))),
    "shard_map": (mapped, range(STEPS)),
}


def loss_of(structure, step, tell):
    run = structure(lambda i, w, x: step(tell, i, w, x))
    return lambda w, x: jnp.sum(run(w, x) ** 2)


def checked_step(gradient, want, order, *args):
    TOLD.clear()
    got = jax.block_until_ready(jax.jit(gradient)(*args))
    jax.effects_barrier()
    assert list(order) == TOLD
    assert_trees_close(jax.tree.leaves(got), jax.tree.leaves(want), 1e-4, 1e-5)


def segments(segment_of, graph):
    """Every region of every structure in segments around what is apart, made by ``segment_of``."""
    found, start = [], 0
    for op in graph.ops:
        structure = structure_of(op)
        if structure is None:
            continue
        found += [segment_of(start, op.index)] if op.index > start else []
        regions, counts = structure.regions(graph, op), structure.run_counts(op)
        parts = [Part(int(c), segments(segment_of, region)) for region, c in zip(regions, counts, strict=True)]
        found.append(structured(op.index, Choice(tuple(parts))))
        start = op.index + 1
    return (*found, segment_of(start, len(graph.ops))) if start < len(graph.ops) else tuple(found)


def nested_segment(start, end):
    middle = (start + end) // 2
    return around(start, end, (saving(start, middle), as_is(middle, end)))


@functools.cache
def silent_step(structure):
    return jax.jit(jax.value_and_grad(loss_of(structure, between, silent), (0, 1)))(W, X)


TELLING = ((printed, saving), (sent, nested_segment), (now_and_then, saving))


@pytest.mark.parametrize(
    ("name", "tell", "segment"),
    few(
        [(name, *telling) for name in STRUCTURES for telling in TELLING],
        [("scan", printed, saving), *((name, sent, nested_segment) for name in ("scan", "branches", "shard_map"))],
    ),
)
def test_effects_run_once_and_in_order(name, tell, segment):
    structure, order = STRUCTURES[name]
    program = traced(loss_of(structure, between, tell), W, X, argnums=(0, 1))
    checked_step(flat_gradient(program, segments(segment, program.graph)), silent_step(structure), order, W, X)


def test_two_stretches_of_steps_tell_in_order():
    program = traced(loss_of(scanned, between, printed), W, X, argnums=(0, 1))
    want = jax.value_and_grad(loss_of(scanned, between, silent), (0, 1))(W, X)
    (op,) = [op for op in program.graph.ops if structure_of(op) is not None]
    n, body = len(program.graph.ops), structure_of(op).regions(program.graph, op)[0]
    step = (saving(0, len(body.ops)),)
    choice = Choice((Part(1, step), Part(STEPS - 1, (as_is(0, len(body.ops)),))))
    schedule = (as_is(0, op.index), structured(op.index, choice), as_is(op.index + 1, n))
    checked_step(flat_gradient(program, schedule), want, range(STEPS), W, X)


def answered(i, x):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return io_callback(lambda i, v: (note(i), np.float32(0.5))[1], shape, i, lax.stop_gradient(x[0, 0]), ordered=True)


def asking(tell, i, w, x):
    x = layer(w, x)
    return layer(w, x * answered(i, x))


def test_what_is_read_stays_between_segments():
    plain = lambda tell, i, w, x: layer(w, layer(w, x) * 0.5)  # noqa: E731
    want = jax.value_and_grad(loss_of(scanned, plain, silent), (0, 1))(W, X)
    program = traced(loss_of(scanned, asking, silent), W, X, argnums=(0, 1))
    (op,) = [op for op in program.graph.ops if structure_of(op) is not None]
    (body,) = structure_of(op).regions(program.graph, op)
    (index,) = body.apart
    n = len(body.ops)
    assert not honours(body, NO_LIMITS, (saving(0, n),))
    schedules = solve_region(Rules(body, CPU))
    split = (saving(0, index), as_is(index, index + 1), saving(index + 1, n))
    assert all(honours(body, NO_LIMITS, schedule) for schedule in schedules)
    again = [all(s.checkpointed != (s.start <= index < s.end) for s in schedule) for schedule in schedules]
    assert any(again)  # all but the effect is recomputed
    around_it = as_is(0, op.index), as_is(op.index + 1, len(program.graph.ops))
    for step in (split, schedules[again.index(True)]):
        schedule = (around_it[0], structured(op.index, Choice((Part(STEPS, step),))), around_it[1])
        checked_step(flat_gradient(program, schedule), want, range(STEPS), W, X)


def test_no_group_of_steps_runs_an_effect_again():
    program = traced(loss_of(scanned, between, printed), W, X)
    (op,) = [op for op in program.graph.ops if structure_of(op) is not None]
    (body,) = structure_of(op).regions(program.graph, op)
    step = (saving(0, len(body.ops)),)
    assert honours_choice(program.graph, NO_LIMITS, op, Choice((Part(STEPS, step),)))
    assert not honours_choice(program.graph, NO_LIMITS, op, Choice((Part(STEPS, step, (2,)),)))
    assert not honours_choice(program.graph, NO_LIMITS, op, Choice((Part(STEPS, step),), slots=2))


STRATEGIES = ["memory", "each_block", "nothing", rp.Binomial(slots=2)]


@pytest.mark.parametrize("strategy", few(STRATEGIES, ["memory", STRATEGIES[-1]]))
def test_every_strategy_plans_around_effects(strategy):
    loss = loss_of(scanned, between, printed)
    want = jax.value_and_grad(loss_of(scanned, between, silent))(W, X)
    planned = rp.remat(loss, strategy=strategy, verify=False)
    checked_step(jax.value_and_grad(planned), want, range(STEPS), W, X)


def test_the_evaluator_runs_effects_once():
    def loss(w, x):
        for i in range(STEPS):
            x = between(sent, i, w[i], x)
        return jnp.sum(x**2)

    program = traced(loss, W, X)
    n = len(program.graph.ops)
    for schedule in ((saving(0, n),), (nested_segment(0, n),)):
        found = StepProgram(Rules(program.graph, CPU)).loss_timeline(schedule).equations
        names = Counter(eqn.primitive.name for eqn in found)
        assert names["io_callback"] == STEPS
        assert names["dot_general"] > 12 * STEPS  # with 4 a step, and 8 for their gradients, the rest runs again


@pytest.mark.slow
def test_a_fitted_step_tells_once():
    x = jnp.tile(X, (32, 1))
    loss = loss_of(scanned, between, lambda i, x: jax.debug.callback(note, i, jnp.mean(x), ordered=True))
    want = jax.value_and_grad(loss_of(scanned, between, silent))(W, x)
    step = rp.fit(lambda w, x: jax.value_and_grad(rp.remat(loss))(w, x), W, x, budget="60%")
    TOLD.clear()
    got = jax.block_until_ready(step(W, x))
    jax.effects_barrier()
    assert list(range(STEPS)) == TOLD
    assert_trees_close(got, want, 1e-4, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("tell", [printed, sent])
def test_least_peak_of_layers_that_tell(tell):
    """As little memory as a hand that checkpoints the layer and tells beside it."""
    w, x = jnp.ones((8, 32, 32)) / 32, jnp.ones((512, 32))

    def loss(w, x, remat=lambda f: f, tell=printed):
        def body(c, row):
            c = remat(layer)(row[1], c)
            tell(row[0], c)
            return c, None

        return jnp.mean(lax.scan(body, x, (jnp.arange(8), w))[0] ** 2)

    def peak(f):
        found = jax.jit(jax.grad(f), compiler_options=rp.compiler_options()).lower(w, x).compile().memory_analysis()
        return found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes

    hand = peak(lambda w, x: loss(w, x, jax.checkpoint))
    plan = rp.plan(partial(loss, tell=tell), w, x, budget=int(1.1 * hand))
    assert plan.compiled_peak_bytes <= 1.1 * hand < 0.7 * plan.plain_peak_bytes
