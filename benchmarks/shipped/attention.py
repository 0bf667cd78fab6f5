"""Attention as MaxText runs it on a TPU: JAX's splash kernels; elsewhere softmax over all scores.

In: queries, keys and values of one device. Out: what attention makes of them, with the name ``context`` on what its
backward pass reads of it.

XLA does not know what a kernel computes, and takes its word where it says so. JAX's splash kernels say nothing: here
they tell the FLOPs of the blocks that they run, so that FLOPs and seconds count them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

BLOCK = 512
"""Queries and keys of a block, as in MaxText's defaults."""

_BLOCKS = splash.BlockSizes(
    *(BLOCK, BLOCK, BLOCK),
    block_q_dkv=BLOCK,
    block_kv_dkv=BLOCK,
    block_kv_dkv_compute=BLOCK,
    block_q_dq=BLOCK,
    block_kv_dq=BLOCK,
)

_PRODUCTS = {"_fwd_": 2, "_dq_": 3, "_dkv_": 4}
"""Matrix products of each pair of blocks, by what the names of the kernels contain."""


class _Telling:
    """``jax.experimental.pallas`` as the splash kernels see it, their calls with an estimate of what they cost."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pallas, name)

    def pallas_call(self, kernel: Callable[..., Any], *, grid_spec: Any, name: str, **rest: Any) -> Callable[..., Any]:
        products = next(count for part, count in _PRODUCTS.items() if part in name)

        def call(*operands: Any) -> Any:
            query = operands[3]  # behind three arrays that say which blocks are to be run
            heads, rows, columns = grid_spec.grid
            share = (rows + 1) / (2 * rows) if rows == columns else 1.0  # a causal mask leaves the upper blocks out
            pairs = int(heads * rows * columns * share * BLOCK**2)
            size_bytes = sum(math.prod(x.shape) * x.dtype.itemsize for x in operands if x is not None)
            cost = pallas.CostEstimate(
                flops=2 * products * query.shape[-1] * pairs, transcendentals=pairs, bytes_accessed=size_bytes
            )
            made = pallas.pallas_call(kernel, grid_spec=grid_spec, name=name, cost_estimate=cost, **rest)
            return made(*operands)

        return call


@functools.cache
def _kernel(heads: int, sequence: int, window: int) -> Callable[..., Any]:
    """The kernels for so many heads and positions; ``window`` positions are seen, or with 0 all before."""
    module: Any = splash
    module.pl = _Telling()
    size = sequence, sequence
    mask = masks.LocalMask(size, (window - 1, 0), 0) if window else masks.CausalMask(size)
    with jax.ensure_compile_time_eval():
        return splash.make_splash_mha(
            masks.MultiHeadMask([mask] * heads),
            block_sizes=_BLOCKS,
            head_shards=1,
            q_seq_shards=1,
            residual_checkpoint_name="context",
        )


def attention(q: jax.Array, k: jax.Array, v: jax.Array, window: int, kernels: bool) -> jax.Array:
    """Causal attention of grouped queries, [B, S, H, d] each, with fewer heads of keys and values."""
    if kernels:
        by_head = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
        return jnp.swapaxes(jax.vmap(_kernel(q.shape[2], q.shape[1], window))(*by_head), 1, 2)
    b, s, heads, d = q.shape
    grouped = q.reshape(b, s, k.shape[2], heads // k.shape[2], d)
    scores = jnp.einsum("bskgd,btkd->bkgst", grouped, k).astype(jnp.float32)
    apart = jnp.arange(s)[:, None] - jnp.arange(s)
    seen = (apart >= 0) & (apart < window) if window else apart >= 0
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1).astype(v.dtype)
    return checkpoint_name(jnp.einsum("bkgst,btkd->bskgd", weights, v).reshape(q.shape), "context")
