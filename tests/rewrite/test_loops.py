"""Scans under plans of their own: values, gradients, order of steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import remat_plan as rp
from remat_plan.graph.schedule import Choice, Part, around, as_is, saving, structured
from remat_plan.graph.structure import structure_of
from remat_plan.rewrite.emit import Emitter
from remat_plan.structures.loop import loop_of
from tests.helpers import few, traced

N = 12
RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(N, 4, 4)) / 2, jnp.float32)
V = jnp.asarray(RNG.normal(size=(4, 4)) / 2, jnp.float32)
X = jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32)


def stacked(w, v, x, **options):
    def step(x, w):
        h = jnp.tanh(x @ w)
        return x + jnp.sin(h @ v), jnp.sum(h)

    x, ys = lax.scan(step, x, w, **options)
    return jnp.sum(x**2) + jnp.sum(ys * jnp.arange(ys.shape[0]))


def backwards(w, v, x):
    return stacked(w, v, x, reverse=True, unroll=2)


def mixed_carry(w, v, x):
    def step(carry, w):
        x, count, key = carry
        key, sub = jax.random.split(key)
        x = jnp.tanh(x @ w) * jax.random.uniform(sub, x.shape) + 0.01 * count * (x @ v)
        return (x, count + 1, key), None

    (x, count, _), _ = lax.scan(step, (x, jnp.int32(0), jax.random.key(3)), w)
    return jnp.sum(x) * count


def only_outputs(w, v, x):
    _, ys = lax.scan(lambda c, w: (c, jnp.tanh(x @ w @ v)), 0.0, w)
    return jnp.sum(ys**2)


def in_a_scan(w, v, x):
    def outer(x, ws):
        x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)
        return x + x @ v, None

    x, _ = lax.scan(outer, x, w.reshape(3, 4, 4, 4))
    return jnp.sum(x**2)


# Compiling is all of the time: one program goes through every other plan, the others through every seventh one, and
# all through every one with ``slow``.
THOROUGH = "stacked"
PROGRAMS = {f.__name__: f for f in (stacked, backwards, mixed_carry, only_outputs, in_a_scan)}
GROUPS = {"flat": (), "two": (2,), "five": (5,), "levels": (3, 2)}


def plans(length, n, first):
    """Plans of a scan whose body has ``n`` equations and makes ``first``."""
    nothing = (saving(0, n),)
    one = (saving(0, n, (first,)),)
    plain = (as_is(0, n),)
    halves = (saving(0, n // 2), saving(n // 2, n))
    inside = (around(0, n, halves),)
    for groups in GROUPS.values():
        for schedule in (plain, one, inside):
            yield Choice((Part(length, schedule, groups),))
    for parts in ((halves, plain), (one, nothing, plain)):
        if len(parts) <= length:
            counts = [length - len(parts) + 1, *[1] * (len(parts) - 1)]
            yield Choice(tuple(Part(c, p) for c, p in zip(counts, parts, strict=True)))


def with_loop(program, plan):
    """The whole schedule in which the program's scan is run by a plan."""
    (index,) = [op.index for op in program.graph.ops if structure_of(op)]
    end = len(program.graph.ops)
    around = as_is(0, index), structured(index, plan), as_is(index + 1, end)
    return tuple(s for s in around if s.end > s.start)


def check_plans(name, step):
    fn = PROGRAMS[name]
    program = traced(fn, W, V, X, argnums=(0, 1, 2))
    (op,) = [op for op in program.graph.ops if structure_of(op)]
    loop = loop_of(program.graph, op)
    first = next(o.outputs[0] for o in loop.body.ops if o.differentiated)
    value, wanted = jax.value_and_grad(fn, (0, 1, 2))(W, V, X)
    tried = list(plans(loop.count, len(loop.body.ops), first))
    assert len(tried) >= 4
    for plan in tried[::step]:
        emitter = Emitter(program.graph, with_loop(program, plan))
        found = jax.jit(jax.value_and_grad(lambda w, v, x, run=emitter: run((w, v, x))[0], (0, 1, 2)))(W, V, X)
        np.testing.assert_allclose(found[0], value, rtol=1e-5)
        for a, b in zip(found[1], wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=str(plan))


@pytest.mark.parametrize("name", few(PROGRAMS, ["mixed_carry", "in_a_scan"]))
def test_gradients_are_those_of_the_scan(name):
    check_plans(name, 2 if name == THOROUGH else 7)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_the_scan_under_every_plan(name):
    check_plans(name, 1)


def test_second_derivatives_and_maps():
    program = traced(stacked, W, V, X)
    (op,) = [op for op in program.graph.ops if structure_of(op)]
    n = len(loop_of(program.graph, op).body.ops)
    plan = Choice((Part(12, (saving(0, n),), (3,)),))
    emitter = Emitter(program.graph, with_loop(program, plan))

    def planned(x):
        return emitter((W, V, x))[0]

    def plain(x):
        return stacked(W, V, x)

    direction = jnp.cos(X)
    for derive in (lambda f: jax.jvp(jax.grad(f), (X,), (direction,))[1], lambda f: jax.jvp(f, (X,), (direction,))[1]):
        np.testing.assert_allclose(derive(planned), derive(plain), rtol=1e-3, atol=1e-4)
    many = jnp.stack([X, 2 * X])
    np.testing.assert_allclose(jax.vmap(jax.grad(planned))(many), jax.vmap(jax.grad(plain))(many), rtol=1e-4, atol=1e-5)


def test_groups_are_run_again_before_their_backward_pass():
    """Two groups of three steps (Chen et al. 2016, section 4.1): all forward, then each group forward and backward."""
    text = str(jax.make_jaxpr(jax.grad(planned_groups))(W[:6]))
    # One scan of groups forward; backward one scan of groups, in it the group's scan again and its transpose.
    assert text.count("length=2") == 2
    assert text.count("length=3") == 3


def planned_groups(w):
    def plain(w):
        return jnp.sum(lax.scan(lambda x, w: (jnp.tanh(x @ w), None), X, w)[0])

    program = traced(plain, W[:6])
    (op,) = [op for op in program.graph.ops if structure_of(op)]
    n = len(loop_of(program.graph, op).body.ops)
    plan = Choice((Part(6, (as_is(0, n),), (2,)),))
    return Emitter(program.graph, with_loop(program, plan))((w,))[0]


@pytest.mark.slow
@pytest.mark.parametrize("length", [61, 64])
def test_a_budget_is_met_whatever_the_length(length):
    """61 is prime: groups leave a shorter one."""
    w = jax.ShapeDtypeStruct((length, 64, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((2048, 64), jnp.float32)

    def loss(w, x):
        def step(x, w):
            return x + jnp.tanh(jax.nn.gelu(x @ w) @ w.T), None

        return jnp.sum(lax.scan(step, x, w)[0])

    plan = rp.plan(loss, w, x, budget="45%", target="cpu")
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    assert any(d.structured for d in plan.decisions)
    assert f"scan of {length} steps" in str(plan)
    assert f"scan of {length} steps" in plan._repr_html_()
    assert rp.Plan.from_json(plan.to_json()) == plan
    small = jnp.ones((length, 64, 64)) / 64, jnp.ones((2048, 64))
    found = jax.jit(jax.grad(plan.apply(loss)))(*small)
    np.testing.assert_allclose(found, jax.jit(jax.grad(loss))(*small), rtol=1e-3, atol=1e-4)
