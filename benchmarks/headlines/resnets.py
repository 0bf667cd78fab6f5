"""ResNets of any depth with BatchNorm before the convolutions, their stages unrolled or scanned.

In: depths, batch, image. Out: ``Model``.

Source: He et al. 2016, arXiv 1603.05027 (identity mappings), which Chen et al. 2016 and OpenAI's benchmark deepen. The
first block of a stage changes the shape and stands by itself; the others are equal, and are a Python loop or one
``lax.scan``. Running statistics are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.authors.record import norm_params, stacked
from benchmarks.headlines.layers import Params, batch_norm, classifier, conv, conv_params, dense, dense_params, max_pool
from benchmarks.models import Model


@dataclass(frozen=True)
class Shape:
    """What a ResNet is made of.

    Attributes:
        depths: blocks of each stage.
        width: channels of the first stage; twice as many in each later one.
        bottleneck: 1x1, 3x3, 1x1 convolutions to four times the channels, or two of 3x3.
        batch: images.
        size: of an image, in pixels.
        classes: of the labels.
    """

    depths: tuple[int, ...]
    width: int
    bottleneck: bool
    batch: int
    size: int
    classes: int

    @property
    def layers(self) -> int:
        """Convolutions and dense layers on the way through, as papers count them."""
        return sum(self.depths) * (3 if self.bottleneck else 2) + 2


def _block_params(shape: Shape, n_in: int, width: int, first: bool) -> Params:
    n_out = 4 * width if shape.bottleneck else width
    sizes = [(1, n_in, width), (3, width, width), (1, width, n_out)] if shape.bottleneck else []
    sizes = sizes or [(3, n_in, width), (3, width, width)]
    params: Params = [{"norm": norm_params(row[1]), "conv": conv_params(*row)} for row in sizes]
    return {"layers": params} | ({"project": conv_params(1, n_in, n_out)} if first else {})


def _block(p: Params, x: jax.Array, stride: int) -> jax.Array:
    """Normalise, relu and convolve twice or three times, and add the shortcut; the 3x3 convolution has the stride."""
    strides = [1, stride, 1] if len(p["layers"]) == 3 else [stride, 1]
    h, shortcut = x, x
    for number, (layer, step) in enumerate(zip(p["layers"], strides, strict=True)):
        h = jax.nn.relu(batch_norm(layer["norm"], h))
        if number == 0 and "project" in p:
            shortcut = conv(p["project"], h, stride)
        h = conv(layer["conv"], h, step)
    return shortcut + h


def _unrolled(blocks: Sequence[Params], x: jax.Array) -> jax.Array:
    for p in blocks:
        x = _block(p, x, 1)
    return x


def _scanned(blocks: Params, x: jax.Array) -> jax.Array:
    return lax.scan(lambda x, p: (_block(p, x, 1), None), x, blocks)[0]


def resnet(name: str, shape: Shape, scanned: bool) -> Model:
    """The network of a shape; of small images (no ``bottleneck``) the stem is one 3x3 convolution."""
    stages, n_in = [], shape.width
    for i, depth in enumerate(shape.depths):
        width = shape.width * 2**i
        n_out = 4 * width if shape.bottleneck else width
        first = _block_params(shape, n_in, width, True)
        rest = _block_params(shape, n_out, width, False)
        stages.append({"first": first, "rest": stacked(depth - 1, rest) if scanned else [rest] * (depth - 1)})
        n_in = n_out
    params = {
        "stem": conv_params(7 if shape.bottleneck else 3, 3, shape.width),
        "stages": stages,
        "norm": norm_params(n_in),
        "head": dense_params(n_in, shape.classes),
    }
    run: Callable[[Any, jax.Array], jax.Array] = _scanned if scanned else _unrolled

    def logits(params: Params, x: jax.Array) -> jax.Array:
        x = conv(params["stem"], x, 2 if shape.bottleneck else 1)
        if shape.bottleneck:
            x = max_pool(x, 3, 2)
        for i, p in enumerate(params["stages"]):
            x = run(p["rest"], _block(p["first"], x, 1 if i == 0 else 2))
        x = jax.nn.relu(batch_norm(params["norm"], x))
        return dense(params["head"], jnp.mean(x, (1, 2)))

    return classifier(name, params, logits, shape.batch, shape.size, shape.classes)
