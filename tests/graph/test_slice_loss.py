"""Losses whose gradient is made slice by slice in the forward pass: which have one, and that it is theirs."""

import jax
import jax.numpy as jnp
import pytest

from remat_plan.graph.schedule import Segment
from remat_plan.graph.slices import sliced
from remat_plan.graph.uses import Borders
from remat_plan.graph.ways import Split
from tests.helpers import assert_trees_close, few, flat_gradient, plain_gradient, traced, under
from tests.splitting import check_same, same, split

W = jax.random.normal(jax.random.key(0), (6, 7))
X = jax.random.normal(jax.random.key(1), (12, 6))


def penalised(w, x):
    """The mean of something, and a penalty on its weights."""
    return jnp.mean(jnp.square(jnp.sin(x @ w))) + 1e-2 * jnp.sum(jnp.square(w))


@pytest.mark.parametrize(
    "fn",
    [
        lambda w, x: (lambda y: jnp.sum(jnp.sin(y)) / jnp.sum(jnp.cos(y)))(x @ w),
        lambda w, x: jnp.sum(x @ w).astype(jnp.int32).astype(jnp.float32),
        lambda w, x: (jnp.sum(x @ w) * jnp.float32(0.3)).astype(bool).astype(jnp.float32),
        lambda w, x: jax.lax.div(jnp.sum((x @ w > 0).astype(jnp.int32)), 7).astype(jnp.float32),
        lambda w, x: jnp.sum(jnp.sqrt(jnp.sum(jnp.square(x @ w), 0))),
        lambda w, x: jnp.sum(jnp.cumsum(x @ w, 0)),
        lambda w, x: (lambda y: jnp.sum(jnp.sin(y)) + jnp.sum(jnp.cumsum(y, 0)))(x @ w),
        lambda w, x: jnp.max(x @ w),
        lambda w, x: jnp.sum(jnp.exp(1j * (x @ w))).real,
    ],
    ids="ratio truncated truth floor roots stacked both largest complex".split(),
)
def test_what_is_not_a_sum_of_slices_has_no_gradient_in_the_forward_pass(fn):
    program = traced(fn, W, X)
    product = next(op.outputs[0] for op in program.graph.ops if op.primitive == "dot_general")
    found = split(program, product, 0, 3)
    assert found is None or not found[0].way.gradient_first
    check_same(program, [] if found is None else [found], 1e-4, 1e-5)


SUMS = [
    lambda w, x: jnp.sum(x @ w),
    lambda w, x: -jnp.mean(jnp.sin(x @ w)) * 0.1,
    lambda w, x: jnp.sum(jnp.sin(x @ w)) / jnp.sum(x),
    lambda w, x: jnp.sum(jnp.sin(x @ w)) * jnp.sum(jnp.square(w)),
    lambda w, x: (lambda y: jnp.sum(jnp.sin(y)) / 3 - jnp.sum(jnp.cos(y)) * jnp.max(w))(x @ w),
    lambda w, x: jnp.sum(jnp.sin(x @ w)).astype(jnp.bfloat16).astype(jnp.float32) / 8,
    lambda w, x: jnp.sum(jnp.sum(x @ w, 0) * w[0]),
    lambda w, x: jnp.sum(jnp.sin(x @ w)) + 1.0,
    penalised,
    lambda w, x: jnp.sum(w) - 0.1 * (2.0 - jnp.mean(jnp.sin(x @ w))) * jnp.max(w),
    lambda w, x: jnp.sum((jnp.sum(jnp.sin(x @ w), 0) + jnp.square(w[1])) * w[0]),
    lambda w, x: (jnp.sum(jnp.sin(x @ w)) + jnp.sum(jnp.square(w))) / jnp.sum(jnp.exp(w)),
    lambda w, x: jnp.sum(jnp.square(x)) - jnp.sum(jnp.sin(x @ w)),
    lambda w, x: jnp.sum(x @ w) ** 2,
    lambda w, x: 1.0 / jnp.sum(jnp.exp(x @ w)) + jnp.sum(w),
    lambda w, x: jnp.sqrt(jnp.mean(jnp.square(x @ w))),
]


@pytest.mark.parametrize(
    "fn",
    few(SUMS, [SUMS[1], SUMS[2], SUMS[6], SUMS[9], SUMS[14]]),
    ids="sum mean divided scaled two cast weighted constant penalty both behind beneath subtracted square over root"
    "".split(),
)
def test_what_is_a_sum_of_slices_has_one(fn):
    """Factors and terms behind the loop are differentiated too."""
    program = traced(fn, W, X, argnums=(0, 1))
    product = next(op.outputs[0] for op in program.graph.ops if op.primitive == "dot_general")
    schedule = split(program, product, 0, 5)
    assert schedule[0].way.gradient_first
    check_same(program, [schedule], coarse="bfloat16" in str(jax.make_jaxpr(fn)(W, X)))


