"""Models of images, ``[batch, height, width, channels]``. In: nothing. Out: ``Model``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.architectures.layers import Params, f32, layer_norm, mlp, mlp_params, stack
from benchmarks.models import Model

_NUMBERS = ("NHWC", "HWIO", "NHWC")


def _conv(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    strides: Any = (stride, stride)
    return lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=_NUMBERS, feature_group_count=groups)


def swin(pairs: int = 2, batch: int = 4, size: int = 56, width: int = 96, window: int = 7, heads: int = 3) -> Model:
    """Attention in windows, every second layer's shifted (Liu et al. 2021, arXiv 2103.14030)."""
    count = size // window

    def attend(p: Params, x: jax.Array, shift: int) -> jax.Array:
        h = jnp.roll(layer_norm(x), (-shift, -shift), (1, 2))
        h = h.reshape(batch, count, window, count, window, width).transpose(0, 1, 3, 2, 4, 5)
        h = h.reshape(-1, window**2, width)
        q, k, v = [y.reshape(*h.shape[:2], heads, -1).transpose(0, 2, 1, 3) for y in jnp.split(h @ p["qkv"], 3, -1)]
        h = (jax.nn.softmax(q @ k.swapaxes(-1, -2) / 5) @ v).transpose(0, 2, 1, 3).reshape(h.shape) @ p["o"]
        h = h.reshape(batch, count, count, window, window, width).transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)
        return jnp.roll(h, (shift, shift), (1, 2))

    def layer(pair: Params, x: jax.Array) -> jax.Array:
        for p, shift in zip(pair, (0, window // 2), strict=True):
            x = x + attend(p, x, shift)
            x = x + mlp(p, layer_norm(x))
        return x

    shapes = {"qkv": f32(width, 3 * width), "o": f32(width, width)} | mlp_params(width, 4 * width)
    return stack("swin", layer, [(shapes, shapes)] * pairs, f32(batch, size, size, width))


def mixer(layers: int = 4, batch: int = 16, patches: int = 196, width: int = 384) -> Model:
    """Perceptrons over patches and over channels in turns (Tolstikhin et al. 2021, arXiv 2105.01601)."""

    def layer(p: Params, x: jax.Array) -> jax.Array:
        x = x + mlp(p["patches"], layer_norm(x).swapaxes(1, 2)).swapaxes(1, 2)
        return x + mlp(p["channels"], layer_norm(x))

    params = [{"patches": mlp_params(patches, 256), "channels": mlp_params(width, 4 * width)}] * layers
    return stack("mixer", layer, params, f32(batch, patches, width))


def convnext(layers: int = 4, batch: int = 8, size: int = 28, width: int = 192) -> Model:
    """Depthwise convolutions and perceptrons (Liu et al. 2022, arXiv 2201.03545)."""

    def layer(p: Params, x: jax.Array) -> jax.Array:
        return x + p["scale"] * mlp(p, layer_norm(_conv(x, p["depthwise"], groups=width)))

    shapes = {"depthwise": f32(7, 7, 1, width), "scale": f32(width)} | mlp_params(width, 4 * width)
    return stack("convnext", layer, [shapes] * layers, f32(batch, size, size, width))


def upscaled(layers: int = 4, batch: int = 2, size: int = 64, width: int = 32) -> Model:
    """Pixels moved from channels into twice the height and width (Shi et al. 2016, arXiv 1609.05158), and back."""

    def layer(p: Params, x: jax.Array) -> jax.Array:
        h = _conv(x, p["widen"]).reshape(batch, size, size, 2, 2, width).transpose(0, 1, 3, 2, 4, 5)
        return x + _conv(jax.nn.silu(h.reshape(batch, 2 * size, 2 * size, width)), p["narrow"], stride=2)

    shapes = {"widen": f32(3, 3, width, 4 * width), "narrow": f32(3, 3, width, width)}
    return stack("upscaled", layer, [shapes] * layers, f32(batch, size, size, width))


def vqvae(batch: int = 16, size: int = 32, width: int = 64, codes: int = 512) -> Model:
    """A codebook between convolutions, straight-through gradients (van den Oord et al. 2017, arXiv 1711.00937)."""

    def loss(params: Params, batch: tuple[jax.Array]) -> jax.Array:
        x = h = batch[0]
        for kernel in params["encoder"]:
            h = jax.nn.relu(_conv(h, kernel))
        book = params["codes"]
        far = (h**2).sum(-1, keepdims=True) - 2 * h @ book.T + (book**2).sum(-1)
        nearest = book[far.argmin(-1)]
        committed = ((nearest - lax.stop_gradient(h)) ** 2).mean()
        h = h + lax.stop_gradient(nearest - h)
        for kernel in params["decoder"]:
            h = _conv(jax.nn.relu(h), kernel)
        return ((h - x) ** 2).mean() + committed

    inner = [f32(3, 3, width, width)] * 2
    params = {"encoder": [f32(3, 3, 3, width), *inner], "codes": f32(codes, width)}
    params |= {"decoder": [*inner, f32(3, 3, width, 3)]}
    return Model("vqvae", loss, params, (f32(batch, size, size, 3),), lambda wrap: loss, classes=1)
