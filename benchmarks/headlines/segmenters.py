"""Networks that label every pixel, of the papers' tables: U-Net, FCN-8 and SegNet.

In: batch, image, classes. Out: ``Model``; float32, NHWC, BatchNorm by the statistics of the batch.

Sources: Ronneberger et al. 2015 (U-Net, with padding, BatchNorm and bilinear upsampling as in milesial/Pytorch-UNet,
which MONeT measures), Long et al. 2015 (FCN-8 on VGG-16), Badrinarayanan et al. 2017 (SegNet; its decoder upsamples by
transposed convolutions here, where the paper's puts values back at the indices of the maxima).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.authors.record import cross_entropy, f32, i32
from benchmarks.headlines.layers import (
    Params,
    conv,
    conv_norm,
    conv_norm_params,
    conv_params,
    max_pool,
    upsample,
)
from benchmarks.models import Model

_UNET_DOWN = ((3, 64), (64, 128), (128, 256), (256, 512), (512, 512))
_UNET_UP = ((1024, 512, 256), (512, 256, 128), (256, 128, 64), (128, 64, 64))
_VGG = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def _segmenter(name: str, params: Params, features: Any, batch: int, height: int, width: int, classes: int) -> Model:
    """A model of images and the label of every pixel."""

    def loss(params: Params, inputs: Any) -> jax.Array:
        return cross_entropy(features(params, inputs["images"]), inputs["labels"])

    inputs = {"images": f32(batch, height, width, 3), "labels": i32(batch, height, width)}
    return Model(name, loss, params, inputs, lambda wrap: loss, classes)


def _unit(p: Params, x: jax.Array) -> jax.Array:
    return jax.nn.relu(conv_norm(p, x))


def _enlarge(x: jax.Array) -> jax.Array:
    """Bilinear, to twice the height and width."""
    b, h, w, n = x.shape
    return jax.image.resize(x, (b, 2 * h, 2 * w, n), "bilinear")


def unet(batch: int, height: int = 416, width: int = 608, classes: int = 2) -> Model:
    """U-Net: five levels of two 3x3 convolutions down, four up with the skips."""
    params = {
        "down": [[conv_norm_params(3, a, b), conv_norm_params(3, b, b)] for a, b in _UNET_DOWN],
        "up": [[conv_norm_params(3, a, b), conv_norm_params(3, b, c)] for a, b, c in _UNET_UP],
        "head": conv_params(1, 64, classes),
    }

    def logits(params: Params, x: jax.Array) -> jax.Array:
        skips = []
        for number, (first, second) in enumerate(params["down"]):
            x = x if number == 0 else max_pool(x, 2, 2)
            x = _unit(second, _unit(first, x))
            skips.append(x)
        for (first, second), skip in zip(params["up"], skips[-2::-1], strict=True):
            x = _unit(second, _unit(first, jnp.concatenate([skip, _enlarge(x)], -1)))
        return conv(params["head"], x)

    return _segmenter("unet", params, logits, batch, height, width, classes)


def _encoder_params() -> Params:
    stages, n_in = [], 3
    for widths in _VGG:
        stages.append([conv_norm_params(3, a, b) for a, b in zip((n_in, *widths), widths, strict=False)])
        n_in = widths[-1]
    return stages


def fcn8(batch: int, height: int = 416, width: int = 608, classes: int = 12) -> Model:
    """FCN-8: the encoder of VGG-16, two wide convolutions, and three upsampled predictions summed."""
    params = {
        "encoder": _encoder_params(),
        "wide": [conv_norm_params(7, 512, 4096), conv_norm_params(1, 4096, 4096)],
        "predict": [conv_params(1, n, classes) for n in (256, 512, 4096)],
        "enlarge": [conv_params(n, classes, classes) for n in (4, 4, 16)],
    }

    def logits(params: Params, x: jax.Array) -> jax.Array:
        pooled = []
        for stage in params["encoder"]:
            for p in stage:
                x = _unit(p, x)
            x = max_pool(x, 2, 2)
            pooled.append(x)
        for p in params["wide"]:
            x = _unit(p, x)
        third, fourth, last = params["predict"]
        to_fourth, to_third, to_image = params["enlarge"]
        y = upsample(to_fourth, conv(last, x)) + conv(fourth, pooled[3])
        y = upsample(to_third, y) + conv(third, pooled[2])
        return upsample(to_image, y, 8)

    return _segmenter("fcn8", params, logits, batch, height, width, classes)


def segnet(batch: int, height: int = 416, width: int = 608, classes: int = 12) -> Model:
    """SegNet: the encoder of VGG-16, and its mirror as the decoder."""
    decoder, n_in = [], 512
    for widths in reversed(_VGG):
        enlarge = conv_params(2, n_in, widths[-1])
        decoder.append({"enlarge": enlarge, "convs": [conv_norm_params(3, n, n) for n in widths]})
        n_in = widths[-1]
    params = {"encoder": _encoder_params(), "decoder": decoder, "head": conv_params(3, n_in, classes)}

    def logits(params: Params, x: jax.Array) -> jax.Array:
        for stage in params["encoder"]:
            for p in stage:
                x = _unit(p, x)
            x = max_pool(x, 2, 2)
        for stage in params["decoder"]:
            x = upsample(stage["enlarge"], x)
            for p in stage["convs"]:
                x = _unit(p, x)
        return conv(params["head"], x)

    return _segmenter("segnet", params, logits, batch, height, width, classes)
