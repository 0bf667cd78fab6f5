"""Shapes of parameters and layers that the networks of this folder share; images are NHWC, everything is float32.

In: sizes, arrays. Out: ``jax.ShapeDtypeStruct`` pytrees, arrays.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.authors.record import cross_entropy, f32, i32, norm_params
from benchmarks.models import Model

Params = Any


def conv_params(size: int, n_in: int, n_out: int, groups: int = 1) -> Params:
    """The kernel of a convolution of ``size`` x ``size`` without a bias."""
    return f32(size, size, n_in // groups, n_out)


def dense_params(n_in: int, n_out: int) -> Params:
    """Kernel and bias of a dense layer."""
    return {"kernel": f32(n_in, n_out), "bias": f32(n_out)}


def conv(kernel: jax.Array, x: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """[B, h, w, n_in] -> [B, h/stride, w/stride, n_out]."""
    dimensions = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=dimensions, feature_group_count=groups
    )


def upsample(kernel: jax.Array, x: jax.Array, stride: int = 2) -> jax.Array:
    """Transposed convolution, [B, h, w, n_in] -> [B, h*stride, w*stride, n_out]."""
    return lax.conv_transpose(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def batch_norm(p: Params, x: jax.Array) -> jax.Array:
    """Normalise each channel by the statistics of the batch (training mode)."""
    mean = jnp.mean(x, (0, 1, 2), keepdims=True)
    variance = jnp.var(x, (0, 1, 2), keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def max_pool(x: jax.Array, size: int, stride: int) -> jax.Array:
    """[B, h, w, n] -> [B, h/stride, w/stride, n]."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), "SAME")


def dense(p: Params, x: jax.Array) -> jax.Array:
    """[..., n_in] -> [..., n_out]."""
    return x @ p["kernel"] + p["bias"]


def conv_norm_params(size: int, n_in: int, n_out: int, groups: int = 1) -> Params:
    """A convolution and the normalisation behind it."""
    return {"conv": conv_params(size, n_in, n_out, groups), "norm": norm_params(n_out)}


def conv_norm(p: Params, x: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """Convolution and batch norm."""
    return batch_norm(p["norm"], conv(p["conv"], x, stride, groups))


def classifier(name: str, params: Params, features: Any, batch: int, size: int, classes: int) -> Model:
    """A model of images [B, size, size, 3] and labels [B]: ``features(params, images)`` to the mean of their logits.

    ``features`` returns logits [B, classes].
    """

    def loss(params: Params, inputs: Any) -> jax.Array:
        return cross_entropy(features(params, inputs["images"]), inputs["labels"])

    inputs = {"images": f32(batch, size, size, 3), "labels": i32(batch)}
    return Model(name, loss, params, inputs, lambda wrap: loss, classes)
