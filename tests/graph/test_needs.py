"""What backward passes read, found by tracing, against what is known of the primitives."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan._compat import checkpointed_jaxpr, is_literal
from remat_plan.graph.action import action_of
from remat_plan.graph.uses import all_residuals
from remat_plan.rewrite.save_output import run_tagged
from remat_plan.structures.loop import loop_of
from tests.helpers import check_schedules, traced
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
    (sine,) = [op for op in program.graph.ops if op.primitive == "sin"]
    assert sine.outputs[0] in all_residuals(program.graph)


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
    (op,) = [op for op in program.graph.ops if checkpointed_jaxpr(op.eqn) is not None]
    assert program.graph.needs[op.kind].operands == (0,)


def test_integer_outputs_carry_no_tangent():
    need = needs_of(lambda x: lax.top_k(x, 2)[0], X, primitive="top_k")
    assert need.given == need.active_outputs == (True, False)
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


@jax.custom_vjp
def shared(x, w):
    """Two outputs; mapped over ``x`` only, the second is one for the whole batch."""
    return jnp.sin(x) * w, 2.0 * w


shared.defvjp(
    lambda x, w: (shared(x, w), (x, w)),
    lambda kept, ct: (ct[0] * jnp.cos(kept[0]) * kept[1], ct[0] * jnp.sin(kept[0]) + 2.0 * ct[1]),
)


def shared_chain(w, x, use=lambda other: 0.0):
    """jax 0.12 refuses a cotangent for the second output here (``jax.grad`` gives it none)."""
    total = 0.0
    for _ in range(4):
        x, other = jax.vmap(shared, in_axes=(0, None))(x, w)
        total = total + use(other)
    return jnp.sum(x**2) + total


@pytest.mark.parametrize(
    ("use", "given"),
    [
        (lambda other: 0.0, (True,)),  # nothing is made of it: the equation does not have it
        (lambda other: jnp.sum(lax.stop_gradient(jnp.sin(other))), (True, False)),
        pytest.param(lambda other: jnp.sum(jnp.floor(other * 3.0)), (True, False), marks=pytest.mark.slow),
        pytest.param(lambda other: jnp.where(jnp.max(other) > 0.0, 1.0, 2.0), (True, False), marks=pytest.mark.slow),
    ],
    ids=["unused", "stopped", "floor", "compared"],
)
def test_outputs_that_no_cotangent_reaches_are_given_none(use, given):
    program = check_schedules(
        lambda w, x: shared_chain(w, x, use), V, X[:, : V.size], argnums=(0, 1), seeds=range(1), limit=0
    )
    needs = [program.graph.needs[op.kind] for op in program.graph.ops if "custom_vjp" in op.primitive]
    assert {need.given for need in needs} == {given}


@pytest.mark.filterwarnings("ignore:.*a while loop has no known trip count")
def test_so_are_what_a_loss_returns_beside_it():
    def loss(w, x):
        y = jnp.tanh(x @ w)
        steps, z = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, y))
        return jnp.sum(y), (jnp.exp(y), z)  # what is computed by a while loop has no gradient

    program = check_schedules(loss, W[0], X, has_aux=True, seeds=range(1), limit=0)
    by_name = {op.primitive: op for op in program.graph.ops}
    assert by_name["tanh"].differentiated
    assert not by_name["exp"].differentiated
    assert not by_name["while"].differentiated
    without = traced(lambda w, x: loss(w, x)[0], W[0], X).graph
    assert needed_bytes(program.graph) == needed_bytes(without)


def needed_bytes(graph):
    return sum(graph.values[v].size_bytes for v in all_residuals(graph))


@pytest.mark.parametrize(
    ("fn", "primitive"),
    [
        (lambda x: lax.scan(lambda c, _: (jnp.sin(c), jnp.exp(c * 2.0)), x, None, length=5), "scan"),
        (lambda x: lax.cond(x[0, 0] > 0, lambda y: (jnp.sin(y), jnp.exp(y)), lambda y: (y, y * y), x), "cond"),
        (jax.custom_jvp(lambda x: (jnp.sin(x), jnp.exp(x))), "custom_jvp_call"),
        (jax.checkpoint(lambda x: (jnp.sin(x), jnp.exp(x))), None),
    ],
    ids=["scan", "cond", "custom_jvp", "checkpoint"],
)
def test_what_only_unreached_outputs_need_is_not_kept(fn, primitive):
    if hasattr(fn, "defjvp"):
        fn.defjvp(lambda xs, ts: (fn(*xs), (jnp.cos(xs[0]) * ts[0], fn(*xs)[1] * ts[0])))

    def of(use):
        graph = traced(lambda x: jnp.sum(use(fn(x))), X, existing="keep").graph
        return next(graph.needs[o.kind] for o in graph.ops if o.differentiated and primitive in (None, o.primitive))

    first = of(lambda out: out[0] + lax.stop_gradient(jnp.sum(out[1])))
    both = of(lambda out: out[0] + jnp.sum(out[1]))
    assert (first.given, both.given) == ((True, False), (True, True))
    assert first.internal_bytes <= both.internal_bytes
    assert set(first.operands) <= set(both.operands)
    assert set(first.outputs) <= set(both.outputs)
    if primitive == "scan":
        kept = [need.internal_bytes + len(need.outputs) for need in (first, both)]
        assert kept[0] < kept[1], "the exponentials of all steps, an internal (jax 0.10) or the output (0.12)"


@pytest.mark.slow
def test_bodies_of_loops_know_what_is_reached():
    def step(c, row):
        moved, counted = c
        return (jnp.sin(moved @ row), jnp.exp(counted) * moved[0, 0]), jnp.cos(moved)

    def loss(w, x):
        (moved, counted), rows = lax.scan(step, (x, x), w)
        return jnp.sum(moved) + lax.stop_gradient(jnp.sum(counted) + jnp.sum(rows))

    program = check_schedules(loss, W, X, seeds=range(1), limit=0)
    (op,) = [op for op in program.graph.ops if op.primitive == "scan"]
    assert program.graph.needs[op.kind].given == (True, False, False)
    names = {o.primitive for o in loop_of(program.graph, op).body.ops if o.differentiated}
    assert names == {"dot_general", "sin"}


def test_a_carry_is_reached_by_way_of_the_next_step():
    def step(c, row):
        first, second = c
        return (jnp.sin(second @ row), jnp.exp(first)), None

    program = check_schedules(lambda w, x: jnp.sum(lax.scan(step, (x, x), w)[0][0]), W, X, seeds=range(1), limit=0)
    (op,) = [op for op in program.graph.ops if op.primitive == "scan"]
    body = loop_of(program.graph, op).body
    assert {o.primitive for o in body.ops if o.differentiated} == {"dot_general", "sin", "exp"}


def test_outputs_without_a_tangent_stay_so_when_they_are_saved():
    """The tagged equation must not turn "no tangent" into zeros, or what follows would be differentiated."""

    def fn(x):
        count, y = lax.while_loop(lambda c: c[0] < 3.0, lambda c: (c[0] + 1.0, jnp.sin(c[1])), (0.0, x))
        return count, y

    eqn = jax.make_jaxpr(fn)(V).jaxpr.eqns[-1]
    pushed = jax.make_jaxpr(lambda x, t: jax.jvp(lambda y: [jnp.sin(z) for z in _tagged(eqn, y)], (x,), (t,)))(V, V)
    assert [e.primitive.name for e in pushed.jaxpr.eqns].count("cos") == 1, "after the loop, of the value that moves"


def _tagged(eqn, x):
    args = [a.val if is_literal(a) else x for a in eqn.invars]
    return run_tagged(eqn, args, {len(eqn.outvars) - 1: (action_of("save"), "kept")})
