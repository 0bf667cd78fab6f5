"""Small JAX functions of the shapes that networks have.

In: nothing. Out: ``GRAPHS``: name to (loss, shapes of its arguments). The first argument is differentiated.

They are as small as real functions get: an integer program must be solved for each. So softmax and its like are one
equation (``jax.nn``'s custom derivatives), there are no biases, and normalisations are left out.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Graph = tuple[Callable[..., jax.Array], tuple[Any, ...]]
Weights = Sequence[jax.Array]

ROWS = 512


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _squares(x: jax.Array) -> jax.Array:
    return jnp.sum(x * x)


def chain(*widths: int, rows: int = ROWS) -> Graph:
    """Layers tanh(x w) of given widths, the first one that of the input."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        for layer in w:
            x = jnp.tanh(x @ layer)
        return _squares(x)

    shapes = [_f32(a, b) for a, b in itertools.pairwise(widths)]
    return loss, (shapes, _f32(rows, widths[0]))


def linear_chain(*widths: int) -> Graph:
    """Products only, but for the loss."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        for layer in w:
            x = x @ layer
        return _squares(x)

    shapes = [_f32(a, b) for a, b in itertools.pairwise(widths)]
    return loss, (shapes, _f32(ROWS, widths[0]))


def wavy_chain(layers: int, width: int, steps: int) -> Graph:
    """Element-wise steps between products: much to keep, little to compute."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        for layer in w:
            x = x @ layer
            for _ in range(steps):
                x = jnp.sin(x)
        return _squares(x)

    return loss, ([_f32(width, width)] * layers, _f32(ROWS, width))


def diamond(width: int, left: int, right: int) -> Graph:
    """Two branches of unequal length that are multiplied in the end."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        a = b = jnp.tanh(x @ w[0])
        for layer in w[1 : 1 + left]:
            a = jnp.tanh(a @ layer)
        for layer in w[1 + left :]:
            b = jnp.sin(b @ layer)
        return _squares(a * b)

    return loss, ([_f32(width, width)] * (1 + left + right), _f32(ROWS, width))


def diamonds(width: int, count: int) -> Graph:
    """Diamonds in a row."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        for k in range(count):
            x = jnp.tanh(x @ w[2 * k]) * jnp.sin(x @ w[2 * k + 1])
        return _squares(x)

    return loss, ([_f32(width, width)] * (2 * count), _f32(ROWS, width))


def unet(*widths: int) -> Graph:
    """Down and up through given widths, with a skip connection at each; the last is the bottom."""
    levels = len(widths) - 1

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        skips = []
        for k in range(levels):
            skips.append(x)
            x = jnp.tanh(x @ w[k])
        for k in range(levels):
            x = jnp.tanh(x @ w[levels + k]) * skips.pop()
        return _squares(x)

    down = [_f32(a, b) for a, b in itertools.pairwise(widths)]
    return loss, (down + [_f32(s.shape[1], s.shape[0]) for s in reversed(down)], _f32(ROWS, widths[0]))


def conv_unet(channels: int) -> Graph:
    """One level of a U-Net in two dimensions, joined along channels."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        skip = jnp.tanh(_conv(x, w[0]))
        x = jnp.tanh(_conv(skip, w[1], 2))
        x = jnp.tanh(_conv(x, w[2]))
        x = jax.image.resize(x, (*skip.shape[:3], x.shape[3]), "nearest")
        x = jnp.tanh(_conv(jnp.concatenate([x, skip], -1), w[3]))
        return _squares(x)

    c = channels
    shapes = [_f32(3, 3, c, c), _f32(3, 3, c, 2 * c), _f32(3, 3, 2 * c, 2 * c), _f32(3, 3, 3 * c, c)]
    return loss, (shapes, _f32(4, 16, 16, c))


def _conv(x: jax.Array, w: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def convolutions(*channels: int) -> Graph:
    """A chain of convolutions, each second one with stride 2."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        for k, layer in enumerate(w):
            x = jax.nn.relu(_conv(x, layer, 1 + k % 2))
        return _squares(x)

    shapes = [_f32(3, 3, a, b) for a, b in itertools.pairwise(channels)]
    return loss, (shapes, _f32(4, 16, 16, channels[0]))


