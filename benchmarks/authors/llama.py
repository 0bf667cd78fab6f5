"""A Llama decoder as MaxText trains it: scanned layers, named products, policies by name.

In: a size. Out: ``Made``.

What is as there: the parameters of all layers are stacked along axis 1 and moved to the front before the scan;
grouped-query attention over packed segments, with the exponentials normalised after the product with the values;
rotary positions before the names; SwiGLU; the layer under ``jax.checkpoint`` with ``prevent_cse=False``, and
policies that save named products (``full`` saves none); a cross-entropy with a custom VJP. Compute is in bfloat16 at
full size (Llama 3 8B, one sequence), in float32 at the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from benchmarks.authors.record import Loss, Made, Wrap, f32, i32, made, pick, rms_norm, stacked

QKV = ("query_proj", "value_proj", "key_proj", "qkv_proj")
MINIMAL = (*QKV, "out_proj", "mlpwi_0", "mlpwi_1", "mlpwi", "mlpwo")
NAMES: dict[str, tuple[str, ...]] = {
    "minimal_with_context": (*MINIMAL, "context"),
    "minimal": MINIMAL,
    "save_dot_except_mlpwi": (*QKV, "out_proj", "mlpwo"),
    "save_dot_with_context_except_mlp": (*QKV, "context", "out_proj"),
    "save_dot_except_mlp": (*QKV, "out_proj"),
    "save_qkv_proj": QKV,
    "save_out_proj": ("out_proj",),
    "full": (),
}
SCAN_AXIS = 1


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder, by the names of the papers."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    mlp: int
    vocab: int


@dataclass(frozen=True)
class Config(DecoderSizes):
    """A decoder, what it is given, and how its layers are stacked."""

    batch: int
    sequence: int
    dtype: DTypeLike = jnp.float32
    theta: float = 500_000.0
    scan_axis: int = SCAN_AXIS


CONFIGS = {
    "tiny": Config(4, 32, 4, 2, 8, 64, 64, 2, 16),
    "small": Config(12, 512, 8, 2, 64, 1792, 4096, 2, 256),
    "full": Config(32, 4096, 32, 8, 128, 14336, 128_256, 1, 2048, jnp.bfloat16),
}


def policies() -> dict[str, Wrap]:
    """How a layer is wrapped under each policy."""
    save = jax.checkpoint_policies.save_only_these_names
    return {
        name: partial(jax.checkpoint, prevent_cse=False, policy=save(*names) if names else None)
        for name, names in NAMES.items()
    }


def attention_params(c: Config) -> dict[str, Any]:
    """Shapes of the four projections."""
    return {
        "query": f32(c.width, c.heads, c.head_width),
        "key": f32(c.width, c.kv_heads, c.head_width),
        "value": f32(c.width, c.kv_heads, c.head_width),
        "out": f32(c.heads, c.head_width, c.width),
    }


def rotate(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotary position embedding of [B, S, H, d]; the two halves of d are the two coordinates."""
    half = x.shape[-1] // 2
    timescale = theta ** (2 * jnp.arange(half) / x.shape[-1])
    angle = positions[:, :, None, None] / timescale
    sin, cos = jnp.sin(angle).astype(x.dtype), jnp.cos(angle).astype(x.dtype)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def attention(p: dict[str, Any], x: jax.Array, batch: dict[str, Any], c: Config) -> jax.Array:
    """Grouped-query attention within segments, [B, S, D] -> [B, S, D]."""
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, p[name].astype(x.dtype)) for name in ("query", "key", "value"))
    q = checkpoint_name(rotate(q, batch["positions"], c.theta), "query_proj")
    k = checkpoint_name(rotate(k, batch["positions"], c.theta), "key_proj")
    v = checkpoint_name(v, "value_proj")
    b, s, _, d = q.shape
    q = q.reshape(b, s, c.kv_heads, c.heads // c.kv_heads, d)
    scores = jnp.einsum("bskgd,btkd->bkgst", q, k).astype(jnp.float32)
    segments = batch["segments"]
    allowed = (segments[:, :, None] == segments[:, None, :]) & (jnp.arange(s)[:, None] >= jnp.arange(s))
    scores = jnp.where(allowed[:, None, None], scores, -0.7 * float(jnp.finfo(jnp.float32).max))
    weights = jnp.exp(scores - lax.stop_gradient(jnp.max(scores, -1, keepdims=True)))
    total = jnp.sum(weights, -1)  # [B, kv, g, S]
    mixed = jnp.einsum("bkgst,btkd->bskgd", weights.astype(x.dtype), v)
    mixed = mixed / jnp.moveaxis(total, -1, 1)[..., None].astype(x.dtype)
    mixed = checkpoint_name(mixed.reshape(b, s, c.heads, d), "context")
    return checkpoint_name(jnp.einsum("bshk,hkd->bsd", mixed, p["out"].astype(x.dtype)), "out_proj")


def _mlp(p: dict[str, Any], x: jax.Array) -> jax.Array:
    gate = checkpoint_name(x @ p["wi_0"].astype(x.dtype), "mlpwi_0")
    up = checkpoint_name(x @ p["wi_1"].astype(x.dtype), "mlpwi_1")
    return checkpoint_name((jax.nn.silu(gate) * up) @ p["wo"].astype(x.dtype), "mlpwo")


def _layer(x: jax.Array, p: dict[str, Any], batch: dict[str, Any], c: Config) -> jax.Array:
    x = checkpoint_name(x, "decoder_layer_input")
    x = x + attention(p["attention"], rms_norm(p["before_attention"], x), batch, c)
    return x + _mlp(p["mlp"], rms_norm(p["before_mlp"], x))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _token_losses(logits: jax.Array, targets: jax.Array, z_loss: float) -> jax.Array:
    return _token_losses_forward(logits, targets, z_loss)[0]


def _token_losses_forward(logits: jax.Array, targets: jax.Array, z_loss: float) -> tuple[jax.Array, Any]:
    top = jnp.max(logits, -1, keepdims=True)
    exponentials = jnp.exp(logits - top)
    total = jnp.sum(exponentials, -1, keepdims=True)
    log_z = jnp.log(total) + top
    one_hot = jax.nn.one_hot(targets, logits.shape[-1])
    losses = -jnp.sum(one_hot * (logits - log_z), -1) + z_loss * jnp.square(log_z[..., 0])
    return losses, (one_hot, exponentials, total, log_z)


def _token_losses_backward(z_loss: float, residuals: Any, cotangent: jax.Array) -> tuple[jax.Array, None]:
    one_hot, exponentials, total, log_z = residuals
    return cotangent[..., None] * ((1 + 2 * z_loss * log_z) * exponentials / total - one_hot), None


_token_losses.defvjp(_token_losses_forward, _token_losses_backward)


def next_token_loss(logits: jax.Array, batch: dict[str, Any]) -> jax.Array:
    """Mean loss over the tokens of real segments (padding is segment 0)."""
    losses = _token_losses(logits.astype(jnp.float32), batch["targets"], 0.0)
    real = batch["segments"] != 0
    return jnp.sum(losses * real) / (jnp.sum(real) + 1e-8)


def language_model(params: Any, batch: dict[str, Any], layers: Any, dtype: DTypeLike) -> jax.Array:
    """Embedding, the given layers (x -> x), norm, untied head, loss."""
    x = layers(params["embedding"].astype(dtype)[batch["tokens"]])
    x = rms_norm(params["norm"], x)
    return next_token_loss(x @ params["head"].astype(dtype), batch)


def batch_shapes(c: Any) -> dict[str, Any]:
    """Tokens, targets, positions and segments of a packed batch."""
    return {name: i32(c.batch, c.sequence) for name in ("tokens", "targets", "positions", "segments")}


def parameters(c: Config) -> Any:
    """Shapes of the parameters, those of the layers stacked."""
    layer = {
        "before_attention": f32(c.width),
        "attention": attention_params(c),
        "before_mlp": f32(c.width),
        "mlp": {"wi_0": f32(c.width, c.mlp), "wi_1": f32(c.width, c.mlp), "wo": f32(c.mlp, c.width)},
    }
    return {
        "embedding": f32(c.vocab, c.width),
        "layers": stacked(c.layers, layer, c.scan_axis),
        "norm": f32(c.width),
        "head": f32(c.width, c.vocab),
    }


def make(size: str) -> Made:
    """The model at a size."""
    return make_of(pick(CONFIGS, size))


def make_of(c: Config, further: Mapping[str, Wrap] = MappingProxyType({})) -> Made:
    """The model of a configuration, under the policies above and ``further`` ones."""

    def loss_with(wrap: Wrap) -> Loss:
        def loss(params: Any, batch: Any) -> jax.Array:
            step = wrap(lambda x, p: _layer(x, p, batch, c))

            def layers(x: jax.Array) -> jax.Array:
                first = jax.tree.map(lambda p: jnp.moveaxis(p, c.scan_axis, 0), params["layers"])
                return lax.scan(lambda x, p: (step(x, p), None), x, first)[0]

            return language_model(params, batch, layers, c.dtype)

        return loss

    return made(loss_with, {**policies(), **further}, (parameters(c), batch_shapes(c)))
