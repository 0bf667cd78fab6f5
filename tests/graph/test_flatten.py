"""Flattening and the graph: what is inlined, what stays, what is dropped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from remat_plan import _compat
from tests.helpers import assert_trees_close, few, traced, under
from tests.zoo import ZOO, V, W, X, cubed


def primitives(fn, *args, **options):
    return [op.primitive for op in traced(fn, *args, **options).graph.ops]


def test_calls_are_inlined():
    inner = jax.jit(lambda x: jax.jit(jnp.sin)(x) * 2)
    assert primitives(lambda x: jnp.sum(jax.checkpoint(inner)(x)), V) == ["sin", "mul", "reduce_sum"]


def test_the_users_checkpoints_are_kept_on_request():
    fn = jax.checkpoint(lambda x: jnp.sin(x) * 2)
    found = primitives(lambda x: jnp.sum(fn(x)), V, existing="keep")
    assert len(found) == 2
    assert found[0] in ("checkpoint", "remat2", "remat", "call_hi_primitive")


def test_custom_derivatives_and_control_flow_stay_whole():
    found = primitives(lambda x: jnp.sum(lax.fori_loop(0, 3, lambda _, c: jnp.sin(c), cubed(x))), V)
    assert found == ["custom_jvp_call", "scan", "reduce_sum"]


def test_dead_equations_are_dropped_and_effects_kept():
    def loss(x):
        jnp.exp(x)
        jax.debug.callback(lambda _: None, jnp.cos(x))
        return jnp.sum(x)

    found = primitives(loss, V)
    assert "exp" not in found
    assert "cos" in found
    assert "debug_callback" in found


def test_dead_outputs_of_a_call_are_dropped():
    both = jax.jit(lambda x: (jnp.sin(x), jnp.exp(x)))
    assert primitives(lambda x: jnp.sum(both(x)[0]), V) == ["sin", "reduce_sum"]


def test_values_know_their_size_name_and_maker():
    graph = traced(lambda x: jnp.sum(checkpoint_name(jnp.sin(x), "mine")), X).graph
    named = [v for v in graph.values if v.name == "mine"]
    assert [v.size_bytes for v in named] == [X.nbytes]
    assert graph.ops[named[0].producer].primitive == "name"
    assert named[0].text == "float32[5,4]"
    assert [graph.values[v].producer for v in graph.inputs] == [-1]


def test_bytes_of_all_kinds_of_values():
    def loss(x, half, key, flags):
        return jnp.sum(x) + jnp.sum(half.astype(jnp.float32)) + jax.random.normal(key) + jnp.sum(flags)

    args = X, jnp.zeros((3,), jnp.bfloat16), jax.random.key(0), np.zeros(7, bool)
    graph = traced(loss, *args).graph
    assert [graph.values[v].size_bytes for v in graph.inputs] == [80, 6, 8, 7]


def test_constants_are_values():
    big = jnp.ones((4, 4))
    graph = traced(lambda x: jnp.sum(x @ big), X).graph
    ((number, value),) = graph.constants
    assert value is big or np.array_equal(value, big)
    assert graph.values[number].producer == -1


FEW = (
    *("mlp", "control_flow", "named_and_sharded_calls", "dict_parameters", "integer_labels"),
    "literals_and_free_values",
)


@pytest.mark.parametrize("name", few(ZOO, FEW))
def test_running_the_flat_program_gives_the_functions_values(name):
    case = ZOO[name]
    program = traced(case.fn, *case.args, **case.options)
    want = program.call.flat_fn(*program.call.leaves)
    assert_trees_close(under(program, program.plain)(*program.call.leaves), jax.tree.map(jnp.asarray, want), 1e-4)


@pytest.mark.parametrize("name", few(ZOO, FEW))
def test_the_graph_is_consistent(name):
    case = ZOO[name]
    graph = traced(case.fn, *case.args, **case.options).graph
    made = set(graph.inputs) | {v for v, _ in graph.constants}
    for index, op in enumerate(graph.ops):
        assert op.index == index
        assert set(op.reads) <= made
        assert not made & set(op.outputs)
        assert len(op.operands) == len(op.eqn.invars) == len(op.active)
        assert all(graph.values[v].producer == index for v in op.outputs)
        need = graph.needs[op.kind]
        assert all(op.operands[i] >= 0 for i in need.operands)
        made.update(op.outputs)
    assert {v for v in graph.outputs if v >= 0} <= made
    assert set(graph.differentiated_inputs) <= set(graph.inputs)


def test_source_lines_are_the_users():
    from remat_plan import _compat

    graph = traced(lambda x: jnp.sum(jnp.sin(x)), V).graph
    for op in graph.ops:
        file, line, _ = _compat.source_line(op.eqn)
        assert file == __file__
        assert line > 0


def test_equations_of_jaxs_own_functions_stand_at_the_users_line():
    def loss(x):
        kept = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
        return jnp.sum(jnp.where(kept, x, 0.0))

    start = loss.__code__.co_firstlineno
    ops = traced(loss, V).graph.ops
    lines = {op.primitive: _compat.source_line(op.eqn)[1] - start for op in ops}
    assert (lines["random_bits"], lines["lt"], lines["select_n"]) == (1, 1, 2)
    assert all(_compat.source_line(op.eqn)[0] == __file__ for op in ops)


def test_equations_of_the_users_jitted_functions_keep_their_own_line():
    layer = jax.jit(lambda x: jnp.sin(x) * 2)
    found = {op.primitive: _compat.source_line(op.eqn) for op in traced(lambda x: jnp.sum(layer(x)), V).graph.ops}
    assert found["sin"][1] == layer.__wrapped__.__code__.co_firstlineno < found["reduce_sum"][1]


def test_rewritten_programs_keep_source_lines_and_scopes():
    from remat_plan import _compat
    from tests.helpers import everything_saved

    def loss(w, x):
        with jax.named_scope("my_layer"):
            return jnp.sum(jnp.tanh(x @ w))

    program = traced(loss, W[0], X)
    for schedule in (program.plain, everything_saved(program)):
        closed = jax.make_jaxpr(under(program, schedule))(*program.call.leaves)
        text = jax.jit(under(program, schedule)).lower(*program.call.leaves).as_text(debug_info=True)
        assert "my_layer" in text
        eqns = list(closed.eqns)
        while any(_compat.sub_jaxprs(e.params) for e in eqns):
            eqns = [x for e in eqns for x in ([*_compat.open_jaxpr(_compat.sub_jaxprs(e.params)[0])[0].eqns]
                                              if _compat.sub_jaxprs(e.params) else [e])]  # fmt: skip
        dots = [e for e in eqns if e.primitive.name == "dot_general"]
        assert [_compat.source_line(e)[0] for e in dots] == [__file__]


def test_what_a_checkpoint_inside_a_gradient_calls_is_inlined():
    """JAX writes the forward pass of a checkpoint as a call whose primitive has changed its name with its versions."""

    def loss(x):
        def energy(x):
            return jnp.sum(lax.scan(lambda c, _: (jax.checkpoint(jnp.sin)(c), None), x, None, length=2)[0])

        return jnp.sum(jax.grad(energy)(x))

    def names(jaxpr):
        for eqn in jaxpr.eqns:
            yield eqn.primitive.name
            for sub in _compat.sub_jaxprs(eqn.params):
                yield from names(_compat.open_jaxpr(sub)[0])

    found = {n for op in traced(loss, V).graph.ops for s in _compat.sub_jaxprs(op.eqn.params) for n in names(s.jaxpr)}
    assert "sin" in found
    assert not found & {"eval_jaxpr", "closed_call", "remat2", "checkpoint"}
