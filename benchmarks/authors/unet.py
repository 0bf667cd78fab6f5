"""The U-Net of Stable Diffusion as Diffusers has it, in Flax: unrolled, with checkpoints per block or per layer.

In: a size. Out: ``Made``.

What is as there: residual blocks with group norm and a time embedding; transformers with self-attention,
cross-attention to a text and a gated MLP, on all levels but the lowest; every residual output is a skip. ``block``
puts ``nn.remat`` around each down, middle and up block; ``layer`` around each residual block and each transformer,
which is what Diffusers does where gradient checkpointing is switched on. Full size is Stable Diffusion 1.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.authors.record import Loss, Made, f32, i32, pick


@dataclass(frozen=True)
class Config:
    """Sizes: channels of each level, residual blocks per level, heads, groups, latent, text."""

    channels: tuple[int, ...]
    layers: int
    heads: int
    groups: int
    latent: int
    text_length: int
    text_width: int
    batch: int


CONFIGS = {
    "tiny": Config((8, 16), 1, 2, 4, 8, 4, 8, 1),
    "small": Config((64, 128, 128), 1, 4, 16, 32, 16, 64, 2),
    "full": Config((320, 640, 1280, 1280), 2, 8, 32, 64, 77, 768, 4),
}


class Residual(nn.Module):
    """Two convolutions with group norm and swish, the time embedding between them."""

    channels: int
    groups: int

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        h = nn.Conv(self.channels, (3, 3), name="conv1")(nn.swish(nn.GroupNorm(self.groups, name="norm1")(x)))
        h = h + nn.Dense(self.channels, name="time")(nn.swish(time))[:, None, None]
        h = nn.Conv(self.channels, (3, 3), name="conv2")(nn.swish(nn.GroupNorm(self.groups, name="norm2")(h)))
        if x.shape[-1] != self.channels:
            x = nn.Conv(self.channels, (1, 1), name="shortcut")(x)
        return x + h


class Attention(nn.Module):
    """Multi-head attention of [B, S, D] to a context [B, T, D']."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array, context: jax.Array) -> jax.Array:
        d = x.shape[-1]
        q, k, v = (
            nn.Dense(d, use_bias=False, name=name)(source).reshape(*source.shape[:2], self.heads, d // self.heads)
            for name, source in (("query", x), ("key", context), ("value", context))
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(d // self.heads)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
        return nn.Dense(d, name="out")(mixed.reshape(x.shape))


class Transformer(nn.Module):
    """One transformer layer over the pixels, between two projections."""

    heads: int
    groups: int

    @nn.compact
    def __call__(self, x: jax.Array, text: jax.Array) -> jax.Array:
        b, h, w, d = x.shape
        y = nn.Conv(d, (1, 1), name="before")(nn.GroupNorm(self.groups, name="norm")(x)).reshape(b, h * w, d)
        z = nn.LayerNorm(name="norm1")(y)
        y = y + Attention(self.heads, name="self")(z, z)
        y = y + Attention(self.heads, name="cross")(nn.LayerNorm(name="norm2")(y), text)
        value, gate = jnp.split(nn.Dense(8 * d, name="up")(nn.LayerNorm(name="norm3")(y)), 2, -1)
        y = y + nn.Dense(d, name="down")(value * nn.gelu(gate))
        return x + nn.Conv(d, (1, 1), name="after")(y.reshape(b, h, w, d))


class Level(nn.Module):
    """One block of the way down, in the middle or up: residual blocks, transformers, and a change of size.

    On the way down every output is returned as a skip; on the way up each residual block takes one.
    """

    config: Config
    channels: int
    attends: bool
    change: str  # "down", "up" or ""
    layers: int
    remat: str

    @nn.compact
    def __call__(
        self, x: jax.Array, time: jax.Array, text: jax.Array, skips: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        c = self.config
        residual, transformer = (nn.remat(m) if self.remat == "layer" else m for m in (Residual, Transformer))
        outputs = []
        for i in range(self.layers):
            if skips:
                x, skips = jnp.concatenate([x, skips[-1]], -1), skips[:-1]
            x = residual(self.channels, c.groups, name=f"residual{i}")(x, time)
            if self.attends:
                x = transformer(c.heads, c.groups, name=f"transformer{i}")(x, text)
            outputs.append(x)
        if self.change == "down":
            x = nn.Conv(self.channels, (3, 3), strides=(2, 2), name="smaller")(x)
            outputs.append(x)
        elif self.change == "up":
            b, h, w, d = x.shape
            x = nn.Conv(d, (3, 3), name="larger")(jax.image.resize(x, (b, 2 * h, 2 * w, d), "nearest"))
        return x, tuple(outputs)


class UNet(nn.Module):
    """Noisy latent, time step and text to the noise; ``remat`` is empty, ``block`` or ``layer``."""

    config: Config
    remat: str = ""

    @nn.compact
    def __call__(self, latent: jax.Array, step: jax.Array, text: jax.Array) -> jax.Array:
        c = self.config
        level = nn.remat(Level) if self.remat == "block" else Level
        half, last = c.channels[0] // 2, len(c.channels) - 1
        angle = step[:, None] * jnp.exp(-math.log(10_000) * jnp.arange(half) / half)
        time = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1)
        time = nn.Dense(4 * c.channels[0], name="time1")(time)
        time = nn.Dense(4 * c.channels[0], name="time2")(nn.swish(time))
        x = nn.Conv(c.channels[0], (3, 3), name="first")(latent)
        skips = (x,)
        for i, n in enumerate(c.channels):
            change = "down" if i < last else ""
            block = level(c, n, i < last, change, c.layers, self.remat, name=f"down{i}")
            x, more = block(x, time, text, ())
            skips += more
        x, _ = level(c, c.channels[-1], True, "", 1, self.remat, name="middle")(x, time, text, ())
        x = Residual(c.channels[-1], c.groups, name="middle_residual")(x, time)
        for i in reversed(range(len(c.channels))):
            taken, skips = skips[-c.layers - 1 :], skips[: -c.layers - 1]
            change = "up" if i > 0 else ""
            block = level(c, c.channels[i], i < last, change, c.layers + 1, self.remat, name=f"up{i}")
            x, _ = block(x, time, text, taken)
        x = nn.swish(nn.GroupNorm(c.groups, name="norm")(x))
        return nn.Conv(latent.shape[-1], (3, 3), name="last")(x)


def make(size: str) -> Made:
    """The model at a size."""
    c = pick(CONFIGS, size)
    shape = (c.batch, c.latent, c.latent, 4)
    text = f32(c.batch, c.text_length, c.text_width)
    batch = {"latent": f32(*shape), "noise": f32(*shape), "step": i32(c.batch), "text": text}
    variables = jax.eval_shape(UNet(c).init, jax.random.key(0), batch["latent"], batch["step"], text)

    def loss_with(remat: str) -> Loss:
        model = UNet(c, remat)

        def loss(params: Any, batch: Any) -> jax.Array:
            found = model.apply({"params": params}, batch["latent"], batch["step"], batch["text"])
            return jnp.mean(jnp.square(jnp.asarray(found) - batch["noise"]))

        return loss

    return Made(loss_with(""), {n: loss_with(n) for n in ("block", "layer")}, (variables["params"], batch))
