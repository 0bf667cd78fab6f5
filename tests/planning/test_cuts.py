"""Cuts, frontiers, needs and runs against what a plain search says."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

from remat_plan.graph.uses import all_residuals, free_ops, last_uses
from remat_plan.planning.cuts import find_cuts
from remat_plan.planning.runs import make_run, op_seconds, segment_problem
from tests.helpers import CPU, few, traced
from tests.zoo import ZOO

pytestmark = pytest.mark.filterwarnings("ignore:remat_plan")
FEW = "mlp attention u_net scan_inside literal_keys stop_gradient callbacks_without_effects".split()
S = jax.ShapeDtypeStruct


def mlp(layers, width=32, batch=512):
    def loss(w, x):
        for i in range(layers):
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    return traced(loss, S((width, width), "float32"), S((batch, width), "float32"))


def crossing(graph, free, position):
    """Values made before a position and used after it, one by one."""
    found = set()
    for value in graph.values:
        if value.producer < 0 or value.producer >= position or value.producer in free:
            continue
        later = any(value.index in op.reads for op in graph.ops[position:])
        if later or value.index in graph.outputs:
            found.add(value.index)
    return found


@pytest.mark.parametrize("name", few(ZOO, FEW))
def test_frontiers_and_order(name):
    case = ZOO[name]
    graph = traced(case.fn, *case.args, **case.options).graph
    cuts = find_cuts(graph)
    assert list(cuts.positions) == sorted(set(cuts.positions))
    assert cuts.positions[0] == 0
    assert cuts.positions[-1] == len(graph.ops)
    assert len(cuts.frontiers) == len(cuts.positions)
    for position, frontier in zip(cuts.positions[1:], cuts.frontiers[1:], strict=True):
        assert frontier == crossing(graph, cuts.free, position)
    assert find_cuts(graph) == cuts


def test_a_chain_is_cut_at_its_layers():
    graph = mlp(12).graph
    cuts = find_cuts(graph)
    assert len(cuts.positions) >= 7
    for frontier in cuts.frontiers[1:-1]:
        assert len(frontier) == 1, "one value crosses"


def test_a_u_net_is_cut_although_values_pass():
    def loss(w, x):
        kept = []
        for i in range(4):
            x = jnp.tanh(jnp.sin(x @ w) @ w)
            kept.append(x)
            x = x[: x.shape[0] // 2]
        for y in reversed(kept):
            x = jnp.concatenate([x, x])
            x = jnp.tanh(jnp.sin((x + y) @ w) @ w)
        return jnp.sum(x)

    graph = traced(loss, S((32, 32), "float32"), S((512, 32), "float32")).graph
    cuts = find_cuts(graph)
    assert len(cuts.positions) > 4
    assert max(len(f) for f in cuts.frontiers) >= 3


def test_effects_that_are_read_stand_alone():
    def loss(w, x):
        for i in range(4):
            x = jnp.tanh(x @ w)
            jax.debug.callback(lambda _: None, x[0, 0])
            x = x * io_callback(lambda v: v, S((), "float32"), jax.lax.stop_gradient(x[0, 0]))
        return jnp.sum(x)

    graph = traced(loss, S((32, 32), "float32"), S((512, 32), "float32")).graph
    positions = set(find_cuts(graph).positions)
    effects = {op.index: {op.index, op.index + 1} <= positions for op in graph.ops if op.effectful}
    assert effects == {index: graph.ops[index].primitive == "io_callback" for index in effects}
    assert len(effects) == 8


def test_free_operations_depend_on_literals_only():
    def loss(v):
        c = jnp.exp(jnp.arange(4.0)) * 2
        return jnp.sum(v * c + jnp.sin(v))

    graph = traced(loss, S((4,), "float32")).graph
    free = {graph.ops[i].primitive for i in free_ops(graph)}
    assert {"iota", "exp"} <= free
    assert "sin" not in free


@pytest.mark.parametrize("name", few(ZOO, FEW))
def test_needs_and_last_uses(name):
    case = ZOO[name]
    graph = traced(case.fn, *case.args, **case.options).graph
    last = last_uses(graph)
    for value in graph.values:
        readers = [op.index for op in graph.ops if value.index in op.reads]
        expected = len(graph.ops) if value.index in graph.outputs else max(readers, default=-1)
        assert last[value.index] == expected
    needed = all_residuals(graph)
    assert all(0 <= v < len(graph.values) for v in needed)
    for op in graph.ops:
        if op.primitive == "tanh" and op.differentiated:
            assert op.outputs[0] in needed


@pytest.mark.parametrize("name", ["mlp", "attention", "u_net", "batch_norm", "typed_key_dropout", "custom_vjp_of_many"])
def test_runs(name):
    case = ZOO[name]
    graph = traced(case.fn, *case.args, **case.options).graph
    cuts = find_cuts(graph)
    seconds = op_seconds(graph, CPU)
    assert all(s > 0 for s in seconds)
    n = len(cuts.positions) - 1
    for start in range(n):
        for end in range(start + 1, min(start + 3, n) + 1):
            run = make_run(graph, cuts, start, end)
            inside = range(cuts.positions[start], cuts.positions[end])
            made = {v for i in inside if i not in cuts.free for v in graph.ops[i].outputs}
            read = {v for i in run.ops for v in graph.ops[i].reads}
            assert set(run.values) == made
            assert set(run.reads) == {v for v in read - made if graph.values[v].producer not in cuts.free}
            assert set(run.leaves) == made & cuts.frontiers[end]
            assert set(run.crosses) == set(run.reads) & cuts.frontiers[end]

            problem = segment_problem(graph, run, seconds)
            local = {v: i for i, v in enumerate(run.values)}
            for n_op, index in enumerate(run.ops):
                assert {run.values[v] for v in problem.op_inputs[n_op]} == set(graph.ops[index].reads) & made
                assert tuple(run.values[v] for v in problem.op_outputs[n_op]) == graph.ops[index].outputs
            assert all(problem.value_bytes[local[v]] == 0 for v in run.leaves), "what leaves is stored anyway"


def test_equal_layers_have_equal_signatures():
    graph = mlp(8).graph
    cuts = find_cuts(graph)
    n = len(cuts.positions) - 1
    signatures = [make_run(graph, cuts, i, i + 1).signature for i in range(n)]
    assert len(set(signatures)) <= 4
    assert len(set(signatures[1 : n - 2])) <= 2


def test_layers_with_other_slices_and_other_numbers_are_equal_work():
    """Where a layer's slice of stacked parameters begins, and the number it is scaled by, do not make it another one."""

    def stacked(w, x):
        for i in range(8):
            x = x + 0.1 * (i + 1) * jnp.tanh(x @ w[i])
        return jnp.sum(x**2)

    graph = traced(stacked, S((8, 32, 32), "float32"), S((64, 32), "float32")).graph
    slices = [op for op in graph.ops if op.primitive == "slice"]
    assert len({op.kind for op in slices}) == 8
    assert len({graph.alike[op.kind] for op in slices}) == 1
    cuts = find_cuts(graph)
    n = len(cuts.positions) - 1
    pairs = [make_run(graph, cuts, i, i + 2).signature for i in range(n - 1)]
    assert len(set(pairs[2:-1])) == 1


def test_slices_of_stacked_parameters_make_no_other_cuts():
    def block(x, up, down):
        h = x - jnp.mean(x, -1, keepdims=True)
        return x + jnp.tanh(h @ up) @ down

    def own(ups, downs, x):
        for up, down in zip(ups, downs, strict=True):
            x = block(x, up, down)
        return jnp.sum(x**2)

    def first(ups, downs, x):
        return own([ups[i] for i in range(6)], [downs[i] for i in range(6)], x)

    ups, downs, x = jnp.ones((6, 16, 64)), jnp.ones((6, 64, 16)), jnp.ones((128, 16))
    graphs = [traced(own, list(ups), list(downs), x).graph, traced(first, ups, downs, x).graph]
    slices = 2 * 6 * 2
    assert len(graphs[1].ops) == len(graphs[0].ops) + slices
    found = [find_cuts(graph) for graph in graphs]
    frontiers = [[len(f) for f in cuts.frontiers] for cuts in found]
    assert frontiers[0] == frontiers[1]
    assert len(found[0].positions) > 6
