"""Random programs out of layers that keep an axis apart, or do not: in which segments of them are split.

In: a seed. Out: ``Stack``: a loss of (parameters, x), and arguments. Every layer takes and returns [batch, length, width].
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

BATCH, LENGTH, WIDTH, HEADS, WORDS = 4, 6, 8, 2, 10


@dataclass(frozen=True)
class Stack:
    """A loss of ``args``, and the names of its layers."""

    loss: Callable[..., Any]
    args: tuple[Any, Any]
    words: tuple[str, ...]


def attention(p, x):
    """Causal; over batch, heads and queries."""
    q, k, v = (t.reshape(*x.shape[:2], HEADS, -1) for t in jnp.split(x @ p["three"], 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(WIDTH // HEADS)
    seen = jnp.arange(x.shape[1])[:, None] >= jnp.arange(x.shape[1])
    made = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(seen, scores, -1e9)), v)
    return x + made.reshape(x.shape) @ p["square"]


def mlp(p, x):
    """Over tokens, and over hidden units."""
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


def swiglu(p, x):
    return x + (jax.nn.silu(x @ p["up"]) * (x @ p["gate"])) @ p["down"]


def merged_mlp(p, x):
    return x + (jax.nn.relu(x.reshape(-1, WIDTH) @ p["up"]) @ p["down"]).reshape(x.shape)


def rms_norm(p, x):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * p["scale"]


def group_norm(p, x):
    """Over batch only."""
    groups = x.reshape(*x.shape[:2], 2, -1)
    mean = groups.mean((1, 3), keepdims=True)
    return ((groups - mean) * lax.rsqrt(groups.var((1, 3), keepdims=True) + 1e-5)).reshape(x.shape) * p["scale"]


def batch_norm(p, x):
    """Over width only."""
    return (x - x.mean((0, 1))) * lax.rsqrt(x.var((0, 1)) + 1e-5) * p["scale"]


def dropout(p, x):
    """The bits are those of the whole."""
    kept = jax.random.bernoulli(jax.random.key(3), 0.7, (*x.shape[:2], p["up"].shape[1]))
    return x + jnp.where(kept, jnp.tanh(x @ p["up"]) / 0.7, 0) @ p["down"]


def recurrence(p, x):
    """Over batch; a scan along the sequence."""

    def step(c, row):
        c = jnp.tanh(row + c @ p["square"])
        return c, c

    return jnp.moveaxis(lax.scan(step, jnp.zeros_like(x[:, 0]), jnp.moveaxis(x, 1, 0))[1], 0, 1)


def mixture(p, x):
    """Over tokens: the best two of some products."""
    shares, chosen = lax.top_k(jax.nn.softmax(x @ p["router"]), 2)
    made = jnp.einsum("bsd,edf->bsef", x, p["experts"])
    return x + jnp.sum(jnp.take_along_axis(made, chosen[..., None], 2) * shares[..., None], 2)


def convolution(p, x):
    """Over batch, and over its output channels."""
    made = lax.conv_general_dilated(x, p["kernel"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    return x + jax.nn.silu(made)


def embedding(p, x):
    """Rows gathered by what x is largest in."""
    return x + p["table"][jnp.argmax(x, -1)]


def running(p, x):
    """Sums along the sequence."""
    return jnp.tanh(jnp.cumsum(x, 1) * p["scale"])


def squared(p, x):
    """A value read whole and in slices: every token sees all."""
    rows = x.reshape(-1, WIDTH)
    return x + jnp.tanh(rows @ rows.T @ rows / WIDTH).reshape(x.shape)


LAYERS = {
    f.__name__: f
    for f in (
        *(attention, mlp, swiglu, merged_mlp, rms_norm, group_norm, batch_norm, dropout, recurrence, mixture),
        *(convolution, embedding, running, squared),
    )
}


def arguments(seed=0):
    """Parameters of all layers, and states: in 64 bits where JAX has them."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) * 0.4)

    params = {
        "three": normal(WIDTH, 3 * WIDTH),
        "square": normal(WIDTH, WIDTH),
        "up": normal(WIDTH, 3 * WIDTH),
        "gate": normal(WIDTH, 3 * WIDTH),
        "down": normal(3 * WIDTH, WIDTH),
        "scale": 1 + normal(WIDTH),
        "router": normal(WIDTH, 4),
        "experts": normal(4, WIDTH, WIDTH),
        "kernel": normal(3, WIDTH, WIDTH),
        "table": normal(WIDTH, WIDTH),
    }
    return params, normal(BATCH, LENGTH, WIDTH)


def loss_of(names):
    """The loss of some layers one after another."""

    def loss(p, x):
        for name in names:
            x = LAYERS[name](p, x)
        return jnp.mean(jnp.square(x - 1))

    return loss


def draw_stack(seed):
    """The stack of a seed."""
    draw = random.Random(seed)
    names = tuple(draw.choice(list(LAYERS)) for _ in range(draw.randint(1, 3)))
    return Stack(loss_of(names), arguments(seed), names)
