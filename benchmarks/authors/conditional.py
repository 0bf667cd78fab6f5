"""Networks whose layers run under ``lax.cond``: stochastic depth, and an early exit.

In: a size. Out: ``Made``.

``make_stochastic_depth``: unrolled residual layers, each skipped at random (Huang et al. 2016). ``layer`` puts the
checkpoint around the layer inside its branch, ``cond`` around the whole conditional. ``make_early_exit``: a second
half of the layers runs only while the first classifier is not sure (Teerapittayanon et al. 2016); ``layer`` puts a
checkpoint around every layer, ``branch`` around the whole branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.authors.record import Loss, Made, Wrap, cross_entropy, f32, i32, identity, layer_norm, norm_params, pick

KEEP = 0.8
SURE = 0.9


@dataclass(frozen=True)
class Config:
    """Sizes."""

    layers: int
    width: int
    hidden: int
    batch: int
    classes: int


CONFIGS = {
    "tiny": Config(4, 16, 32, 64, 10),
    "small": Config(12, 256, 1024, 1024, 100),
    "full": Config(24, 1024, 4096, 16_384, 1000),
}


def _params(c: Config) -> dict[str, Any]:
    layer = {"norm": norm_params(c.width), "up": f32(c.width, c.hidden), "down": f32(c.hidden, c.width)}
    heads = {"kernel": f32(c.width, c.classes), "bias": f32(c.classes)}
    return {"layers": [layer for _ in range(c.layers)], "first_head": heads, "head": heads}


def _batch(c: Config) -> dict[str, Any]:
    return {"inputs": f32(c.batch, c.width), "labels": i32(c.batch), "seed": i32()}


def _layer(p: dict[str, Any], x: jax.Array) -> jax.Array:
    return x + jax.nn.gelu(layer_norm(p["norm"], x) @ p["up"]) @ p["down"]


def _head(p: dict[str, Any], x: jax.Array) -> jax.Array:
    return x @ p["kernel"] + p["bias"]


def make_stochastic_depth(size: str) -> Made:
    """Layers that are skipped at random, deeper ones more often."""
    c = pick(CONFIGS, size)

    def loss_with(wrap: Wrap, wrap_cond: Wrap) -> Loss:
        layer = wrap(_layer)

        @wrap_cond
        def maybe(keep: jax.Array, p: dict[str, Any], x: jax.Array) -> jax.Array:
            return lax.cond(keep, layer, lambda p, x: x, p, x)

        def loss(params: Any, batch: Any) -> jax.Array:
            x = batch["inputs"]
            draws = jax.random.uniform(jax.random.key(batch["seed"]), (c.layers,))
            for i, p in enumerate(params["layers"]):
                x = maybe(draws[i] < 1 - (1 - KEEP) * (i + 1) / c.layers, p, x)
            return cross_entropy(_head(params["head"], x), batch["labels"])

        return loss

    losses = {"layer": loss_with(jax.checkpoint, identity), "cond": loss_with(identity, jax.checkpoint)}
    params = {name: p for name, p in _params(c).items() if name != "first_head"}
    return Made(loss_with(identity, identity), losses, (params, _batch(c)))


def make_early_exit(size: str) -> Made:
    """Half of the layers, then the other half unless the first classifier is sure of the whole batch."""
    c = pick(CONFIGS, size)
    half = c.layers // 2

    def loss_with(wrap: Wrap, wrap_branch: Wrap) -> Loss:
        layer: Callable[..., jax.Array] = wrap(_layer)

        def run(layers: list[Any], x: jax.Array) -> jax.Array:
            for p in layers:
                x = layer(p, x)
            return x

        def loss(params: Any, batch: Any) -> jax.Array:
            x = run(params["layers"][:half], batch["inputs"])
            early = _head(params["first_head"], x)
            sure = jnp.mean(jnp.max(jax.nn.softmax(lax.stop_gradient(early)), -1)) > SURE

            @wrap_branch
            def deeper(layers: list[Any], head: Any, x: jax.Array) -> jax.Array:
                return _head(head, run(layers, x))

            def leave(layers: list[Any], head: Any, x: jax.Array) -> jax.Array:
                return early

            late = lax.cond(sure, leave, deeper, params["layers"][half:], params["head"], x)
            return cross_entropy(late, batch["labels"]) + 0.3 * cross_entropy(early, batch["labels"])

        return loss

    losses = {"layer": loss_with(jax.checkpoint, identity), "branch": loss_with(identity, jax.checkpoint)}
    batch = {name: x for name, x in _batch(c).items() if name != "seed"}
    return Made(loss_with(identity, identity), losses, (_params(c), batch))
