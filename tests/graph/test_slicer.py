"""Slice by slice, the gradient in the backward or in the forward pass: what comes out is what the function returns."""

import math
import random

import jax
import jax.numpy as jnp
import optax
import pytest

from remat_plan import _compat
from tests.heads import draw_head
from tests.helpers import few, flat_gradient, plain_gradient, traced, under
from tests.splittable import LAYERS, draw_stack, loss_of
from tests.splittable import arguments as layer_arguments
from tests.splitting import any_split, check_same, every_split, largest, offered, same, some_splits, split

TOKENS, WIDTH, HIDDEN, WORDS = 12, 6, 7, 11
KEYS = jax.random.split(jax.random.key(0), 4)
PARAMS = {
    "w": jax.random.normal(KEYS[0], (HIDDEN, WORDS)),
    "first": jax.random.normal(KEYS[1], (WIDTH, HIDDEN)),
    "temperature": jnp.float32(1.2),
}
X = jax.random.normal(KEYS[2], (TOKENS, WIDTH))
LABELS = jnp.arange(TOKENS) % WORDS


def rows_of(p, x, labels):
    """Losses with a temperature and a soft cap."""
    logits = 3.0 * jnp.tanh(jnp.sin(x @ p["first"]) @ p["w"] / p["temperature"] / 3.0)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def head(p, x, labels):
    """A masked mean."""
    mask = labels > 2
    return jnp.sum(rows_of(p, x, labels) * mask) / jnp.sum(mask)


def twofold(p, x, labels):
    """A function of two sums, of which each slice runs again."""
    rows = rows_of(p, x, labels)
    return jnp.mean(rows) * jnp.mean(jnp.sin(rows))


HEADS = pytest.mark.parametrize("head", few([twofold, head], [head]))


def in_slices(fn, *args, dimension=0, slices=5, **options):
    """The function with all of it split, as one of the same arguments; ``jax.tree`` of the parameters included."""
    program = traced(fn, *args, **options)
    schedule = split(program, largest(program), dimension, slices)
    assert schedule is not None
    run = under(program, schedule)
    return lambda *xs: run(*jax.tree.leaves(xs))


def check_head(seed, most):
    """Compare a few splits of a random head; return how many."""
    drawn = draw_head(seed)
    program = traced(drawn.loss, *drawn.args, has_aux=drawn.has_aux)
    schedules = some_splits(program, random.Random(seed), most)
    check_same(program, schedules, coarse=drawn.coarse)
    return len(schedules)


def check_stack(seed):
    """Compare two splits of segments of a random stack of layers; return how many."""
    with jax.enable_x64(True):
        drawn = draw_stack(seed)
        program = traced(drawn.loss, *drawn.args, argnums=(0, 1))
        draw = random.Random(seed)
        schedules = [s for s in (any_split(program, draw), any_split(program, draw)) if s is not None]
        check_same(program, schedules, 1e-6, 1e-8)
        return len(schedules)


@pytest.mark.slow
def test_random_heads():
    assert check_head(11, 1)


def test_random_stacks():
    assert check_stack(0)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, 10))
def test_many_random_heads(first):
    assert sum(check_head(seed, 3) for seed in range(first, first + 10))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, 10))
def test_many_random_stacks(first):
    assert sum(map(check_stack, range(first, first + 10)))


@pytest.mark.slow
def test_ways_to_split_a_head():
    for fn in (head, twofold):
        program = traced(fn, PARAMS, X, LABELS, argnums=(0, 1))
        schedules = [*offered(program)[::4], *every_split(program, (5,))]
        ways = {(s.way.gradient_first, s.way.dimension) for (s,) in schedules}
        assert ways == {(fn is head, 0), (False, 1)}
        check_same(program, schedules)


@HEADS
def test_derivatives_of_all_kinds(head):
    """Forwards, of second order, of a batch of parameters, and with a cotangent that is not one."""
    sliced = in_slices(head, PARAMS, X, LABELS)
    shift = jax.tree.map(jnp.cos, (PARAMS, X))
    batch = jax.tree.map(lambda x: jnp.stack([x, 2 * x, x + 1]), PARAMS)

    def derivatives(fn):
        def loss(p, x):
            return fn(p, x, LABELS)

        def slope(p, x):
            return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, jax.grad(loss)(p, x), shift[0])))

        return (
            jax.jvp(loss, (PARAMS, X), shift),
            jax.grad(slope, (0, 1))(PARAMS, X),
            jax.jvp(jax.grad(loss, (0, 1)), (PARAMS, X), shift),
            jax.vmap(jax.value_and_grad(loss), (0, None))(batch, X),
            jax.grad(lambda p: 3.0 * loss(p, X) + loss(p, 2 * X) ** 2)(PARAMS),
            jax.grad(lambda t: loss(PARAMS | {"temperature": t}, X))(1.1),
        )

    same(jax.jit(lambda: derivatives(sliced))(), jax.jit(lambda: derivatives(head))(), 1e-4, 1e-5)