def residual(width: int, blocks: int, inner: int) -> Graph:
    """Blocks x + tanh(x a) b with an inner width: bottlenecks, or the feed-forward halves of transformers."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        for k in range(blocks):
            x = x + jnp.tanh(x @ w[2 * k]) @ w[2 * k + 1]
        return _squares(x)

    return loss, ([_f32(width, inner), _f32(inner, width)] * blocks, _f32(ROWS, width))


def gated(width: int, inner: int, blocks: int) -> Graph:
    """Gated feed-forward blocks: x + (tanh(x a) * x b) c."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        for k in range(blocks):
            a, b, c = w[3 * k : 3 * k + 3]
            x = x + (jnp.tanh(x @ a) * (x @ b)) @ c
        return _squares(x)

    return loss, ([_f32(width, inner), _f32(width, inner), _f32(inner, width)] * blocks, _f32(ROWS, width))


def attention(length: int, width: int) -> Graph:
    """One head of attention on sequences, with its residual connection: the first half of a transformer's layer."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        q, k, v = x @ w[0], x @ w[1], x @ w[2]
        scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k))
        x = x + jnp.einsum("bqk,bkd->bqd", scores, v) @ w[3]
        return _squares(x)

    return loss, ([_f32(width, width)] * 4, _f32(4, length, width))


def dense(width: int, layers: int) -> Graph:
    """Each layer reads what all layers before it made."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        made = [x]
        for layer in w:
            made.append(jnp.tanh(jnp.concatenate(made, -1) @ layer))
        return _squares(made[-1])

    return loss, ([_f32(width * (k + 1), width) for k in range(layers)], _f32(ROWS, width))


def recurrent(width: int, steps: int) -> Graph:
    """An unrolled recurrent network that reads its input in every step."""

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        state = jnp.tanh(x @ w[0])
        for _ in range(steps):
            state = jnp.tanh(state @ w[1] + x)
        return _squares(state)

    return loss, ([_f32(width, width)] * 2, _f32(ROWS, width))


def wild(seed: int, size: int) -> Graph:
    """A random graph of products, element-wise steps and sums; every value is used."""
    dice = random.Random(seed)
    width = 32
    steps: list[tuple[str, int, int]] = []
    for made in range(1, size + 1):
        near = dice.randrange(max(0, made - 3), made)
        steps.append((dice.choice(("product", "product", "tanh", "times", "plus")), made - 1, near))

    def loss(w: Weights, x: jax.Array) -> jax.Array:
        values = [x]
        for k, (what, a, b) in enumerate(steps):
            values.append(_wild_step(what, values[a], values[b], w[k]))
        return _squares(values[-1])

    return loss, ([_f32(width, width)] * size, _f32(ROWS, width))


