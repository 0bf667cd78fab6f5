"""What runs before, in and behind a loop over slices, on programs small enough to say so by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback

from remat_plan.graph.apart import find_apart
from remat_plan.graph.schedule import as_is
from remat_plan.graph.uses import Borders
from tests.helpers import traced
from tests.splittable import LAYERS, arguments
from tests.splitting import largest

X = jnp.ones((12, 6))
W = jnp.ones((6, 30))
LABELS = jnp.arange(12)


class Found:
    """What is found of a whole function by one dimension of its largest value, or of one that a primitive makes."""

    def __init__(self, fn, *args, dimension=0, of=None, **options):
        self.program = traced(fn, *args, **options)
        self.graph = graph = self.program.graph
        borders, n = Borders(graph), len(graph.ops)
        made = [op.outputs[0] for op in graph.ops if op.primitive == of]
        self.value = made[0] if made else largest(self.program)
        self.apart = find_apart(borders, as_is(0, n), self.value, dimension)

    def names(self, where):
        """The primitives there: in the loop, before it, behind it."""
        numbers = [i for i, _ in self.apart.axes] if where == "axes" else getattr(self.apart, where)
        return [self.graph.ops[i].primitive for i in numbers]

    def shapes(self, where):
        """The shapes of values, each with its dimension where there is one."""
        pairs = [v if isinstance(v, tuple) else (v, None) for v in getattr(self.apart, where)]
        shapes = [(self.graph.values[v].aval.shape, d) for v, d in pairs]
        return [shape if d is None else (shape, d) for shape, d in shapes]


def test_rows_of_a_product_and_what_is_made_of_them():
    found = Found(lambda w, x: jnp.sum(jnp.sin(x @ w)) / 3.0, W, X)
    assert found.names("axes") == ["dot_general", "sin", "reduce_sum"]
    assert (found.names("before"), found.names("after")) == ([], ["div"])
    assert (found.shapes("rows"), found.shapes("whole")) == ([((12, 6), 0)], [(6, 30)])
    assert (found.shapes("sums"), found.shapes("stacked")) == ([()], [])
    assert found.apart.units == 12


def test_columns_of_the_same_product():
    found = Found(lambda w, x: jnp.sum(jnp.sin(x @ w)) / 3.0, W, X, dimension=1)
    assert (found.shapes("rows"), found.shapes("whole")) == ([((6, 30), 1)], [(12, 6)])
    assert found.apart.units == 30


def test_a_sum_joins_slices_and_is_read_behind_them():
    found = Found(lambda w, x: jnp.sum(jnp.tanh(jnp.sin(x @ w) @ w.T)), W, X, dimension=1)
    assert found.names("axes") == ["dot_general", "sin", "transpose", "dot_general"]
    assert found.names("after") == ["tanh", "reduce_sum"]
    assert found.shapes("sums") == [(12, 6)]
    assert found.shapes("rows") == [((6, 30), 1)]


def test_what_other_readers_need_leaves_the_loop_stacked():
    found = Found(lambda w, x: jnp.sum(jnp.cumsum(jnp.sin(x @ w), 0)), W, X)
    assert found.names("axes") == ["dot_general", "sin"]
    assert found.names("after") == ["cumsum", "reduce_sum"]
    assert found.shapes("stacked") == [((12, 30), 0)]


def test_the_masked_mean_of_a_head():
    def loss(w, x, labels):
        mask = labels > 3
        rows = -jnp.take_along_axis(jax.nn.log_softmax(x @ w), labels[:, None], -1)[:, 0]
        return jnp.sum(rows * mask) / jnp.sum(mask)

    found = Found(loss, W, X, LABELS)
    assert found.apart.units == 12
    assert set(found.shapes("rows")) == {((12, 6), 0), ((12,), 0)}
    assert (6, 30) in found.shapes("whole")
    assert found.shapes("stacked") == []
    assert set(found.shapes("sums")) == {()}
    assert "div" in found.names("after")
    assert {"dot_general", "exp", "log", "gather"} <= set(found.names("axes"))


def test_maxima_are_not_joined_by_slices():
    found = Found(lambda w, x: jnp.sum(jax.nn.logsumexp(x @ w, -1)), W, X, dimension=1)
    assert found.names("axes")[0] == "dot_general"
    assert "reduce_max" in found.names("after")


def test_a_value_that_is_read_whole_and_in_slices():
    """Of one product the rows are slices, of the other all are read."""
    found = Found(lambda x: jnp.sum(jnp.exp(x @ x.T)), jnp.ones((40, 6)))
    assert found.shapes("rows") == [((40, 6), 0)]
    assert found.names("before") == ["transpose"]
    assert found.shapes("whole") == [(6, 40)]


def test_what_is_read_whole_is_made_before():
    """Keys and values of attention: by queries, what all of them read is outside."""
    found = Found(lambda q, k: jnp.sum(jax.nn.softmax(jnp.sin(q) @ jnp.sin(k).T)), jnp.ones((20, 6)), jnp.ones((20, 6)))
    assert sorted(found.names("before")) == ["sin", "transpose"]
    assert found.names("axes")[:2] == ["sin", "dot_general"]
    same = Found(lambda q: jnp.sum(jax.nn.softmax(jnp.sin(q) @ jnp.sin(q).T)), jnp.ones((20, 6)))
    assert sorted(same.names("before")) == ["sin", "transpose"], "what is read whole is made once, and read in slices"
    assert ((20, 6), 0) in same.shapes("rows")


def test_random_bits_are_drawn_whole():
    params, x = arguments()
    found = Found(lambda p, x: jnp.sum(LAYERS["dropout"](p, x)), params, x, of="tanh")
    assert any("random_bits" in name or "threefry" in name for name in found.names("before"))
    assert not any("random_bits" in name or "threefry" in name for name in found.names("axes"))
    assert {"tanh", "select_n", "dot_general"} <= set(found.names("axes"))


def test_the_statistics_of_a_batch_are_not_in_the_loop():
    params, x = arguments()
    found = Found(lambda p, x: jnp.sum(LAYERS["batch_norm"](p, jnp.tanh(x @ p["up"] @ p["down"]))), params, x)
    assert found.graph.values[found.value].aval.shape == (4, 6, 24)
    assert found.names("axes").count("dot_general") == 2
    assert "rsqrt" in found.names("after")


def test_merged_dimensions_have_as_many_slices_as_the_slowest():
    def loss(p, x):
        return jnp.sum(jnp.sin(LAYERS["merged_mlp"](p, x)))

    params, x = arguments()
    by_token, by_batch = Found(loss, params, x), Found(loss, params, x, of="sin")
    assert (by_token.apart.units, by_batch.apart.units) == (24, 4)
    assert "reshape" in by_token.names("before")
    assert "reshape" in by_token.names("after"), "to fewer, larger parts"
    assert by_batch.names("axes").count("reshape") == 2


@pytest.mark.parametrize(
    "tell",
    [
        lambda y: jax.debug.print("{}", jnp.sum(y)),
        lambda y: jax.debug.callback(lambda _: None, jnp.sum(y)),
        lambda y: io_callback(lambda _: None, None, jnp.sum(y), ordered=True),
    ],
    ids=["print", "debug", "io"],
)
def test_segments_with_effects_are_not_split(tell):
    def loss(w, x):
        y = x @ w
        tell(y)
        return jnp.sum(jnp.sin(y))

    assert Found(loss, W, X).apart is None


@pytest.mark.parametrize(
    "fn",
    [
        lambda w, x: jnp.sum(jnp.cumsum(x @ w, 0)),
        lambda w, x: jnp.sum(jnp.sort(x @ w, 0)),
        lambda w, x: jnp.sum(jnp.flip(x @ w, 0)),
        lambda w, x: jnp.sum(lax.reduce_window(x @ w, -jnp.inf, lax.max, (2, 1), (1, 1), "SAME")),
    ],
    ids=["cumsum", "sort", "flip", "pooling"],
)
def test_a_value_whose_own_equation_mixes_the_axis(fn):
    name = next(op.primitive for op in traced(fn, W, X).graph.ops if op.primitive != "dot_general")
    assert Found(fn, W, X, of=name).apart is None
    assert Found(fn, W, X).names("axes") == ["dot_general"]
