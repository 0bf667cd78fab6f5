"""Mixture-of-experts decoders as MaxText trains them: sorted tokens and grouped products, in scanned layers.

In: a size. Out: ``Made``: ``make`` has experts in every layer (Mixtral); ``make_interleaved`` chooses between a dense
and an expert MLP with ``lax.cond`` in the scan.

What is as there: the two best experts of each token, their weights by a softmax over these two; token copies sorted
by expert, three ``lax.ragged_dot``, the copies put back and summed; products named as those of a dense MLP. Attention
and the rest are those of ``llama``; so are the policies, of which those that differ here are kept. Parameters are
stacked along axis 0. Compute is in bfloat16 at full size (Mixtral 8x7B, one sequence), in float32 at the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from benchmarks.authors import llama
from benchmarks.authors.record import Loss, Made, Wrap, f32, made, pick, rms_norm, stacked

POLICIES = ("minimal", "save_dot_except_mlp", "save_qkv_proj", "save_out_proj", "full")
CHOSEN = 2


@dataclass(frozen=True)
class Config(llama.Config):
    """Sizes; ``mlp`` is the width of one expert."""

    experts: int = 8


CONFIGS = {
    "tiny": Config(4, 32, 4, 2, 8, 48, 64, 2, 16, experts=4),
    "small": Config(8, 384, 6, 2, 64, 768, 2048, 2, 256, experts=4),
    "full": Config(32, 4096, 32, 8, 128, 14336, 32_000, 1, 2048, jnp.bfloat16, 1e6),
}


def _experts(p: dict[str, Any], x: jax.Array) -> jax.Array:
    """The two best experts of each token, [B, S, D] -> [B, S, D]."""
    tokens = x.reshape(-1, x.shape[-1])
    logits = (tokens @ p["gate"].astype(x.dtype)).astype(jnp.float32)
    best, chosen = lax.top_k(logits, CHOSEN)
    weights = jax.nn.softmax(best, -1).astype(x.dtype)
    flat = chosen.reshape(-1)
    order = jnp.argsort(flat)
    sizes = jnp.bincount(flat, length=p["gate"].shape[-1]).astype(jnp.int32)
    copies = tokens[order // CHOSEN]
    gate = checkpoint_name(lax.ragged_dot(copies, p["wi_0"].astype(x.dtype), sizes), "mlpwi_0")
    up = checkpoint_name(lax.ragged_dot(copies, p["wi_1"].astype(x.dtype), sizes), "mlpwi_1")
    out = checkpoint_name(lax.ragged_dot(jax.nn.silu(gate) * up, p["wo"].astype(x.dtype), sizes), "mlpwo")
    back = out[jnp.argsort(order)].reshape(-1, CHOSEN, x.shape[-1])
    return jnp.einsum("tkd,tk->td", back, weights).reshape(x.shape)


def _dense(p: dict[str, Any], x: jax.Array) -> jax.Array:
    gate = checkpoint_name(x @ p["wi_0"].astype(x.dtype), "mlpwi_0")
    up = checkpoint_name(x @ p["wi_1"].astype(x.dtype), "mlpwi_1")
    return checkpoint_name((jax.nn.silu(gate) * up) @ p["wo"].astype(x.dtype), "mlpwo")


def _always_experts(p: dict[str, Any], x: jax.Array, number: jax.Array) -> jax.Array:
    return _experts(p["experts"], x)


def _every_other(p: dict[str, Any], x: jax.Array, number: jax.Array) -> jax.Array:
    return lax.cond(number % 2 == 0, lambda x: _dense(p["dense"], x), lambda x: _experts(p["experts"], x), x)


def _mlp_params(c: Config) -> dict[str, Any]:
    n = c.experts
    return {
        "experts": {
            "gate": f32(c.width, n),
            "wi_0": f32(n, c.width, c.mlp),
            "wi_1": f32(n, c.width, c.mlp),
            "wo": f32(n, c.mlp, c.width),
        },
        "dense": {"wi_0": f32(c.width, c.mlp), "wi_1": f32(c.width, c.mlp), "wo": f32(c.mlp, c.width)},
    }


def _make(size: str, mlp: Callable[..., jax.Array], kinds: tuple[str, ...]) -> Made:
    c = pick(CONFIGS, size)
    layer = {
        "before_attention": f32(c.width),
        "attention": llama.attention_params(c),
        "before_mlp": f32(c.width),
        "mlp": {kind: _mlp_params(c)[kind] for kind in kinds},
    }
    params = {
        "embedding": f32(c.vocab, c.width),
        "layers": stacked(c.layers, layer),
        "norm": f32(c.width),
        "head": f32(c.width, c.vocab),
    }

    def loss_with(wrap: Wrap) -> Loss:
        def loss(params: Any, batch: Any) -> jax.Array:
            @wrap
            def step(x: jax.Array, p: dict[str, Any], number: jax.Array) -> jax.Array:
                x = checkpoint_name(x, "decoder_layer_input")
                x = x + llama.attention(p["attention"], rms_norm(p["before_attention"], x), batch, c)
                return x + mlp(p["mlp"], rms_norm(p["before_mlp"], x), number)

            def layers(x: jax.Array) -> jax.Array:
                xs = params["layers"], jnp.arange(c.layers)
                return lax.scan(lambda x, pn: (step(x, *pn), None), x, xs)[0]

            return llama.language_model(params, batch, layers, c.dtype)

        return loss

    wraps = {name: wrap for name, wrap in llama.policies().items() if name in POLICIES}
    return made(loss_with, wraps, (params, llama.batch_shapes(c)))


def make(size: str) -> Made:
    """Experts in every layer."""
    return _make(size, _always_experts, ("experts",))


def make_interleaved(size: str) -> Made:
    """A dense MLP in even layers, experts in odd ones; every layer has the parameters of both."""
    return _make(size, _every_other, ("dense", "experts"))
