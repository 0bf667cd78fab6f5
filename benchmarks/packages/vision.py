"""Image models of packages: Equimo (Equinox), FlaxDiff (Linen)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.packages.record import Problem, cross_entropy, integers, load, normal, problem


@problem("equimo", "vision transformer with registers, rotary positions")
def equimo_vit() -> Problem:
    """6 layers of width 96 on 8 images of 32 x 32."""
    eqx, models = load("equinox"), load("equimo.vision.models")
    model = models.VisionTransformer(32, 3, 96, 4, 4, [6], num_classes=10, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        images, labels, keys = batch
        model = eqx.combine(params, static)
        return cross_entropy(jax.vmap(lambda x, key: model(x, key=key))(images, keys), labels)

    return Problem(loss, params, (normal(8, 3, 32, 32), integers(10, 8), jax.random.split(jax.random.key(1), 8)))


@problem("flaxdiff", "diffusion U-Net with attention to text")
def flaxdiff_unet() -> Problem:
    """Three scales on 4 images of 32 x 32."""
    unet = load("flaxdiff.models.simple_unet")
    attention = {"heads": 2, "dtype": jnp.float32, "flash_attention": False}
    model = unet.Unet(
        emb_features=64, feature_depths=[16, 32, 64], attention_configs=[None, attention, attention], num_res_blocks=2
    )
    images, noise, text = normal(4, 32, 32, 3), normal(4, 32, 32, 3, seed=1), normal(4, 8, 64, seed=2)
    params = model.init(jax.random.key(0), images, jnp.ones(4), text)

    def loss(params: Any, batch: Any) -> jax.Array:
        images, noise, text = batch
        return jnp.mean((model.apply(params, images + noise, jnp.linspace(0.1, 0.9, 4), text) - noise) ** 2)

    return Problem(loss, params, (images, noise, text))
