"""Where blocks begin and end: on the residual stream, right behind products, as a person would put them."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan import _compat
from remat_plan.graph.records import MATRIX_PRIMITIVES
from remat_plan.graph.uses import free_ops
from remat_plan.planning.cuts import find_cuts
from tests.helpers import few, traced
from tests.strategies import chain_judge, found

S = jax.ShapeDtypeStruct
ROWS, WIDTH, HIDDEN, LAYERS = 128, 16, 64, 4
IMAGES = ("NHWC", "HWIO", "NHWC")


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def rms_norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def sequential(x, p, norm, cast):
    q, k, v = (cast(norm(x)) @ cast(p[n]) for n in "qkv")
    x = x + cast(jax.nn.softmax((q @ k.swapaxes(1, 2)).astype(jnp.float32))) @ v @ cast(p["o"])
    return x + jax.nn.gelu(cast(norm(x)) @ cast(p["up"])) @ cast(p["down"])


def parallel(x, p, norm, cast):
    y = cast(norm(x))
    q, k, v = (y @ cast(p[n]) for n in "qkv")
    attended = cast(jax.nn.softmax((q @ k.swapaxes(1, 2)).astype(jnp.float32))) @ v @ cast(p["o"])
    return x + attended + jax.nn.gelu(y @ cast(p["up"])) @ cast(p["down"])


def transformer(block, norm, cast, wrap=lambda f: f):
    step = wrap(lambda x, p: block(x, p, norm, cast))

    def loss(params, x):
        for p in params["blocks"]:
            x = step(x, p)
        return jnp.mean((cast(norm(x)) @ cast(params["head"])).astype(jnp.float32) ** 2)

    return loss


def transformer_args():
    square, up, down = S((WIDTH, WIDTH), "float32"), S((WIDTH, HIDDEN), "float32"), S((HIDDEN, WIDTH), "float32")
    block = dict.fromkeys("qkvo", square) | {"up": up, "down": down}
    return {"blocks": [block] * LAYERS, "head": square}, S((2, ROWS, WIDTH), "float32")


def half(x):
    return x.astype(jnp.bfloat16)


def same(x):
    return x


@pytest.mark.parametrize("cast", few([same, half], [half]))
@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
@pytest.mark.parametrize("block", [sequential, parallel])
def test_blocks_begin_on_the_residual_stream(block, norm, cast):
    args = transformer_args()
    judge = chain_judge(transformer(block, norm, cast), *args)
    graph = judge.program.graph
    (schedule,) = found(judge, "each_block").schedules
    assert [s.checkpointed for s in schedule] == [True] * LAYERS + [False]
    free = free_ops(graph)
    for segment in schedule[1:]:
        alive = [v for v in graph.values if v.producer >= 0 and v.producer not in free and v.producer < segment.start]
        later = {v for op in graph.ops[segment.start :] for v in op.reads}
        assert [v.aval.shape for v in alive if v.index in later] == [(2, ROWS, WIDTH)]


def products(fn, args):
    """How many products and convolutions the gradient step of a function runs, inside segments as well as outside."""

    def count(jaxpr):
        inside = sum(count(inner) for eqn in jaxpr.eqns for inner in _compat.sub_jaxprs(eqn.params))
        return inside + sum(eqn.primitive.name in MATRIX_PRIMITIVES for eqn in jaxpr.eqns)

    return count(_compat.open_jaxpr(jax.make_jaxpr(jax.value_and_grad(fn))(*args))[0])


@pytest.mark.parametrize("cast", [pytest.param(same, marks=pytest.mark.slow), half])
def test_each_block_runs_what_a_hand_runs(cast):
    args = transformer_args()
    plain, hand = (transformer(sequential, layer_norm, cast, wrap) for wrap in (same, jax.checkpoint))
    ours = rp.plan(plain, *args, strategy="each_block", verify=False).apply(plain)
    assert products(ours, args) == products(hand, args)


def group_norm(x):
    groups = x.reshape(*x.shape[:3], 4, -1)
    mean, square = groups.mean((1, 2, 4)), (groups * groups).mean((1, 2, 4))
    mean, scale = (
        jnp.repeat(a, x.shape[-1] // 4, axis=-1)[:, None, None] for a in (mean, jax.lax.rsqrt(square - mean**2 + 1e-6))
    )
    return (x - mean) * scale


def same_size(x, w):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=IMAGES)


@pytest.mark.parametrize("activation", few([jax.nn.swish, jax.nn.relu, jax.nn.leaky_relu], [jax.nn.swish]))
def test_no_convolution_runs_again_behind_group_norm(activation):
    """What a block needs of its convolution is its input, so a border behind the bias spares it."""

    def loss(params, x):
        for w, b in params:
            x = same_size(activation(group_norm(x)), w) + b
        return jnp.mean(jnp.tanh(x) ** 2)

    params = [(S((3, 3, 8, 8), "float32"), S((8,), "float32"))] * LAYERS
    args = params, S((4, 8, 8, 8), "float32")
    ours = rp.plan(loss, *args, strategy="each_block", verify=False)
    assert sum(s.checkpointed for s in ours.schedule) >= LAYERS - 1
    assert products(ours.apply(loss), args) == products(loss, args)


def test_a_normalisation_is_cut_where_one_value_crosses():
    def loss(w, x):
        for _ in range(LAYERS):
            x = jnp.tanh(group_norm(same_size(x, w)))
        return jnp.sum(x**2)

    graph = traced(loss, S((3, 3, 8, 8), "float32"), S((4, 8, 8, 8), "float32")).graph
    for frontier in find_cuts(graph).frontiers[1:-1]:
        assert len(frontier) == 1


@pytest.mark.parametrize(("activation", "makes"), [(jnp.tanh, "tanh"), (jax.nn.gelu, "dot_general")])
def test_an_activation_is_in_the_block_whose_product_it_spares(activation, makes):
    """Tanh reads its own output in its backward pass, gelu its input."""

    def loss(w, x):
        for _ in range(3 * LAYERS):
            x = activation(x @ w)
        return jnp.sum(x)

    graph = traced(loss, S((WIDTH, WIDTH), "float32"), S((ROWS, WIDTH), "float32")).graph
    cuts = find_cuts(graph)
    kinds = {graph.ops[graph.values[v].producer].primitive for f in cuts.frontiers[2:-1] for v in f}
    assert kinds == {makes}


def test_a_cut_behind_the_last_layer_is_for_the_search():
    """A hand has checkpoints around all layers of a network without a head."""

    def loss(w, x, wrap=same):
        for _ in range(5):
            x = wrap(lambda x: x + jax.nn.gelu(x @ w[0]) @ w[1])(x)
        return jnp.mean(x**2)

    args = (S((WIDTH, HIDDEN), "float32"), S((HIDDEN, WIDTH), "float32")), S((ROWS, WIDTH), "float32")
    graph = traced(loss, *args).graph
    last = max(op.index for op in graph.ops if op.primitive == "dot_general")
    assert any(last < p < len(graph.ops) for p in find_cuts(graph).positions)


def attention(x, p, key):
    """Attention with dropout on what it adds."""
    y = layer_norm(x)
    q, k, v = (y @ p[n] for n in "qkv")
    added = jax.nn.softmax(q @ k.swapaxes(1, 2)) @ v @ p["o"]
    return x + jnp.where(jax.random.bernoulli(key, 0.9, added.shape), added / 0.9, 0.0)


def test_masks_of_dropout_are_no_reason_to_end_a_block_before_them():
    """Behind the last product of a block nothing is read but a mask, which hangs on its key alone."""

    def loss(params, x, key):
        for p, own in zip(params, jax.random.split(key, LAYERS), strict=True):
            x = attention(x, p, own)
        return jnp.mean(x**2)

    square = S((WIDTH, WIDTH), "float32")
    key = jax.eval_shape(lambda: jax.random.key(0))
    graph = traced(loss, [dict.fromkeys("qkvo", square)] * LAYERS, S((2, ROWS, WIDTH), "float32"), key).graph
    cuts = find_cuts(graph)
    activations = [[v for v in f if graph.values[v].text == f"float32[2,{ROWS},{WIDTH}]"] for f in cuts.frontiers]
    makers = [[graph.ops[graph.values[v].producer].primitive for v in values] for values in activations]
    assert [names for names in makers if names][: LAYERS - 1] == [["add"]] * (LAYERS - 1)