def product_of(program):
    return next(op.outputs[0] for op in program.graph.ops if op.primitive == "dot_general")


def test_the_only_sum_is_one_whatever_is_made_of_it():
    """A segment that hands on an array."""

    def loss(w, x):
        return jnp.sum(jnp.sin(w * jnp.exp(jnp.mean(jnp.sin(x @ w)))))

    program = traced(loss, W, X, argnums=(0, 1))
    end = next(op.index for op in program.graph.ops if op.primitive == "mul") + 1
    schedule = split(program, product_of(program), 0, 5, end=end)
    assert schedule[0].way.gradient_first
    check_same(program, [schedule])


def test_a_penalty_is_no_part_of_a_slice():
    """The loop adds up the mean alone; the penalty stands around it, with a gradient of its own."""
    program = traced(penalised, W, X)
    found = sliced(Borders(program.graph), Segment(0, len(program.graph.ops)), Split(product_of(program), 0, 4))
    outside = [op.primitive for op in found.region.ops]
    assert outside[-1] == "add"
    assert "square" in outside or "integer_pow" in outside
    (loop,) = [op for op in found.region.ops if op.primitive == "scan"]
    shapes = sorted(found.region.values[v].aval.shape for v in loop.reads)
    assert shapes == [(4, 3, 6), W.shape], "what is added is not handed in"
    gradient = jax.make_jaxpr(flat_gradient(program, split(program, product_of(program), 0, 4)))(W, X)
    assert str(gradient).count(" scan[") == 1, "nothing runs twice"


def test_derivatives_of_all_kinds_of_a_loss_with_a_penalty():
    """Forwards, of second order, of a batch of weights, and with a cotangent that is not one."""
    program = traced(penalised, W, X, argnums=(0, 1))
    run = under(program, split(program, product_of(program), 0, 5))
    shift, batch = (jnp.cos(W), jnp.cos(X)), jnp.stack([W, 2 * W, W + 1])

    def derivatives(fn):
        def slope(w, x):
            return sum(map(jnp.vdot, jax.grad(fn, (0, 1))(w, x), shift))

        return (
            fn(W, X),
            jax.jvp(fn, (W, X), shift),
            jax.grad(slope, (0, 1))(W, X),
            jax.jvp(jax.grad(fn, (0, 1)), (W, X), shift),
            jax.vmap(jax.value_and_grad(fn), (0, None))(batch, X),
            jax.grad(lambda w: 3.0 * fn(w, X) + fn(w, 2 * X) ** 2)(W),
        )

    same(jax.jit(lambda: derivatives(run))(), jax.jit(lambda: derivatives(penalised))(), 1e-4, 1e-5)


def test_what_is_added_is_not_divided_by_sums_of_nothing():
    """A mean over no tokens is not a number, and the same one; with a term beside it too."""

    def loss(w, x, mask):
        return jnp.sum(jnp.sin(x @ w) * mask) / jnp.maximum(jnp.sum(mask), 0.0) + jnp.sum(w)

    for mask in (jnp.ones((12, 1)), jnp.zeros((12, 1))):
        program = traced(loss, W, X, mask)
        run = under(program, split(program, product_of(program), 0, 3))
        assert jnp.allclose(run(W, X, mask), loss(W, X, mask), equal_nan=True)


def test_gradients_by_complex_numbers():
    def loss(w, x):
        return jnp.sum(jnp.abs(jnp.sin(x @ w) + 1j * jnp.cos(x @ w)) ** 2) + jnp.sum(jnp.abs(w))

    args = W * (1 + 0.5j), X
    program = traced(loss, *args, argnums=(0, 1))
    schedule = split(program, product_of(program), 0, 5)
    got, want = jax.jit(flat_gradient(program, schedule))(*args), jax.jit(plain_gradient(program))(*args)
    assert_trees_close(got, want, 1e-4, 1e-5)


def test_a_term_in_16_bits_keeps_its_type():
    def loss(w, x):
        return (jnp.sum(jnp.sin(x @ w)) + jnp.sum(jnp.square(w))).astype(jnp.float32)

    args = W.astype(jnp.bfloat16), X.astype(jnp.bfloat16)
    program = traced(loss, *args, argnums=(0, 1))
    check_same(program, [split(program, product_of(program), 0, 5)], coarse=True)
