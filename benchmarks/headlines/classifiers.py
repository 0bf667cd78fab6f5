"""Image classifiers of the papers' tables: VGG-16 and -19, GoogLeNet, MobileNet v1 and v2.

In: batch, image, classes. Out: ``Model``; float32, NHWC, BatchNorm by the statistics of the batch.

Sources: Simonyan and Zisserman 2015 (VGG, configurations D and E, without normalisation), Szegedy et al. 2015
(GoogLeNet, with BatchNorm and without the auxiliary heads, as torchvision has it), Howard et al. 2017 and Sandler et
al. 2018 (MobileNets). Dropout is left out.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.authors.record import f32
from benchmarks.headlines.layers import (
    Params,
    classifier,
    conv,
    conv_norm,
    conv_norm_params,
    conv_params,
    dense,
    dense_params,
    max_pool,
)
from benchmarks.models import Model

VGG16, VGG19 = (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)
"""Convolutions of each stage."""

_VGG_WIDTHS = (64, 128, 256, 512, 512)
_INCEPTIONS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""Channels of each module between two pools: 1x1; 1x1 and 3x3; 1x1 and 5x5; behind the pool."""

_SEPARABLE = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
"""Channels and stride of each separable convolution of MobileNet v1."""

_INVERTED = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, repetitions and first stride of each stage of MobileNet v2."""


def vgg(
    name: str, depths: tuple[int, ...], batch: int, size: int = 224, classes: int = 1000, width: int = 4096
) -> Model:
    """VGG: 3x3 convolutions with biases, max-pools, three dense layers of which two are ``width`` wide."""
    stages, n_in = [], 3
    for depth, n_out in zip(depths, _VGG_WIDTHS, strict=True):
        sizes = [n_in] + [n_out] * (depth - 1)
        stages.append([{"conv": conv_params(3, n, n_out), "bias": f32(n_out)} for n in sizes])
        n_in = n_out
    flat = n_in * (size // 32) ** 2
    params = {"stages": stages, "dense": [dense_params(*row) for row in ((flat, width), (width, width))]}
    params["head"] = dense_params(width, classes)

    def logits(params: Params, x: jax.Array) -> jax.Array:
        for stage in params["stages"]:
            for p in stage:
                x = jax.nn.relu(conv(p["conv"], x) + p["bias"])
            x = max_pool(x, 2, 2)
        x = x.reshape(x.shape[0], -1)
        for p in params["dense"]:
            x = jax.nn.relu(dense(p, x))
        return dense(params["head"], x)

    return classifier(name, params, logits, batch, size, classes)


def _inception_params(n_in: int, channels: tuple[int, ...]) -> Params:
    one, before_three, three, before_five, five, pooled = channels
    return {
        "one": conv_norm_params(1, n_in, one),
        "three": [conv_norm_params(1, n_in, before_three), conv_norm_params(3, before_three, three)],
        "five": [conv_norm_params(1, n_in, before_five), conv_norm_params(3, before_five, five)],
        "pooled": conv_norm_params(1, n_in, pooled),
    }


def _inception(p: Params, x: jax.Array) -> jax.Array:
    """Four branches side by side; the "5x5" one has a 3x3 kernel, as in torchvision."""
    branches = [_unit(p["one"], x)]
    branches += [_unit(p[name][1], _unit(p[name][0], x)) for name in ("three", "five")]
    branches.append(_unit(p["pooled"], max_pool(x, 3, 1)))
    return jnp.concatenate(branches, -1)


def _unit(p: Params, x: jax.Array, stride: int = 1) -> jax.Array:
    return jax.nn.relu(conv_norm(p, x, stride))


def googlenet(batch: int, size: int = 224, classes: int = 1000) -> Model:
    """GoogLeNet."""
    n_in, modules = 192, []
    for group in _INCEPTIONS:
        modules.append([])
        for channels in group:
            modules[-1].append(_inception_params(n_in, channels))
            n_in = channels[0] + channels[2] + channels[4] + channels[5]
    stem = [conv_norm_params(7, 3, 64), conv_norm_params(1, 64, 64), conv_norm_params(3, 64, 192)]
    params = {"stem": stem, "modules": modules, "head": dense_params(n_in, classes)}

    def logits(params: Params, x: jax.Array) -> jax.Array:
        first, second, third = params["stem"]
        x = max_pool(_unit(first, x, 2), 3, 2)
        x = _unit(third, _unit(second, x))
        for group in params["modules"]:
            x = max_pool(x, 3, 2)
            for p in group:
                x = _inception(p, x)
        return dense(params["head"], jnp.mean(x, (1, 2)))

    return classifier("googlenet", params, logits, batch, size, classes)


def mobilenet(batch: int, size: int = 224, classes: int = 1000) -> Model:
    """MobileNet v1: depthwise 3x3 and 1x1 convolutions, BatchNorm and relu6 behind each."""
    blocks, n_in = [], 32
    for n_out, _ in _SEPARABLE:
        blocks.append({"depth": conv_norm_params(3, n_in, n_in, n_in), "point": conv_norm_params(1, n_in, n_out)})
        n_in = n_out
    params = {"stem": conv_norm_params(3, 3, 32), "blocks": blocks, "head": dense_params(n_in, classes)}

    def logits(params: Params, x: jax.Array) -> jax.Array:
        x = jax.nn.relu6(conv_norm(params["stem"], x, 2))
        for p, (_, stride) in zip(params["blocks"], _SEPARABLE, strict=True):
            x = jax.nn.relu6(conv_norm(p["depth"], x, stride, x.shape[-1]))
            x = jax.nn.relu6(conv_norm(p["point"], x))
        return dense(params["head"], jnp.mean(x, (1, 2)))

    return classifier("mobilenet", params, logits, batch, size, classes)


def _inverted_params(n_in: int, expansion: int, n_out: int) -> Params:
    wide = n_in * expansion
    params = {"depth": conv_norm_params(3, wide, wide, wide), "point": conv_norm_params(1, wide, n_out)}
    return params | ({"expand": conv_norm_params(1, n_in, wide)} if expansion > 1 else {})


def _inverted(p: Params, x: jax.Array, stride: int) -> jax.Array:
    """Expand, convolve each channel, project; a shortcut where the shape stays."""
    h = jax.nn.relu6(conv_norm(p["expand"], x)) if "expand" in p else x
    h = jax.nn.relu6(conv_norm(p["depth"], h, stride, h.shape[-1]))
    h = conv_norm(p["point"], h)
    return x + h if h.shape == x.shape else h


def mobilenet_v2(batch: int, size: int = 224, classes: int = 1000) -> Model:
    """MobileNet v2: inverted residuals."""
    rows = [(e, c, s if i == 0 else 1) for e, c, n, s in _INVERTED for i in range(n)]
    blocks, n_in = [], 32
    for expansion, n_out, _ in rows:
        blocks.append(_inverted_params(n_in, expansion, n_out))
        n_in = n_out
    params: dict[str, Any] = {"stem": conv_norm_params(3, 3, 32), "blocks": blocks}
    params |= {"last": conv_norm_params(1, n_in, 1280), "head": dense_params(1280, classes)}

    def logits(params: Params, x: jax.Array) -> jax.Array:
        x = jax.nn.relu6(conv_norm(params["stem"], x, 2))
        for p, (_, _, stride) in zip(params["blocks"], rows, strict=True):
            x = _inverted(p, x, stride)
        x = jax.nn.relu6(conv_norm(params["last"], x))
        return dense(params["head"], jnp.mean(x, (1, 2)))

    return classifier("mobilenet_v2", params, logits, batch, size, classes)
