"""Models with one large place: published loss heads, and what people write of them by hand; layers and whole models.

In: sizes. Out: `Model`s in bare JAX, and the losses of a head in slices by hand: a ``lax.scan`` over slices of the
rows, each of them in ``jax.checkpoint``; or one that makes the gradients meanwhile, summed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models import Model, Wrap, gpt2, small, unet, vit

HEADS = {
    "marin": (32768, 2560, 128256),
    "inductor": (32768, 768, 50257),
    "cce": (8192, 2304, 256000),
    "trl": (16384, 2048, 248320),
}
"""Rows, width and classes of the heads: Marin's, of the test of PyTorch's Inductor, of Cut Cross-Entropy (Gemma 2 2B),
of TRL."""


def head(rows: int, width: int, classes: int) -> Model:
    """A loss head: inputs bfloat16[rows, width], a matrix bfloat16[width, classes], logits in float32."""
    low = jnp.bfloat16
    params = {
        "x": jax.ShapeDtypeStruct((rows, width), low),
        "w": jax.ShapeDtypeStruct((width, classes), low),
    }

    def loss(p: Any, labels: Any) -> jax.Array:
        return _summed(p["w"], p["x"], labels) / rows

    labels = jax.ShapeDtypeStruct((rows,), jnp.int32)
    return Model("head", loss, params, labels, lambda wrap: wrap(loss), classes)


def _summed(w: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
    """The sum of the cross entropies of some rows."""
    logits = (x @ w).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.sum(jax.nn.logsumexp(logits, axis=1) - picked)


def again(slices: int) -> Callable[..., jax.Array]:
    """The loss of a head as a scan over checkpointed slices."""

    def loss(p: Any, labels: jax.Array) -> jax.Array:
        rows = labels.shape[0]

        @jax.checkpoint
        def step(total: jax.Array, xs: Any) -> tuple[jax.Array, None]:
            return total + _summed(p["w"], *xs), None

        sliced = p["x"].reshape(slices, rows // slices, -1), labels.reshape(slices, -1)
        return lax.scan(step, jnp.float32(0), sliced)[0] / rows

    return loss


def with_gradients(slices: int) -> Callable[..., jax.Array]:
    """The same with the gradients made in the forward pass, summed in float32."""

    def both(p: Any, labels: jax.Array) -> tuple[jax.Array, Any]:
        rows = labels.shape[0]

        def step(carry: Any, xs: Any) -> tuple[Any, jax.Array]:
            value, (by_w, by_x) = jax.value_and_grad(_summed, (0, 1))(p["w"], *xs)
            return (carry[0] + value, carry[1] + by_w.astype(jnp.float32)), by_x

        sliced = p["x"].reshape(slices, rows // slices, -1), labels.reshape(slices, -1)
        begin = jnp.float32(0), jnp.zeros(p["w"].shape, jnp.float32)
        (value, by_w), by_x = lax.scan(step, begin, sliced)
        low = p["w"].dtype
        return value / rows, {"w": (by_w / rows).astype(low), "x": (by_x.reshape(p["x"].shape) / rows).astype(low)}

    @jax.custom_vjp
    def loss(p: Any, labels: jax.Array) -> jax.Array:
        return _summed(p["w"], p["x"], labels) / labels.shape[0]

    def backward(kept: Any, cotangent: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(lambda g: (g * cotangent).astype(g.dtype), kept), None

    loss.defvjp(both, backward)
    return loss


def swiglu(rows: int, width: int, hidden: int) -> Model:
    """A gated layer in bfloat16, with the sum of squares of its outputs as its loss."""
    low = jnp.bfloat16
    shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width), "x": (rows, width)}
    params = {name: jax.ShapeDtypeStruct(shape, low) for name, shape in shapes.items()}

    def loss(p: Any, scale: Any) -> jax.Array:
        y = (jax.nn.silu(p["x"] @ p["gate"]) * (p["x"] @ p["up"])) @ p["down"]
        return jnp.sum(y.astype(jnp.float32) * scale)

    scale = jax.ShapeDtypeStruct((), jnp.float32)
    return Model("swiglu", loss, params, scale, lambda wrap: wrap(loss), 1)


def gemma(
    *,
    layers: int = 18,
    width: int = 2048,
    hidden: int = 16384,
    heads: int = 8,
    size: int = 256,
    vocab: int = 256000,
    sequence: int = 2048,
    batch: int = 2,
) -> Model:
    """Gemma 2B: scanned layers, one head of keys and values, gated gelu, the embedding tied to the head; all bfloat16.

    ``hidden`` is the width of the gated layer, ``size`` that of a head of attention. Norms, softmax and the loss are
    computed in float32. The block is one layer.
    """
    low = jnp.bfloat16
    shapes = {
        "q": (width, heads * size),
        "kv": (width, 2 * size),
        "out": (heads * size, width),
        "gate": (width, hidden),
        "up": (width, hidden),
        "down": (hidden, width),
        "norm1": (width,),
        "norm2": (width,),
    }
    params = {
        "token_embed": jax.ShapeDtypeStruct((vocab, width), low),
        "layers": {name: jax.ShapeDtypeStruct((layers, *shape), low) for name, shape in shapes.items()},
        "norm": jax.ShapeDtypeStruct((width,), low),
    }

    def normed(scale: jax.Array, x: jax.Array) -> jax.Array:
        h = x.astype(jnp.float32)
        h = h * lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + 1e-6)
        return (h * (1 + scale.astype(jnp.float32))).astype(x.dtype)

    def rotated(x: jax.Array) -> jax.Array:
        """Rotary positions, [B, S, ..., size]."""
        half = x.shape[-1] // 2
        angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
        angles = angles.reshape(x.shape[1], *[1] * (x.ndim - 3), half)
        a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)

    def attention(p: Any, x: jax.Array) -> jax.Array:
        b, s, _ = x.shape
        q = rotated((x @ p["q"]).reshape(b, s, heads, size))
        k, v = jnp.split(x @ p["kv"], 2, axis=-1)  # [B, S, size]
        scores = jnp.einsum("bqhd,bkd->bhqk", q, rotated(k)).astype(jnp.float32) / math.sqrt(size)
        scores = jnp.where(jnp.tril(jnp.ones((s, s), dtype=bool)), scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        return jnp.einsum("bhqk,bkd->bqhd", weights, v).reshape(b, s, heads * size) @ p["out"]

    def loss_with(wrap: Wrap) -> Callable[..., jax.Array]:
        @wrap
        def layer(p: Any, x: jax.Array) -> jax.Array:
            x = x + attention(p, normed(p["norm1"], x))
            h = normed(p["norm2"], x)
            return x + (jax.nn.gelu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

        def loss(p: Any, batch: Any) -> jax.Array:
            x = p["token_embed"][batch["tokens"]] * low(math.sqrt(width))
            x, _ = lax.scan(lambda x, p: (layer(p, x), None), x, p["layers"])
            x = normed(p["norm"], x).reshape(-1, width)
            labels = batch["targets"].reshape(-1)
            return _summed(p["token_embed"].T, x, labels) / labels.size

        return loss

    tokens = jax.ShapeDtypeStruct((batch, sequence), jnp.int32)
    data = {"tokens": tokens, "targets": tokens}
    return Model("gemma", loss_with(lambda f: f), params, data, loss_with, vocab)


MODELS: dict[str, Callable[[], Model]] = {
    "unet_gn": lambda: unet(groups=32),
    "vit_4": lambda: vit(layers=4),
    "swiglu": lambda: swiglu(32768, 2048, 4096),
    "gpt2_4": lambda: gpt2(layers=4, vocab=50257, sequence=1024, batch=4),
    "gemma": gemma,
    "gpt2_long": lambda: gpt2(layers=4, vocab=8192, sequence=16384, batch=1, dtype="bfloat16"),
    "vit": vit,
    "unet": unet,
}
"""Whole models, and one layer: GroupNorm in 32 groups; 4 layers of ViT-S; a gated layer; 4 layers of GPT-2 with 50257
classes; Gemma 2B; 16384 tokens without a kernel for attention; all of ViT-S; BatchNorm."""

QUICK: dict[str, Callable[[], Model]] = {"marin": lambda: head(512, 32, 2048), "gpt2_4": lambda: small("gpt2")}
"""Tiny ones, to test the table."""


def maker(name: str, quick: bool = False) -> Callable[[], Model]:
    """What makes a head or a model."""
    if quick:
        return QUICK[name]
    return MODELS[name] if name in MODELS else lambda: head(*HEADS[name])
