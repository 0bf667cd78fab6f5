"""Branches side by side are recomputed one after another, and loops take their memory when they run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_plan as rp
from benchmarks.models import small
from remat_plan.graph.order import Order
from remat_plan.graph.schedule import around, as_is, saving
from remat_plan.graph.uses import free_ops
from tests.helpers import few, planner_schedules, traced, under

STEPS, BATCH, WIDTH = 128, 16, 32


def recurrent(w, x):
    def step(h, row):
        h = jnp.tanh(row @ w[0] + h @ w[1])
        return h, h

    return jnp.sum(jax.lax.scan(step, jnp.zeros(x.shape[1:]), x)[1] ** 2)


def tower(w, x):
    for one in w:
        x = jnp.tanh(x @ one) * jax.nn.sigmoid(x)
    return jnp.sum(x**2)


def total(branch, weights, x):
    return sum(branch(w, x) for w in weights)


def recurrent_branches(weights, x):
    return total(recurrent, weights, x)


def tower_branches(weights, x):
    return total(tower, weights, x)


def arguments(count, layers, shape):
    keys = iter(jax.random.split(jax.random.key(0), count * layers + 1))
    weights = [[jax.random.normal(next(keys), (WIDTH, WIDTH)) / 8 for _ in range(layers)] for _ in range(count)]
    return weights, jax.random.normal(next(keys), shape)


BRANCHES = {
    "loops": (recurrent_branches, 2, (STEPS, BATCH, WIDTH)),
    "layers": (tower_branches, 4, (STEPS * BATCH, WIDTH)),
}


def branch_segments(program, count):
    """One segment a branch, cut behind each addition to the scalar sum."""
    graph = program.graph
    ends = [op.index + 1 for op in graph.ops if op.primitive == "reduce_sum"][:-1]
    bounds = [0, *ends, len(graph.ops)]
    assert len(bounds) == count + 1
    return tuple(saving(a, b) for a, b in zip(bounds, bounds[1:], strict=False))


def temporaries(run, leaves):
    options = rp.compiler_options("cpu") or None
    step = jax.grad(run, argnums=tuple(range(len(leaves) - 1)))
    return jax.jit(step).lower(*leaves).compile(options).memory_analysis().temp_size_in_bytes


def planned(name, count):
    loss, layers, shape = BRANCHES[name]
    args = arguments(count, layers, shape)
    program = traced(loss, *args)
    return under(program, branch_segments(program, count)), jax.tree.leaves(args), loss, args


@pytest.mark.parametrize("name", few(BRANCHES, ["layers"]))
def test_four_branches_need_the_memory_of_one(name):
    needed = [temporaries(*planned(name, count)[:2]) for count in (1, 4)]
    assert needed[1] <= 1.25 * needed[0]


@pytest.mark.skipif(not rp._compat.cond_forwards_residuals(), reason="jax keeps copies of what a cond reads")
def test_each_block_lowers_the_peak_of_parallel_loops():
    loss, layers, shape = BRANCHES["loops"]
    args = arguments(4, layers, shape)
    plan = rp.plan(loss, *args, strategy="each_block")
    leaves, tree = jax.tree.flatten(args)
    plain, found = (
        temporaries(lambda *values, f=f: f(*jax.tree.unflatten(tree, values)), leaves) for f in (loss, plan.apply(loss))
    )
    assert found < 0.75 * plain
    assert plan.predicted_peak_bytes == pytest.approx(plan.compiled_peak_bytes, rel=0.1)


def nested(program, count):
    """All branches in one segment around theirs."""
    inner = branch_segments(program, count)
    return (around(0, len(program.graph.ops), inner),)


@pytest.mark.parametrize(
    ("name", "make"),
    few([("loops", nested), ("layers", branch_segments), ("layers", nested)], [("layers", branch_segments)]),
)
def test_transformations(name, make):
    loss, _, shape = BRANCHES[name]
    shape = (4, 3, WIDTH) if name == "loops" else (6, WIDTH)
    args = arguments(2, 2, shape)
    program = traced(loss, *args)
    run, leaves = under(program, make(program, 2)), jax.tree.leaves(args)
    tree = jax.tree.structure(args)

    def plain(*values):
        return loss(*jax.tree.unflatten(tree, values))

    n = len(leaves) - 1
    weights, x = tuple(leaves[:n]), leaves[n]
    directions = tuple(jnp.cos(w) for w in weights)

    def over_weights(f):
        return lambda *ws: f(*ws, x)

    def gradient(f):
        return jax.grad(over_weights(f), argnums=tuple(range(n)))

    def product(f):
        return lambda *ws: sum(jnp.vdot(g, d) for g, d in zip(gradient(f)(*ws), directions, strict=True))

    def all_ways(f):
        over = over_weights(f)
        return {
            "value": f(*leaves),
            "gradient": gradient(f)(*weights),
            "forward": jax.jvp(over, weights, directions),
            "linearize": jax.linearize(over, *weights)[1](*directions),
            "vmap": jax.vmap(lambda y: jax.grad(lambda *ws: f(*ws, y))(*weights))(jnp.stack([x, 2 * x])),
            "forward over reverse": jax.jvp(gradient(f), weights, directions),
            "reverse over reverse": jax.grad(product(f), argnums=tuple(range(n)))(*weights),
            "reverse over forward": jax.grad(lambda *ws: jax.jvp(over, ws, directions)[1])(*weights),
            "under a checkpoint": gradient(jax.checkpoint(f))(*weights),
        }

    found, expected = jax.jit(lambda: all_ways(run))(), jax.jit(lambda: all_ways(plain))()
    for way in expected:
        for a, b in zip(jax.tree.leaves(found[way]), jax.tree.leaves(expected[way]), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4, err_msg=way)


def test_a_branch_waits_for_the_parameters_of_the_next():
    loss, layers, shape = BRANCHES["layers"]
    program = traced(loss, *arguments(3, layers, shape))
    segments = branch_segments(program, 3)
    graph = program.graph
    waits = [set(values) for _, values in Order(graph, free_ops(graph)).of(segments)]
    assert waits == [set(graph.inputs[4:8]), set(graph.inputs[8:12]), set()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_blocks_in_a_row_wait_for_gradients_of_weights_alone(name):
    model = small(name)
    program = traced(model.loss, model.params, model.batch)
    order = Order(program.graph, free_ops(program.graph))
    for schedule in planner_schedules(program, limit=3):
        waits = [v for _, values in order.of(schedule) for v in values]
        assert set(waits) <= set(program.graph.inputs), schedule


@pytest.mark.skipif(
    rp._compat.drops_checkpoint_barriers(), reason="nothing is waited for where barriers stay to the end"
)
@pytest.mark.parametrize("tail", [saving, as_is])
def test_a_layer_waits_for_the_gradients_of_the_weights_behind_it(tail):
    """Of those up to the next segment, or in a plain tail; not of all that follows."""

    def layers(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    program = traced(layers, [jnp.eye(4)] * 4, jnp.ones((2, 4)))
    graph = program.graph
    ends = [op.index + 1 for op in graph.ops if op.primitive == "tanh"][:3]
    kinds = zip([0, *ends], [*ends, len(graph.ops)], [saving, as_is, saving, tail], strict=True)
    segments = [kind(start, end) for start, end, kind in kinds]
    w = graph.inputs
    waits = [set(values) for _, values in Order(graph, free_ops(graph)).of(segments)]
    assert waits == [{w[1], w[2]}, set(), {w[3]}, set()]
