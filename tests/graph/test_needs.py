"""What backward passes read, found by tracing, against what is known of the primitives."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.helpers import traced
from tests.zoo import V, W, X, cubed, scaled


def needs_of(fn, *args, primitive=None, argnums=0):
    """The ``Need`` of the first differentiated equation (of a primitive) of a function summed up."""
    program = traced(lambda *xs: jnp.sum(jnp.real(fn(*xs))), *args, argnums=argnums)
    ops = [op for op in program.graph.ops if op.differentiated and primitive in (None, op.primitive)]
    return program.graph.needs[ops[0].kind]


@pytest.mark.parametrize(
    ("fn", "operands", "outputs", "internals"),
    [
        (lax.neg, (), (), 0),
        (lambda x: x.T, (), (), 0),
        (lambda x: x.reshape(-1), (), (), 0),
        (lambda x: jnp.sum(x, 0), (), (), 0),
        (lax.tanh, (), (0,), 1),
        (lax.exp, (), (0,), 0),
        (lax.logistic, (), (0,), 1),
        (lax.sqrt, (), (0,), 1),
        (lax.rsqrt, (0,), (0,), 1),
        (lax.sin, (0,), (), 1),
        (lax.log, (0,), (), 0),
        (lax.abs, (0,), (), 1),
        (lambda x: lax.integer_pow(x, 3), (0,), (), 1),
        (lambda x: lax.cumsum(x), (), (), 0),
        (lambda x: lax.convert_element_type(x, jnp.bfloat16), (), (), 0),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)  # fmt: skip
def test_unary(fn, operands, outputs, internals):
    need = needs_of(fn, jnp.abs(X) + 1)
    assert (need.operands, need.outputs) == (operands, outputs)
    assert len(need.internal_avals) == internals


def test_products_read_the_other_operand():
    assert needs_of(lax.mul, X, X, argnums=(0, 1)).operands == (0, 1)
    assert needs_of(lax.mul, X, X, argnums=0).operands == (1,)
    assert needs_of(lax.mul, X, X, argnums=1).operands == (0,)
    assert needs_of(lambda x: x * 3.0, X).operands == ()
    assert needs_of(jnp.dot, W[0], W[1], argnums=0).operands == (1,)
    assert needs_of(jnp.dot, W[0], W[1], argnums=(0, 1)).operands == (0, 1)
    assert needs_of(lax.add, X, X, argnums=(0, 1)).operands == ()


def test_selections_read_the_condition_only():
    need = needs_of(lambda x: jnp.where(X > 0, x, 0.0), X, primitive="select_n")
    assert need.operands == (0,)
    assert needs_of(lambda x: x[jnp.array([0, 2])], X, primitive="gather").operands == (1,)


def test_custom_derivatives_are_traced_too():
    assert needs_of(cubed, X, primitive="custom_jvp_call").operands == (0,)
    need = needs_of(lambda x: scaled(lambda y: 2.0 * y, x, 2), X)
    assert need.operands == (0,)
    relu = needs_of(jax.nn.relu, X)
    assert len(relu.operands) + len(relu.outputs) == 1


def test_positions_count_literals():
    """``1 / x`` reads its second operand."""
    assert needs_of(lambda x: 1.0 / x, X + 9, primitive="div").operands == (1,)
    assert needs_of(lambda x: 2.0**x, X, primitive="pow").operands[-1:] in ((1,), ())
    program = traced(lambda v: jnp.sum(1.0 / jnp.sin(v)), V)
    from remat_plan.planning.cuts import needed_values

    (sine,) = [op for op in program.graph.ops if op.primitive == "sin"]
    assert sine.outputs[0] in needed_values(program.graph)


def test_control_flow_reads_its_operands():
    def looped(w):
        return lax.scan(lambda c, wi: (jnp.tanh(c @ wi), None), X, w)[0]

    need = needs_of(looped, W, primitive="scan")
    assert need.operands
    assert need.internal_bytes >= 3 * X.nbytes, "stacked residuals of the body"
    assert need.active_outputs == (True,)


def test_kept_checkpoints_read_their_operands():
    fn = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))
    program = traced(lambda x: jnp.sum(fn(x)), X, existing="keep")
    (op,) = [op for op in program.graph.ops if "checkpoint" in op.primitive or "remat" in op.primitive]
    assert program.graph.needs[op.kind].operands == (0,)


def test_integer_outputs_carry_no_tangent():
    need = needs_of(lambda x: lax.top_k(x, 2)[0], X, primitive="top_k")
    assert need.active_outputs == (True, False)
    assert 1 in need.outputs or need.internal_avals, "the indices, or what they are made of"


def test_stop_gradient_ends_activity():
    program = traced(lambda w, x: jnp.sum(jnp.sin(lax.stop_gradient(jnp.exp(x @ w))) * w), W[0], X[:4])
    moving = {op.primitive for op in program.graph.ops if op.differentiated}
    assert moving == {"mul", "reduce_sum"}
    assert not any(program.graph.active[op.outputs[0]] for op in program.graph.ops if op.primitive in ("exp", "sin"))


def test_what_no_cotangent_reaches_needs_nothing():
    def loss(w, x):
        y = jnp.tanh(x @ w)
        jax.debug.callback(lambda _: None, jnp.sum(jnp.exp(y)))
        return jnp.sum(y)

    program = traced(loss, W[0], X)
    by_name = {op.primitive: op for op in program.graph.ops}
    assert by_name["tanh"].differentiated
    assert not by_name["exp"].differentiated


def test_equal_equations_are_traced_once():
    def loss(w, x):
        for i in range(6):
            x = jnp.tanh(x @ w[i % 3])
        return jnp.sum(x)

    graph = traced(loss, W, X).graph
    assert len({op.kind for op in graph.ops if op.primitive == "tanh"}) == 1
    assert len({op.kind for op in graph.ops if op.primitive == "dot_general"}) == 2, "the first has an inactive operand"


def test_literals_tell_classes_apart():
    graph = traced(lambda v: jnp.sum(v * 2.0 + v * 3.0), V).graph
    assert len({op.kind for op in graph.ops if op.primitive == "mul"}) == 2