@HEADS
def test_derivatives_by_what_was_not_differentiated_when_it_was_planned(head):
    sliced = in_slices(head, PARAMS, X, LABELS)
    got, want = (jax.jit(jax.value_and_grad(fn, argnums=1))(PARAMS, X, LABELS) for fn in (sliced, head))
    same(got, want)


@HEADS
def test_in_64_bits(head):
    with jax.enable_x64(True):
        args = jax.tree.map(lambda x: x.astype(jnp.float64), (PARAMS, X))
        sliced = in_slices(head, *args, LABELS)
        got, want = (jax.jit(jax.value_and_grad(fn, (0, 1)))(*args, LABELS) for fn in (sliced, head))
        assert got[0].dtype == jnp.float64
        same(got, want, 1e-12, 1e-13)


@pytest.mark.parametrize("sums", [1, 2])
def test_sums_of_16_bits_are_made_in_32(sums):
    """Many slices lose nothing of the gradient of the weights, also where they run again."""

    def loss(p, x):
        rows = jax.nn.logsumexp((x @ p["first"]).astype(jnp.float32), -1)
        return jnp.mean(rows) * (1.0 if sums == 1 else jnp.mean(jnp.square(rows)))

    x = jax.random.normal(KEYS[3], (512, WIDTH), jnp.bfloat16) + 1
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), {"first": PARAMS["first"]})
    exact = jax.grad(loss)(*jax.tree.map(lambda x: x.astype(jnp.float32), (params, x)))["first"]
    sliced = in_slices(loss, params, x, slices=256)
    found = jax.jit(jax.grad(sliced))(params, x)["first"]
    assert found.dtype == jnp.bfloat16
    error = jnp.max(jnp.abs(found.astype(jnp.float32) - exact)) / jnp.max(jnp.abs(exact))
    assert error < 0.01, "numbers below the last digit of a sum in 16 bits would be lost"


def products(jaxpr, times=1):
    """The multiplications of all products of matrices of a program, loops counted by their steps."""
    found = 0
    for eqn in _compat.open_jaxpr(jaxpr)[0].eqns:
        steps = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        summed = eqn.params["dimension_numbers"][0][0] if eqn.primitive.name == "dot_general" else ()
        if summed and eqn.outvars[0].aval.shape:  # else it is one of vectors, or with a number
            sizes = [eqn.invars[0].aval.shape[d] for d in summed]
            found += times * math.prod(eqn.outvars[0].aval.shape) * math.prod(sizes)
        found += sum(products(inside, times * steps) for inside in _compat.sub_jaxprs(eqn.params))
    return found


@pytest.mark.parametrize(("argnums", "slices"), [(0, 5), ((0, 1), 3)])
def test_how_often_products_run(argnums, slices):
    for fn in (head, twofold):
        program = traced(fn, PARAMS, X, LABELS, argnums=argnums)
        leaves, schedule = program.call.leaves, split(program, largest(program), 0, slices)
        plain = products(jax.make_jaxpr(plain_gradient(program))(*leaves))
        forward = products(jax.make_jaxpr(program.call.flat_fn)(*leaves))
        assert forward == TOKENS * HIDDEN * (WIDTH + WORDS)
        assert plain == (3 * forward if argnums == (0, 1) else 3 * forward - TOKENS * WIDTH * HIDDEN)
        again = forward if fn is twofold else 0
        assert products(jax.make_jaxpr(flat_gradient(program, schedule))(*leaves)) == plain + again


def layer_program(name):
    params, x = layer_arguments()
    return traced(loss_of((name,)), params, x, argnums=(0, 1))


@pytest.mark.parametrize("name", few(LAYERS, ["recurrence", "squared"]))
def test_layers_by_the_axis_of_their_largest_value(name):
    """Either refused or right."""
    with jax.enable_x64(True):
        program = layer_program(name)
        schedules = every_split(program, (3,))
        assert schedules
        check_same(program, schedules, 1e-7, 1e-9)


def test_dropout_draws_what_it_draws():
    """In slices of uneven size too, the mask of each is a part of the whole one."""
    program = layer_program("dropout")
    made = next(op.outputs[0] for op in program.graph.ops if op.primitive == "tanh")
    schedules = [split(program, made, 1, 5), split(program, made, 2, 5)]
    check_same(program, schedules, 1e-4, 1e-5)


@pytest.mark.slow
def test_layers_are_split_along_each_of_their_axes():
    """Batch, queries and heads of attention; tokens and hidden units; the batch of a recurrence and of an image."""

    def dimensions(name, primitive, rank):
        program = layer_program(name)
        values = [v for op in program.graph.ops if op.primitive == primitive for v in op.outputs]
        value = next(v for v in values if program.graph.values[v].aval.ndim == rank)
        return {d for d in range(rank) if split(program, value, d, 2)}

    assert dimensions("attention", "exp", 4) == {0, 1, 2, 3}
    assert dimensions("mlp", "tanh", 3) == {0, 1, 2}
    assert 0 in dimensions("recurrence", "scan", 3) | dimensions("recurrence", "transpose", 3)
    assert dimensions("mixture", "dot_general", 4) >= {0, 1}
    assert 0 in dimensions("convolution", "conv_general_dilated", 3)