def _wild_step(what: str, a: jax.Array, b: jax.Array, w: jax.Array) -> jax.Array:
    if what == "product":
        return b @ w * a if a is not b else b @ w
    if what == "tanh":
        return jnp.tanh(a)
    return a * jnp.sin(b) if what == "times" else a + jnp.cos(b)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "chain-even": lambda: chain(*[64] * 8),
    "chain-short": lambda: chain(*[64] * 5),
    "chain-narrowing": lambda: chain(256, 192, 128, 96, 64, 32, 16),
    "chain-widening": lambda: chain(16, 32, 64, 96, 128, 192, 256),
    "chain-hourglass": lambda: chain(256, 128, 32, 8, 32, 128, 256),
    "chain-spindle": lambda: chain(8, 32, 128, 256, 128, 32, 8),
    "chain-zigzag": lambda: chain(32, 256, 32, 256, 32, 256, 32),
    "chain-tall": lambda: chain(*[64] * 7, rows=64),
    "linear-even": lambda: linear_chain(*[64] * 11),
    "linear-narrowing": lambda: linear_chain(256, 224, 192, 160, 128, 96, 64, 48, 32, 16),
    "linear-hourglass": lambda: linear_chain(256, 192, 128, 64, 16, 64, 128, 192, 256),
    "linear-zigzag": lambda: linear_chain(16, 128, 32, 192, 16, 256, 64, 128, 16),
    "wavy-one": lambda: wavy_chain(6, 64, 1),
    "wavy-two": lambda: wavy_chain(4, 64, 2),
    "wavy-three": lambda: wavy_chain(3, 64, 3),
    "diamond-even": lambda: diamond(64, 2, 2),
    "diamond-uneven": lambda: diamond(64, 4, 1),
    "diamond-long": lambda: diamond(32, 3, 2),
    "diamonds-two": lambda: diamonds(64, 2),
    "diamonds-wide": lambda: diamonds(256, 2),
    "unet-two": lambda: unet(128, 64, 32),
    "unet-narrow": lambda: unet(256, 64, 16),
    "unet-flat": lambda: unet(64, 64, 64),
    "unet-convolutions": lambda: conv_unet(8),
    "convolutions-three": lambda: convolutions(8, 8, 16, 16),
    "convolutions-five": lambda: convolutions(4, 8, 8, 16, 16, 32),
    "residual-three": lambda: residual(64, 3, 64),
    "bottleneck-two": lambda: residual(128, 2, 32),
    "bottleneck-three": lambda: residual(128, 3, 16),
    "feed-forward-two": lambda: residual(64, 2, 256),
    "feed-forward-three": lambda: residual(32, 3, 128),
    "gated-one": lambda: gated(64, 128, 1),
    "gated-two": lambda: gated(64, 128, 2),
    "attention-short": lambda: attention(32, 64),
    "attention-long": lambda: attention(256, 32),
    "dense-four": lambda: dense(32, 4),
    "dense-five": lambda: dense(32, 5),
    "recurrent-four": lambda: recurrent(64, 4),
    "wild-1": lambda: wild(1, 6),
    "wild-2": lambda: wild(2, 6),
    "wild-3": lambda: wild(3, 6),
    "wild-4": lambda: wild(4, 6),
    "wild-5": lambda: wild(5, 7),
    "wild-6": lambda: wild(6, 7),
    "wild-7": lambda: wild(7, 7),
    "wild-8": lambda: wild(8, 7),
}
"""Made on demand: name to a function that makes it."""

HELD_OUT: dict[str, Callable[[], Graph]] = {
    "chain-saw": lambda: chain(128, 32, 128, 64, 128, 32),
    "linear-spindle": lambda: linear_chain(16, 64, 128, 256, 192, 96, 48, 24),
    "diamond-wide": lambda: diamond(128, 1, 3),
    "unet-steep": lambda: unet(256, 128, 32),
    "residual-uneven": lambda: residual(96, 2, 160),
    "gated-narrow": lambda: gated(128, 32, 2),
    "attention-middle": lambda: attention(96, 48),
    "dense-three": lambda: dense(64, 3),
    "recurrent-three": lambda: recurrent(96, 3),
    "convolutions-four": lambda: convolutions(16, 8, 16, 8, 16),
    "wild-9": lambda: wild(9, 6),
    "wild-10": lambda: wild(10, 6),
    "wild-11": lambda: wild(11, 7),
    "wild-12": lambda: wild(12, 7),
    "wild-13": lambda: wild(13, 7),
    "wild-14": lambda: wild(14, 6),
    "wild-15": lambda: wild(15, 7),
    "wild-16": lambda: wild(16, 6),
}
"""More of them, of other sizes and seeds: nothing in the planner was chosen by these."""
