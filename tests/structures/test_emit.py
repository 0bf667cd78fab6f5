"""Structures under choices: values and gradients are those of the function, whatever is recomputed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from remat_plan.graph.schedule import Choice, Part, as_is, saving, structured
from remat_plan.graph.structure import structure_of
from remat_plan.rewrite.emit import Emitter
from tests.helpers import few, traced

W = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8, 8)) / 3, jnp.float32)
X = jnp.asarray(np.random.default_rng(1).normal(size=(16, 8)), jnp.float32)


def layers(w, x):
    for i in range(4):
        x = x + jnp.tanh(jnp.sin(x @ w[i]) @ w[i])
    return x


def branch(w, x):
    return jnp.sum(lax.cond(x[0, 0] > 0, layers, lambda w, x: jnp.cos(layers(w, x)), w, x) ** 2)


def switched_steps(w, x):
    def step(c, i):
        return lax.switch(i % 3, [lambda c: layers(w, c), lambda c: jnp.sin(layers(w, c)), lambda c: c], c), None

    return jnp.sum(lax.scan(step, x, jnp.arange(6))[0] ** 2)


def loop_in_a_branch(w, x):
    def through(w, x):
        return lax.scan(lambda c, p: (c + jnp.tanh(jnp.sin(c @ p) @ p), None), x, w)[0]

    return jnp.sum(lax.cond(x[0, 0] > 0, through, lambda w, x: x, w, x) ** 2)


def binomial_steps(w, x):
    return jnp.sum(lax.scan(lambda c, p: (c + jnp.tanh(jnp.sin(c @ p) @ p), c[0]), x, w)[0] ** 2)


def inside(graph, depth=0):
    """A schedule that saves nothing in any region of any structure."""
    segments = []
    for op in graph.ops:
        structure = structure_of(op)
        if structure is None:
            segments.append(as_is(op.index, op.index + 1))
            continue
        regions, counts = structure.regions(graph, op), structure.run_counts(op)
        parts = []
        for region, count in zip(regions, counts, strict=True):
            flat = not any(structure_of(o) for o in region.ops)
            parts.append(Part(int(count), (saving(0, len(region.ops)),) if flat else inside(region, depth + 1)))
        segments.append(structured(op.index, Choice(tuple(parts))))
    return tuple(segments) or (as_is(0, 0),)


def check(fn, schedule, program, transforms=(jax.jit,)):
    emitter = Emitter(program.graph, schedule)
    planned = lambda w, x: emitter((w, x))[0]  # noqa: E731
    wanted = jax.jit(jax.value_and_grad(fn, (0, 1)))(W, X)
    for transform in transforms:
        found = transform(jax.value_and_grad(planned, (0, 1)))(W, X)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted)
    return planned


REGIONS = [branch, switched_steps, loop_in_a_branch, binomial_steps]


@pytest.mark.parametrize("fn", few(REGIONS, [loop_in_a_branch, binomial_steps]))
def test_nothing_is_saved_in_any_region(fn):
    program = traced(fn, W, X, argnums=(0, 1))
    planned = check(fn, inside(program.graph), program, (lambda f: f, jax.jit) if fn is branch else (jax.jit,))
    text = str(jax.make_jaxpr(jax.grad(planned))(W, X))
    assert text.count("tanh") > str(jax.make_jaxpr(jax.grad(fn))(W, X)).count("tanh")
    found, wanted = (
        jax.jit(lambda x, t, f=f: jax.jvp(lambda x: f(W, x), (x,), (t,)))(X, jnp.cos(X)) for f in (planned, fn)
    )
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4)


def test_few_carries_are_kept_by_slots():
    program = traced(binomial_steps, W, X, argnums=(0, 1))
    (op,) = [op for op in program.graph.ops if structure_of(op)]
    (region,) = structure_of(op).regions(program.graph, op)
    choice = Choice((Part(4, (as_is(0, len(region.ops)),)),), slots=2)
    end = len(program.graph.ops)
    schedule = (as_is(0, op.index), structured(op.index, choice), as_is(op.index + 1, end))
    check(binomial_steps, tuple(s for s in schedule if s.end > s.start), program)
