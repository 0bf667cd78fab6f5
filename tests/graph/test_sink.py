"""Views and casts of arguments, where they are read."""

import jax
import jax.numpy as jnp
import numpy as np

from remat_plan.graph.flatten import flatten
from remat_plan.graph.merge import sink_views
from tests.helpers import traced, under, whole

W, X = jnp.ones((3, 4, 4)), jnp.ones((2, 4))


def names(fn, *args):
    return [item.eqn.primitive.name for item in sink_views(flatten(jax.make_jaxpr(fn)(*args))).eqns]


def test_casts_of_all_parameters_stand_in_their_layers():
    def loss(ws, x):
        ws = [w.astype(jnp.bfloat16) for w in ws]
        for w in ws:
            x = x.astype(jnp.bfloat16) @ w
        return x

    found = names(loss, list(W), X)
    assert found == ["convert_element_type"] * 2 + ["dot_general"] + ["convert_element_type", "dot_general"] * 2


def test_what_two_read_or_the_program_returns_stays():
    def loss(w, x):
        cast, returned = jnp.sin(w[0]), jnp.cos(w[1])
        return jnp.tanh(x) @ cast @ cast, returned

    found = names(loss, W, X)
    assert found.index("sin") < found.index("tanh") < found.index("dot_general") > found.index("cos")


def test_what_reads_two_values_or_a_result_stays():
    def loss(w, x):
        total, result = w[0] + w[1], jnp.sin(x @ w[2])
        return jnp.cos(x) @ total, result

    found = names(loss, W, X)
    assert max(found.index("add"), found.index("sin")) < found.index("cos")


def test_effects_and_products_stay():
    def loss(w, x):
        jax.debug.print("{}", w[0, 0, 0])
        product = w[1] @ w[1]
        return jnp.tanh(x) @ product

    found = names(loss, W, X)
    assert found.index("debug_callback" if "debug_callback" in found else "debug_print") < found.index("dot_general")
    assert found.index("dot_general") < found.index("tanh")


def test_the_graph_computes_what_the_function_does():
    def loss(w, x):
        first, second, third = jnp.sin(w[0]), w[1].T, jnp.reshape(w[2], (2, 8))
        return jnp.sum(jnp.tanh(x @ first) @ second) + jnp.sum(third)

    w = jax.random.normal(jax.random.key(0), W.shape)
    program = traced(loss, w, X)
    positions = {v: op.index for op in program.graph.ops for v in op.outputs}
    assert all(positions.get(v, -1) < op.index for op in program.graph.ops for v in op.reads)
    np.testing.assert_allclose(under(program, whole(program))(w, X), loss(w, X), rtol=1e-6)
