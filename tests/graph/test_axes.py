"""Elements are apart along an axis if slices of it, joined, are the whole: nothing that is claimed is wrong."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AxisType

from remat_plan.graph.axes import Axis, axis_of
from tests.graph.slices import check_claims, claims_of, equations, only
from tests.helpers import few


class Draw:
    """What a random equation is made of."""

    def __init__(self, data):
        self.data = data

    def of(self, items):
        return self.data.draw(st.sampled_from(list(items)))

    def shape(self, rank):
        return tuple(self.of((2, 3)) for _ in range(rank))

    def rank(self, least=1):
        return self.of(range(least, 4))

    def order(self, rank):
        return tuple(self.data.draw(st.permutations(range(rank))))

    def some(self, rank):
        return tuple(d for d in range(rank) if self.of((True, False)))


def floats(shape, dtype="float32", seed=0):
    """No two alike in a row, in no order."""
    values = np.random.default_rng(seed).permutation(int(np.prod(shape)))
    return jnp.asarray((values - values.size / 3) / 4, dtype).reshape(shape)


def integers(shape, most, seed=1):
    return jnp.asarray(np.random.default_rng(seed).integers(0, most, shape), "int32")


def elementwise(d):
    shape = d.shape(d.rank())
    fn = d.of(
        (jnp.tanh, lambda x: x * x + 2, lambda x: x > 0, lambda x: x.astype("int32"), lambda x: x**3, jnp.isfinite)
    )
    return fn, floats(shape)


def casts(d):
    fn = d.of(
        (
            lambda x: lax.reduce_precision(x, 5, 7),
            lax.stop_gradient,
            lambda x: x.astype("bfloat16"),
            lax.optimization_barrier,
        )
    )
    return fn, floats(d.shape(d.rank()))


def dot(d):
    batch, left, right, summed = (d.shape(d.of((0, 1, 1, 2))) for _ in range(4))
    order, other = (d.order(len(batch) + len(free) + len(summed)) for free in (left, right))
    x = floats((*batch, *left, *summed)).transpose(order)
    y = floats((*batch, *right, *summed), seed=1).transpose(other)
    b, s = range(len(batch)), range(len(summed))
    of_x, of_y = [order.index(i) for i in range(len(order))], [other.index(i) for i in range(len(other))]
    contracted = [of_x[len(batch) + len(left) + i] for i in s], [of_y[len(batch) + len(right) + i] for i in s]
    numbers = contracted, ([of_x[i] for i in b], [of_y[i] for i in b])
    return lambda x, y: lax.dot_general(x, y, numbers), x, y


def conv(d):
    groups, batches = d.of(((1, 1), (1, 1), (2, 1), (1, 2)))
    fn = functools.partial(
        lax.conv_general_dilated,
        window_strides=(d.of((1, 2)),),
        padding=d.of(("SAME", "VALID")),
        dimension_numbers=d.of((("NCH", "OIH", "NCH"), ("NHC", "HIO", "NHC"))),
        feature_group_count=groups,
        batch_group_count=batches,
    )
    last = fn.keywords["dimension_numbers"][0] == "NHC"
    x, w = floats((4, 4, 5)), floats((4, 4 // groups, d.of((1, 3))), seed=1)
    return fn, x.transpose((0, 2, 1)) if last else x, w.transpose((2, 1, 0)) if last else w


def reduction(d):
    rank = d.rank()
    axes = d.some(rank)
    if d.of((0, 0, 1)):
        axis, fn = d.of(range(rank)), d.of((jnp.argmax, jnp.argmin))
        return lambda x: fn(x, axis), floats(d.shape(rank))
    if d.of((0, 0, 1)):
        fn = d.of((jnp.all, jnp.any))
        return lambda x: fn(x, axes), floats(d.shape(rank)) > 0
    if d.of((0, 1)):
        return lambda x: d.of((jnp.sum, jnp.max, jnp.min))(x, axes), floats(d.shape(rank))
    fn = d.of((jnp.prod, lambda x, axes: lax.reduce(x, np.float32(0), lambda a, b: a + b * a, axes)))
    return lambda x: fn(x, axes), floats(d.shape(rank))


def broadcast(d):
    shape = d.shape(d.rank())
    kept = d.some(len(shape))
    inner = tuple(d.of((1, shape[i])) for i in kept)
    return lambda x: lax.broadcast_in_dim(x, shape, kept), floats(inner)


def reshape(d):
    before, after = d.of(
        [((2, 3, 4), s) for s in ((6, 4), (2, 12), (24,), (4, 6), (1, 2, 3, 4), (2, 1, 12), (3, 8), (2, 3, 2, 2))]
        + [((4, 3), (2, 2, 3)), ((4, 3), (6, 2)), ((12,), (4, 3)), ((1, 4), (4,)), ((6, 4), (4, 6)), ((1,), ())]
    )
    before, after = d.of(((before, after), (after, before)))
    return lambda x: lax.reshape(x, after), floats(before)


def moved(d):
    shape = d.shape(d.rank())
    order = d.order(len(shape))
    some, at = d.some(len(shape)), d.of(range(len(shape)))
    return d.of(
        (
            lambda x: lax.transpose(x, order),
            lambda x: lax.rev(x, some),
            lambda x: jnp.squeeze(x[None], 0),
            lambda x: jnp.stack([x, 2 * x], at),
            lambda x: jnp.unstack(x, axis=at),
            lambda x: jnp.tile(x, tuple(2 if i == at else 1 for i in range(x.ndim))),
            lambda x: jnp.concatenate([x, x], at),
            lambda x: jnp.split(x, [1], at),
            lambda x: lax.pad(x, np.float32(1), [(1, 0, 0) if i == at else (0, 0, 0) for i in range(x.ndim)]),
        )
    ), floats(shape)


def sliced(d):
    shape = d.shape(d.rank())
    at = d.of(range(len(shape)))
    start, stride, size = d.of((0, 1)), d.of((1, 2)), d.of((1, shape[at]))
    return (
        d.of(
            (
                lambda x, i: lax.slice_in_dim(x, start, None, stride, at),
                lambda x, i: lax.dynamic_slice_in_dim(x, i, size, at),
                lambda x, i: lax.dynamic_update_slice_in_dim(x, lax.slice_in_dim(x, 0, size, 1, at) * 2, i, at),
            )
        ),
        floats(shape),
        jnp.asarray(d.of((0, 1, 7)), "int32"),
    )


def gather(d):
    x = floats((3, 4, 2))
    mode, at = d.of(("clip", "fill", "promise_in_bounds")), d.of(range(3))
    if d.of((0, 1)):
        shape = list(x.shape)
        shape[at] = 5
        indices = integers(shape, x.shape[at] + (0 if mode == "promise_in_bounds" else 2))
        return lambda x, i: jnp.take_along_axis(x, i, at, mode=mode), x, indices
    indices = integers(d.shape(d.of((0, 1, 2))), x.shape[at])
    return lambda x, i: x.at[(*[slice(None)] * at, i)].get(mode=mode), x, indices


def gather_windows(d):
    """Windows of some extent: of an operand along which it is batched, and of one of which whole rows are taken."""
    batched = lax.GatherDimensionNumbers((2, 3), (), (2,), operand_batching_dims=(0,), start_indices_batching_dims=(1,))
    taken = d.of((2, 6))
    return d.of(
        (
            lambda x: lax.gather(x, integers((3, 2, 1), 5), lax.GatherDimensionNumbers((2, 3), (0,), (0,)), (1, 4, 6)),
            lambda x: lax.gather(x, integers((2, 3, 1), 5), batched, (1, 4, taken)),
        )
    ), floats((3, 4, 6))


def scatter(d):
    x = floats((4, 3, 2))
    kind = d.of(("add", "set", "max", "multiply"))
    if d.of((0, 1)):  # both have a dimension
        rows = integers((4, 5), 3)
        return (
            lambda x, u: jax.vmap(lambda x, i, u: getattr(x.at[i], kind)(u))(x, rows, u),
            x,
            floats((4, 5, 2), seed=2),
        )
    at = d.of((0, 1))
    indices = jnp.asarray(d.of(([0, 2], [1, 0], [2, 7])))  # no two alike: their order is not said
    if at == 0:
        return lambda x, u: getattr(x.at[indices], kind)(u), x, floats((2, 3, 2), seed=2)
    return lambda x, u: getattr(x.at[:, indices], kind)(u), x, floats((4, 2, 2), seed=2)


def cumulative(d):
    shape = d.shape(d.rank())
    fn = d.of((lax.cumsum, lax.cummax, lax.cumprod, lax.cumlogsumexp))
    axis, reverse = d.of(range(len(shape))), d.of((False, True))
    return lambda x: fn(x, axis, reverse=reverse), floats(shape)


def sort(d):
    shape = d.shape(d.rank())
    axis = d.of(range(len(shape)))
    return (
        d.of(
            (
                lambda x, i: lax.sort(x, axis),
                lambda x, i: lax.sort([i, x], axis, num_keys=2),
                lambda x, i: lax.top_k(x, 2),
            )
        ),
        floats(shape),
        integers(shape, 2),
    )


def iota(d):
    shape = d.shape(d.rank())
    dtype, dimension = d.of(("int32", "float32", "bfloat16", "uint8")), d.of(range(len(shape)))
    return (lambda: lax.broadcasted_iota(dtype, shape, dimension),)


def select(d):
    shape = d.shape(d.rank())
    scalar = d.of((True, False))
    which = jnp.asarray(True) if scalar else floats(shape) > 0
    low = np.float32(-1) if scalar else floats(shape, seed=3) - 2
    return (
        d.of(
            (
                lambda w, x, y, low: lax.select_n(w, x, y),
                lambda w, x, y, low: lax.clamp(low, x, np.float32(1) if scalar else low + 3),
            )
        ),
        which,
        floats(shape),
        floats(shape, seed=2),
        low,
    )


def window(d):
    size, stride = d.of((1, 2)), d.of((1, 2))
    padding, (init, fn) = d.of(("SAME", "VALID")), d.of(((0.0, lax.add), (-np.inf, lax.max)))

    def pool(x):
        return lax.reduce_window(x, init, fn, (1, size, 1), (1, stride, 1), padding)

    return d.of((pool, lambda x: jax.vjp(pool, x)[1](pool(x)), lambda x: jax.jvp(pool, (x,), (x,)))), floats((3, 4, 2))


def linear_algebra(d):
    x = floats((2, 3, 3, 3))
    square = x @ x.swapaxes(-1, -2) + 20 * jnp.eye(3)
    return d.of(
        (lax.linalg.cholesky, lax.linalg.lu, jnp.fft.fft, jnp.fft.rfft2, lambda x: lax.linalg.triangular_solve(x, x))
    ), square


def called(d):
    inner = d.of((elementwise, reduction, reshape, moved, select, dot))
    fn, *args = inner(d)
    return d.of((jax.jit, jax.checkpoint))(lambda *xs: fn(*xs)), *args


CLASSES = {
    elementwise: (6, 10),
    casts: (6, 6),
    dot: (5, 12),
    conv: (4, 6),
    reduction: (12, 10),
    broadcast: (9, 10),
    reshape: (12, 8),
    moved: (12, 12),
    sliced: (8, 8),
    gather: (4, 8),
    gather_windows: (5, 8),
    scatter: (5, 8),
    cumulative: (9, 5),
    sort: (9, 4),
    iota: (7, 8),
    select: (5, 6),
    window: (6, 6),
    linear_algebra: (3, 4),
    called: (10, 10),
}
"""Random equations of each class: how many are drawn, and the least number of claims that is made of all of them."""


FEW = (elementwise, dot, reduction, reshape, called)


@pytest.mark.parametrize("make", few(CLASSES, FEW), ids=lambda make: make.__name__)
def test_what_is_claimed_holds(make):
    examples, least = CLASSES[make]
    count = 0

    @settings(max_examples=examples)
    @given(st.data())
    def check(data):
        nonlocal count
        count += check_claims(*make(Draw(data)))

    check()
    assert count >= least


def refused(fn, *args):
    """Nothing is claimed of the last equation of a function."""
    return claims_of(equations(fn, *args)[-1][0]) == []


X, CUBE = floats((6, 4)), floats((2, 6, 4))


@pytest.mark.parametrize(
    ("fn", "args", "axes"),
    [
        (lambda x, y: x + y, (X, X), [((0, 0), (0,)), ((1, 1), (1,))]),
        (lambda x: jnp.exp(x) * 0 + 1, (1.0,), []),
        (jnp.matmul, (X, X.T), [((0, None), (0,)), ((1, 0), ("add",)), ((None, 1), (1,))]),
        (lambda x: jnp.max(x, 0), (X,), [((0,), ("max",)), ((1,), (0,))]),
        (lambda x: jnp.all(x, 0), (X > 0,), [((1,), (0,))]),
        (lambda x: lax.argmax(x, 0, "int32"), (X,), [((1,), (0,))]),
        (lambda x: lax.reshape(x, (12, 4)), (CUBE,), [((0,), (0,)), ((2,), (1,))]),
        (lambda x: lax.reshape(x, (3, 2, 4)), (X,), [((0,), (0,)), ((1,), (2,))]),
        (lambda x: lax.cumsum(x, 0, reverse=True), (X,), [((1,), (1,))]),
        (lambda x: lax.dynamic_slice(x, (1, 0), (3, 4)), (X,), [((1, None, None), (1,))]),
        (lambda w, x: lax.select_n(w, x, x), (True, X), [((None, 0, 0), (0,)), ((None, 1, 1), (1,))]),
        (jax.jit(lambda x: jnp.sin(x) + 1), (X,), [((0,), (0,)), ((1,), (1,))]),
        (lambda x: lax.scan(lambda c, r: (c + r, c), x[0], x), (X,), [((0, 1), (0, 1))]),
        (jax.random.normal, (jax.random.key(0), (4,)), []),
    ],
)
def test_which_axes_are_claimed(fn, args, axes):
    arrays = [a for a in args if not isinstance(a, tuple)]
    eqn = equations(lambda *xs: fn(*xs, *args[len(arrays) :]), *arrays)[-1][0]
    assert claims_of(eqn) == [Axis(*axis) for axis in axes]


def test_what_is_not_known_is_not_apart():
    assert refused(lambda x: lax.while_loop(lambda x: x.sum() < 9, lambda x: x + 1, x), X)
    assert refused(lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), X)
    assert refused(lambda x: io_callback(lambda x: x, X, x), X)
    assert refused(lambda k: jax.random.bits(k, (8,)), jax.random.key(0))
    assert refused(lambda x: lax.linalg.eigh(x), X[:4])
    assert refused(lambda x: lax.fori_loop(0, 3, lambda i, x: x + i, x), X)  # its counter is on no axis
    other = jax.custom_vjp(jnp.sin)
    other.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g,))
    assert refused(other, X)


def test_an_axis_that_contradicts_what_is_known_is_none():
    product, _ = only(lax.dot, X, X.T)
    assert axis_of(product, [None, None], [None]) is None
    assert axis_of(product, [0, 0], [None]) is None
    assert axis_of(product, [0, None], [1]) is None
    assert axis_of(product, [0, None], ["add"]) is None
    assert axis_of(product, [1, None], ["max"]) is None
    assert axis_of(product, [None, 0], ["add"]) == Axis((1, 0), ("add",))


def test_a_dimension_that_is_spread_over_devices_is_not_apart():
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,))
    placed = jax.NamedSharding(jax.sharding.AbstractMesh((2,), ("rows",), axis_types=(AxisType.Auto,)), jax.P("rows"))
    eqn, _ = only(lambda x: lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P("rows"))), X)
    eqn = eqn.replace(params={**eqn.params, "sharding": placed})
    assert claims_of(eqn) == [Axis((1,), (1,))]


def test_extents_inside_a_call_count():
    """Of 12 rows any number of units can be made, of the 3 inside it cannot."""
    refused_inside = jax.jit(lambda x: lax.reshape(jnp.sin(lax.reshape(x, (3, 4))), (12,)))
    assert refused(refused_inside, floats((12,)))
    merged = jax.jit(lambda x: lax.reshape(jnp.sin(lax.reshape(x, (12, 4))), (2, 6, 4)))
    assert claims_of(only(merged, CUBE)[0]) == [Axis((0,), (0,)), Axis((2,), (2,))]
