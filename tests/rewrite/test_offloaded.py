"""Steps of loops that keep values on the host compute what the plain program does, under every transformation."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan import _compat
from remat_plan.graph.schedule import Choice, Part, Segment, around, as_is, saving
from remat_plan.graph.uses import residuals
from remat_plan.graph.valid import check_schedule
from remat_plan.graph.ways import Plain
from remat_plan.planning.limits import NO_LIMITS
from remat_plan.planning.offloads import offloaded
from remat_plan.structures.loop import loop_of
from remat_plan.traced.programs import make_runner
from tests.helpers import assert_trees_close, few, traced

COUNT = 4
KEYS = iter(jax.random.split(jax.random.key(0), 8))
X = jax.random.normal(next(KEYS), (8, 16))


def gated(x, w):
    a, b = w
    return x + jnp.tanh(x @ a) * jax.nn.sigmoid(x @ a.T) @ b, None


def attention(x, w):
    a, b = w
    weights = jax.nn.softmax((x @ a) @ x.T)
    return weights @ (x @ b), jnp.sum(weights)


def complex_step(x, w):
    a, b = w
    z = (x @ a) * jnp.exp(1j * (x @ b))
    return jnp.real(z) + jnp.imag(z), None


def two_carries(carry, w):
    x, y = carry
    a, b = w
    return (jnp.sin(x @ a) + y, jnp.cos(y @ b) * x), None


def loss_of(step):
    def loss(w, x):
        begin = (x, jnp.ones_like(x)) if step is two_carries else x
        carry, rows = lax.scan(step, begin, w)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves((carry, rows)))

    return loss


W = tuple(jax.random.normal(next(KEYS), (COUNT, 16, 16)) / 4 for _ in range(2))
STEPS = [gated, attention, complex_step, two_carries]


def schedules(step):
    """A program and schedules of it whose steps move some of what they keep: saved values, and around segments."""
    program = traced(loss_of(step), W, X)
    graph = program.graph
    index = next(op.index for op in graph.ops if op.primitive == "scan")
    body = loop_of(graph, graph.ops[index]).body
    n = len(body.ops)
    read = sorted({v for op in body.ops for v in residuals(body, op) if body.values[v].producer >= 0})
    half = around(0, n, (as_is(0, n // 2), as_is(n // 2, n)))
    for (made,) in offloaded(body, NO_LIMITS, [(saving(0, n, read),), (saving(0, n),), (half,)]):
        for parts in (
            (Part(COUNT, (made,)),),
            (Part(1, (made,)), Part(3, (as_is(0, n),))),
            (Part(COUNT, (made,), (2,)),),
        ):
            loop = Segment(index, index + 1, Plain(((index, Choice(parts)),)))
            found = (as_is(0, index), loop, as_is(index + 1, len(graph.ops)))
            yield program, tuple(s for s in found if s.start < s.end)


CASES = [(step, *case) for step in STEPS for case in schedules(step)]


@pytest.mark.parametrize(("step", "program", "schedule"), few(CASES, CASES[:: len(CASES) // 4]))
def test_values_and_derivatives_are_those_of_the_plain_program(step, program, schedule):
    check_schedule(program.graph, schedule)
    run, plain = make_runner(program, schedule), loss_of(step)

    def planned(w, x):
        return run((*w, x))[0]

    both = [jax.value_and_grad(f, (0, 1)) for f in (planned, plain)]
    assert "<host>" in str(jax.make_jaxpr(both[0])(W, X))
    assert_trees_close(*(jax.jit(f)(W, X) for f in both))
    xs = jnp.stack([X, 2 * X])
    assert_trees_close(*(jax.jit(jax.vmap(jax.grad(f, 1), (None, 0)))(W, xs) for f in (planned, plain)))
    along = [jax.jvp(lambda x, f=f: jax.grad(f)(W, x), (X,), (X,))[1] for f in (planned, plain)]
    assert_trees_close(*along)


@pytest.mark.skipif(not _compat.cond_forwards_residuals(), reason="jax keeps copies of what a cond reads")
def test_stretches_that_move_values_are_in_no_branch():
    """XLA:TPU copies what enters a branch in the host's memory, all of a stack."""

    def branches(segment):
        program = traced(loss_of(gated), W, X)
        index = next(op.index for op in program.graph.ops if op.primitive == "scan")
        n = len(loop_of(program.graph, program.graph.ops[index]).body.ops)
        parts = Part(1, (segment(n),)), Part(3, (as_is(0, n),))
        loop = Segment(index, index + 1, Plain(((index, Choice(parts)),)))
        found = as_is(0, index), loop, as_is(index + 1, len(program.graph.ops))
        run = make_runner(program, tuple(s for s in found if s.start < s.end))
        return str(jax.make_jaxpr(lambda w, x: run((*w, x))[0])(W, X)).count(" cond[")

    body = loop_of(*_first_scan(traced(loss_of(gated), W, X).graph)).body
    (moving,) = next(iter(offloaded(body, NO_LIMITS, [(saving(0, len(body.ops)),)])))
    both = branches(lambda n: saving(0, n))
    assert both
    assert branches(lambda n: moving) == both // 2, "the stretch that keeps all on the device"


def _first_scan(graph):
    return graph, next(op for op in graph.ops if op.primitive == "scan")
