"""What a schedule recomputes is what the planner says, and effects happen once."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import remat_plan as rp
from remat_plan import _compat
from remat_plan.cost.rules import eqn_flops
from remat_plan.graph.action import action_of
from remat_plan.graph.flatten import flatten
from remat_plan.graph.schedule import around, as_is, saving
from remat_plan.graph.uses import free_ops
from remat_plan.results.decisions import decide
from remat_plan.rewrite.emit import Emitter
from remat_plan.rewrite.policies import named_policy
from remat_plan.rewrite.save_output import run_tagged
from remat_plan.solve import min_cut
from remat_plan.verify.step import GradientStep
from tests.helpers import (
    all_points,
    assert_trees_close,
    cut_every,
    everything_saved,
    few,
    flat_gradient,
    halved,
    many_schedules,
    plain_gradient,
    random_schedule,
    stretches,
    traced,
    whole,
    whole_problem,
)
from tests.zoo import ZOO, V, W, X, array

pytestmark = [
    pytest.mark.usefixtures("quick_search"),
    pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive"),
]

COUNTED = ("dot_general", "tanh", "exp", "logistic", "rsqrt", "erf", "reduce_max", "cumsum", "gather")
"""Primitives that the derivatives of others do not use (of dot_general, always the same number)."""


def counts(program, schedule):
    """How often each primitive runs in the gradient step under a schedule."""
    emitter = Emitter(program.graph, schedule)
    step = GradientStep(lambda *values: emitter(values), program.call.differentiated)
    closed = jax.make_jaxpr(step)(*program.call.structs)
    return Counter(e.eqn.primitive.name for e in flatten(closed).eqns)


NAMES = "mlp exp_tanh_rsqrt relu_and_friends attention u_net batch_norm literal_keys stop_gradient indexing".split()


FEW = ("mlp", "exp_tanh_rsqrt", "attention", "literal_keys", "stop_gradient")


@pytest.mark.parametrize("name", few(NAMES, FEW))
def test_a_segment_recomputes_what_the_minimum_cut_says(name):
    case = ZOO[name]
    program = traced(case.fn, *case.args, **case.options)
    graph = program.graph
    plain = counts(program, program.plain)
    run, problem = whole_problem(program)
    selections = min_cut.hull(problem, 100)
    assert len(selections) > 1
    for selection in selections:
        saved = tuple(run.values[i] for i in sorted(selection.saved))
        schedule = (saving(0, len(graph.ops), saved),)
        found = counts(program, schedule)
        again = Counter(graph.ops[run.ops[n]].primitive for n in selection.recomputed)
        flops = sum(eqn_flops(graph.ops[run.ops[n]].eqn) for n in selection.recomputed)
        (row,) = decide(graph, schedule)
        made_anyway = sum(eqn_flops(graph.ops[i].eqn) for i in free_ops(graph))
        assert flops * 0.999 <= row.recomputed_flops <= (flops + made_anyway) * 1.001, (
            "the table says what is run again"
        )
        assert row.saved_bytes == sum(graph.values[v].size_bytes for v in saved)
        for primitive in COUNTED:
            assert found[primitive] == plain[primitive] + again[primitive], (primitive, len(saved))


def test_a_segment_that_saves_all_needed_values_recomputes_nothing_dear():
    def loss(w, x):
        for i in range(3):
            x = jnp.exp(jnp.tanh(x @ w[i]))
            x = x * lax.rsqrt(1.0 + jnp.sum(x**2, 1, keepdims=True))
        return jnp.sum(lax.logistic(x))

    program = traced(loss, W, X)
    run, problem = whole_problem(program)
    best = min_cut.hull(problem)[-1]
    plain = counts(program, program.plain)
    found = counts(program, (saving(0, len(program.graph.ops), [run.values[i] for i in best.saved]),))
    for primitive in ("tanh", "exp", "rsqrt", "logistic", "dot_general"):
        assert plain[primitive] == found[primitive]


def test_nested_halves_recompute_each_level_once_more():
    """Eight layers in three levels of nesting: the layer that starts the deepest runs once per level, as planned."""

    def loss(w, x):
        for _ in range(8):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    program = traced(loss, W[0], X)
    plain = counts(program, program.plain)["tanh"]
    assert plain == 8
    ops = len(program.graph.ops)
    assert counts(program, (saving(0, ops),))["tanh"] == 2 * plain

    one = around(0, ops, tuple(saving(i, min(i + 2, ops)) for i in range(0, ops, 2)))
    # Every layer twice more: with the nest, and by itself. The sum at the end needs no input for its gradient, so
    # the nest does not run the last layer's forward pass.
    assert counts(program, (one,))["tanh"] == 3 * plain - 1


OWN_OUTPUT = [jnp.tanh, jnp.exp, lax.rsqrt, lax.logistic, jnp.sqrt, lax.exp2, jnp.cbrt, jnp.expm1]


@pytest.mark.parametrize("op", few(OWN_OUTPUT, [jnp.exp, lax.logistic]))
def test_saved_outputs_are_not_made_again(op):
    """The JVP rule of these reads their own output: a tag behind it alone would not help."""
    eqn = jax.make_jaxpr(op)(jnp.ones(3)).eqns[0]
    if eqn.primitive.name in _compat.INLINE_CALLS:
        eqn = _compat.open_jaxpr(_compat.call_jaxpr(eqn))[0].eqns[0]
    name = eqn.primitive.name

    def segment(x):
        (y,) = run_tagged(eqn, [x], {0: (action_of("save"), "kept")})
        return jnp.sum(jnp.sin(y))

    x = jnp.array([0.5, 1.0, 2.0])
    saved = jax.checkpoint(segment, policy=named_policy(["kept"]))
    recomputed = jax.checkpoint(segment)
    for run, expected in ((saved, 1), (recomputed, 2)):
        closed = jax.make_jaxpr(jax.value_and_grad(run))(x)
        assert Counter(e.eqn.primitive.name for e in flatten(closed).eqns)[name] == expected
        assert_trees_close(jax.grad(run)(x), jax.grad(lambda x: jnp.sum(jnp.sin(op(x))))(x))
        assert_trees_close(jax.hessian(run)(x), jax.hessian(lambda x: jnp.sum(jnp.sin(op(x))))(x), 1e-4, 1e-5)
        assert_trees_close(jax.jvp(run, (x,), (x,)), jax.jvp(lambda x: jnp.sum(jnp.sin(op(x))), (x,), (x,)))


def test_operations_with_integer_outputs_can_be_saved():
    def loss(w, x):
        values, where = lax.top_k(jnp.tanh(x @ w), 2)
        return jnp.sum(values * where)

    program = traced(loss, W[0], X)
    assert_trees_close(
        flat_gradient(program, everything_saved(program))(*program.call.leaves),
        plain_gradient(program)(*program.call.leaves),
    )


def test_names_of_an_inner_plan_do_not_reach_the_outer_one():
    """A planned function inside a planned function: only the outer plan says what is kept."""

    def inner(w, x):
        for i in range(3):
            x = jnp.tanh(x @ w[i])
        return jnp.sum(x)

    first = traced(inner, W, X)
    run = Emitter(first.graph, everything_saved(first))
    program = traced(lambda w, x: run([w, x])[0] ** 2, W, X)
    assert not any(v.name for v in program.graph.values)
    plain = counts(program, program.plain)
    found = counts(program, whole(program))
    assert found["dot_general"] == plain["dot_general"] + 3
    assert found["tanh"] == plain["tanh"] + 3


def test_collectives_may_be_recomputed():
    """They name an axis, which JAX calls an effect, but running them again is allowed."""

    def loss(w, x):
        for i in range(3):
            x = jnp.tanh(x @ w[i])
            x = x - lax.pmean(jnp.mean(x, 0), "batch")
        return jnp.sum(x)

    def gradient(f):
        return jax.vmap(jax.grad(f), (None, 0), axis_name="batch")(W, jnp.stack([X, X + 1]))

    def under_plan(w, x):
        program = traced(loss, w, x)
        assert not any(op.effectful for op in program.graph.ops)
        return Emitter(program.graph, cut_every(program, 3))([w, x])[0]

    assert_trees_close(gradient(under_plan), gradient(loss), 1e-4, 1e-5)


class Calls(list):
    """A callback that counts."""

    def __call__(self, *values):
        self.append(tuple(int(np.sum(v)) for v in values))


def test_callbacks_run_exactly_once_and_in_order():
    calls = Calls()

    def loss(w, x):
        for i in range(4):
            jax.debug.callback(calls, i, ordered=True)
            x = jnp.tanh(x @ w)
            jax.debug.callback(calls, 10 + i, ordered=True)
        return jnp.sum(x)

    program = traced(loss, W[0], X)
    leaves = program.call.leaves
    n = len(program.graph.ops)
    assert sum(op.effectful for op in program.graph.ops) == 8
    across = [
        (saving(0, n),),
        (around(0, n, (saving(0, 5), as_is(5, 9), around(9, n, (saving(9, n - 2), as_is(n - 2, n))))),),
    ]
    for schedule in [*many_schedules(program), *across]:
        for gradient in (flat_gradient(program, schedule), jax.jit(flat_gradient(program, schedule))):
            calls.clear()
            jax.block_until_ready(gradient(*leaves))
            jax.effects_barrier()
            assert [c[0] for c in calls] == [0, 10, 1, 11, 2, 12, 3, 13]


@pytest.mark.slow
def test_callbacks_in_the_users_own_checkpoint_run_once():
    """JAX runs them again with the recomputation; planned anew, they are outside of any segment."""
    calls = Calls()

    @jax.jit
    @jax.checkpoint
    def layer(w, x):
        x = jnp.tanh(x @ w)
        jax.debug.callback(calls, jnp.int32(1) + 0 * jnp.int32(x[0, 0]))
        return jnp.sin(x)

    program = traced(lambda w, x: jnp.sum(layer(w, layer(w, layer(w, x)))), W[0], X)
    for schedule in many_schedules(program):
        calls.clear()
        jax.block_until_ready(flat_gradient(program, schedule)(*program.call.leaves))
        jax.effects_barrier()
        assert len(calls) == 3


@pytest.mark.slow
def test_print_runs_once_under_a_real_plan(capfd):
    def loss(w, x):
        for i in range(8):
            x = jnp.tanh(x @ w)
            if i % 4 == 1:
                jax.debug.print("layer {i}", i=i)
        return jnp.mean(x)

    w, x = array(16, 16, seed=1) / 4, array(256, 16, seed=2)
    plan = rp.plan(loss, w, x, budget="80%")
    assert not plan.is_identity
    capfd.readouterr()
    jax.block_until_ready(jax.jit(jax.value_and_grad(plan.apply(loss)))(w, x))
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "layer 1", "layer 5"]


def test_effects_inside_loops_stay_outside_of_segments():
    calls = Calls()

    def loss(w, x):
        def body(c, wi):
            jax.debug.callback(calls, jnp.int32(1) + 0 * jnp.int32(c[0, 0]))
            return jnp.tanh(c @ wi), None

        for _ in range(2):
            x, _ = lax.scan(body, jnp.sin(x), w)
        return jnp.sum(x)

    program = traced(loss, W, X)
    assert [op.primitive for op in program.graph.ops if op.effectful] == ["scan", "scan"]
    for schedule in (whole(program), halved(program), random_schedule(program, 1)):
        calls.clear()
        jax.block_until_ready(flat_gradient(program, schedule)(*program.call.leaves))
        jax.effects_barrier()
        assert len(calls) == 6


def test_the_planner_never_puts_effects_that_are_read_into_segments():
    def loss(w, x):
        for i in range(3):
            x = jnp.tanh(x @ w[i])
            shape = jax.ShapeDtypeStruct((), x.dtype)
            x = x * io_callback(lambda v: v, shape, lax.stop_gradient(x[0, 0]), ordered=True)
        return jnp.sum(x)

    program = traced(loss, W, X)
    effectful = {op.index for op in program.graph.ops if op.effectful}
    assert len(effectful) == 3
    assert program.graph.apart == effectful

    def check(segments):
        for s in segments:
            if effectful & set(range(s.start, s.end)):
                assert not s.checkpointed
            check(s.children)

    for schedule in all_points(program):
        check(schedule)
    assert len(stretches(program.graph)) >= 6


def test_literal_values_differ_between_equal_looking_segments():
    """Equal segments share one function; constants that each makes for itself must not be shared by mistake."""

    def loss(v):
        x = v
        for i in range(4):
            x = jnp.sin(x) * jnp.exp(jnp.arange(4.0) * (i + 1))
        return jnp.sum(x)

    program = traced(loss, V)
    want = plain_gradient(program)(V)
    for length in range(1, 9):
        assert_trees_close(flat_gradient(program, cut_every(program, length))(V), want)


def test_long_chains_of_literal_values():
    """A thousand operations on literals that a segment makes for itself: no recursion."""

    def loss(v):
        c = jnp.arange(4.0)
        for _ in range(1200):
            c = c + 1.0
        return jnp.sum(jnp.sin(v * c))

    program = traced(loss, V)
    assert_trees_close(flat_gradient(program, whole(program))(V), plain_gradient(program)(V), 1e-4, 1e-4)
