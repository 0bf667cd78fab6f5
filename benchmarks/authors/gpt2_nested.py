"""GPT-2 as Levanter trains it on Haliax: a fold over stacked blocks, with block-level or nested checkpoints.

In: a size. Out: ``Made``.

What is as there: carries and inputs of a block are named; ``simple`` puts a checkpoint around each block;
``nested`` also splits the stack into about sqrt(n) groups and scans over checkpointed scans, so that only the carries
between groups are kept; ``save_all`` saves whatever is not named for recomputation. Fused query, key and value;
GELU by its tanh form; tied embeddings. Compute is in bfloat16 at full size (GPT-2 XL), in float32 at the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from benchmarks.authors.record import (
    Loss,
    Made,
    Wrap,
    causal_attention,
    f32,
    i32,
    identity,
    layer_norm,
    norm_params,
    pick,
    stacked,
)

CARRY, INPUT = "scan(layers)__carry", "scan(layers)__input"
Scan = Callable[[Callable[..., Any], jax.Array, Any], jax.Array]


@dataclass(frozen=True)
class Config:
    """Sizes."""

    layers: int
    width: int
    heads: int
    sequence: int
    vocab: int
    batch: int
    dtype: DTypeLike = jnp.float32


CONFIGS = {
    "tiny": Config(6, 32, 2, 16, 64, 2),
    "small": Config(16, 384, 6, 256, 2048, 4),
    "full": Config(48, 1600, 25, 1024, 50_257, 4, jnp.bfloat16),
}


def _dense(p: dict[str, Any], x: jax.Array) -> jax.Array:
    return x @ p["kernel"].astype(x.dtype) + p["bias"].astype(x.dtype)


def _block(x: jax.Array, p: dict[str, Any], heads: int) -> jax.Array:
    x, p = checkpoint_name(x, CARRY), jax.tree.map(lambda leaf: checkpoint_name(leaf, INPUT), p)
    b, s, d = x.shape
    qkv = _dense(p["qkv"], layer_norm(p["norm1"], x)).reshape(b, s, 3, heads, d // heads)
    x = x + _dense(p["out"], causal_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]).reshape(b, s, d))
    return x + _dense(p["down"], jax.nn.gelu(_dense(p["up"], layer_norm(p["norm2"], x)), approximate=True))


def _flat_scan(block: Callable[..., Any], x: jax.Array, params: Any) -> jax.Array:
    return lax.scan(lambda x, p: (block(x, p), None), x, params)[0]


def nearest_divisor(length: int) -> int:
    """The divisor nearest to the square root; the smaller of two.

    >>> nearest_divisor(48), nearest_divisor(12)
    (6, 3)
    """
    divisors = [d for d in range(1, length + 1) if length % d == 0]
    return min(divisors, key=lambda d: abs(d - math.sqrt(length)))


def _nested_scan(block: Callable[..., Any], x: jax.Array, params: Any) -> jax.Array:
    length = jax.tree.leaves(params)[0].shape[0]
    outer = nearest_divisor(length)
    groups = jax.tree.map(lambda p: p.reshape(outer, length // outer, *p.shape[1:]), params)
    return _flat_scan(jax.checkpoint(partial(_flat_scan, block)), x, groups)


def make(size: str) -> Made:
    """The model at a size."""
    c = pick(CONFIGS, size)

    def dense(n_in: int, n_out: int) -> dict[str, Any]:
        return {"kernel": f32(n_in, n_out), "bias": f32(n_out)}

    block = {
        "norm1": norm_params(c.width),
        "qkv": dense(c.width, 3 * c.width),
        "out": dense(c.width, c.width),
        "norm2": norm_params(c.width),
        "up": dense(c.width, 4 * c.width),
        "down": dense(4 * c.width, c.width),
    }
    params = {
        "tokens": f32(c.vocab, c.width),
        "positions": f32(c.sequence, c.width),
        "blocks": stacked(c.layers, block),
        "norm": norm_params(c.width),
    }

    def loss_with(wrap: Wrap, scan: Scan) -> Loss:
        def loss(params: Any, batch: Any) -> jax.Array:
            x = params["tokens"].astype(c.dtype)[batch["tokens"]] + params["positions"].astype(c.dtype)
            x = scan(wrap(partial(_block, heads=c.heads)), x, params["blocks"])
            logits = (layer_norm(params["norm"], x) @ params["tokens"].astype(c.dtype).T).astype(jnp.float32)
            targets = jax.nn.one_hot(jnp.roll(batch["tokens"], -1, 1), c.vocab, dtype=logits.dtype)
            losses = jax.nn.logsumexp(logits, -1) - jnp.sum(logits * targets, -1)
            counted = jnp.arange(c.sequence) < c.sequence - 1  # the last token has no next one
            return jnp.sum(losses * counted) / (c.batch * (c.sequence - 1))

        return loss

    policies = jax.checkpoint_policies
    simple = partial(jax.checkpoint, prevent_cse=False)
    carries = partial(simple, policy=policies.save_only_these_names(CARRY))
    everything = partial(simple, policy=policies.save_anything_except_these_names())
    losses = {
        "simple": loss_with(simple, _flat_scan),
        "nested": loss_with(carries, _nested_scan),
        "save_all": loss_with(everything, _flat_scan),
    }
    return Made(loss_with(identity, _flat_scan), losses, (params, {"tokens": i32(c.batch, c.sequence)}))
