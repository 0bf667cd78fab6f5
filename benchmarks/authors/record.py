"""What the models of this folder share: their record, shapes, and a few layers.

In: shapes and arrays. Out: ``Made``; arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

SIZES = ("tiny", "small", "full")
Loss = Callable[..., jax.Array]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Config = TypeVar("Config")


class Made(NamedTuple):
    """A model at one size.

    Attributes:
        plain: ``plain(params, batch)``, a float32 scalar, without rematerialisation.
        policies: the same loss under each policy of the authors, by its name there.
        arguments: ``(params, batch)`` as ``jax.ShapeDtypeStruct``; parameters are float32. Integers of the batch are
            below 4 in any valid one, whatever they index.
    """

    plain: Loss
    policies: dict[str, Loss]
    arguments: tuple[Any, Any]


def identity(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Leave a function as it is."""
    return fn


def made(loss_with: Callable[[Wrap], Loss], wraps: Mapping[str, Wrap], arguments: tuple[Any, Any]) -> Made:
    """A record of a model whose policies differ in how one function is wrapped."""
    return Made(loss_with(identity), {name: loss_with(wrap) for name, wrap in wraps.items()}, arguments)


def pick(sizes: Mapping[str, Config], size: str) -> Config:
    """The configuration of a size.

    Raises:
        ValueError: there is no such size.
    """
    if size not in sizes:
        raise ValueError(f"size={size!r}: say one of {', '.join(sizes)}.")
    return sizes[size]


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """The shape of a float32 array."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    """The shape of an int32 array."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def stacked(layers: int, params: Any, axis: int = 0) -> Any:
    """Shapes of the parameters of equal layers, stacked along an axis."""
    return jax.tree.map(lambda x: f32(*x.shape[:axis], layers, *x.shape[axis:]), params)


def norm_params(width: int) -> dict[str, Any]:
    """Scale and bias."""
    return {"scale": f32(width), "bias": f32(width)}


def layer_norm(p: dict[str, Any], x: jax.Array, epsilon: float = 1e-5) -> jax.Array:
    """Normalise the last axis, in float32."""
    h = x.astype(jnp.float32)
    mean = jnp.mean(h, -1, keepdims=True)
    variance = jnp.mean(jnp.square(h - mean), -1, keepdims=True)
    h = (h - mean) * jax.lax.rsqrt(variance + epsilon)
    return (h * p["scale"] + p["bias"]).astype(x.dtype)


def rms_norm(scale: jax.Array, x: jax.Array, epsilon: float = 1e-5) -> jax.Array:
    """Divide the last axis by its root mean square, in float32."""
    h = x.astype(jnp.float32)
    h = h * jax.lax.rsqrt(jnp.mean(jnp.square(h), -1, keepdims=True) + epsilon)
    return h.astype(x.dtype) * scale.astype(x.dtype)


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Softmax attention with a causal mask, [B, S, H, d] each."""
    length = q.shape[1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q / math.sqrt(q.shape[-1]), k).astype(jnp.float32)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(v.dtype), v)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean negative log-likelihood in float32, logits [..., K] and labels [...]."""
    logits = logits.astype(jnp.float32)
    right = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - right)
