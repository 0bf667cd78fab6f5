"""ResNet-50 whose stages are scanned: the first block of a stage by itself, the equal ones as one ``lax.scan``.

In: a size. Out: ``Made``.

Batch norm uses the statistics of the batch. ``block`` puts a checkpoint around every block, ``save_conv`` one that
saves the named outputs of convolutions, as is done where normalisation and activation alone are to be computed
again; ``stage`` puts one around every stage, with the blocks inside checkpointed too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from benchmarks.authors.record import Loss, Made, Wrap, cross_entropy, f32, i32, identity, norm_params, pick, stacked


@dataclass(frozen=True)
class Config:
    """Sizes: blocks of each stage, channels of the first, image, batch, classes."""

    depths: tuple[int, ...]
    width: int
    image: int
    batch: int
    classes: int


CONFIGS = {
    "tiny": Config((2, 4), 8, 16, 2, 10),
    "small": Config((3, 4, 6), 32, 64, 8, 100),
    "full": Config((3, 4, 6, 3), 64, 224, 64, 1000),
}


def _conv(kernel: jax.Array, x: jax.Array, stride: int = 1) -> jax.Array:
    y = lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return checkpoint_name(y, "conv")


def _norm(p: dict[str, Any], x: jax.Array) -> jax.Array:
    mean = jnp.mean(x, (0, 1, 2))
    variance = jnp.mean(jnp.square(x), (0, 1, 2)) - jnp.square(mean)
    return (x - mean) * (lax.rsqrt(variance + 1e-5) * p["scale"]) + p["bias"]


def _block(p: dict[str, Any], x: jax.Array, stride: int) -> jax.Array:
    """Bottleneck, [B, h, w, n] -> [B, h/stride, w/stride, 4 width]."""
    h = jax.nn.relu(_norm(p["norm1"], _conv(p["conv1"], x)))
    h = jax.nn.relu(_norm(p["norm2"], _conv(p["conv2"], h, stride)))
    h = _norm(p["norm3"], _conv(p["conv3"], h))
    short = _norm(p["norm_short"], _conv(p["short"], x, stride)) if "short" in p else x
    return jax.nn.relu(h + short)


def _block_params(n_in: int, width: int, first: bool) -> dict[str, Any]:
    params = {
        "conv1": f32(1, 1, n_in, width),
        "norm1": norm_params(width),
        "conv2": f32(3, 3, width, width),
        "norm2": norm_params(width),
        "conv3": f32(1, 1, width, 4 * width),
        "norm3": norm_params(4 * width),
    }
    short = {"short": f32(1, 1, n_in, 4 * width), "norm_short": norm_params(4 * width)}
    return {**params, **short} if first else params


def _stage(p: dict[str, Any], x: jax.Array, stride: int, wrap: Wrap) -> jax.Array:
    block: Callable[..., jax.Array] = wrap(partial(_block, stride=1))
    x = wrap(partial(_block, stride=stride))(p["first"], x)
    return lax.scan(lambda x, p: (block(p, x), None), x, p["rest"])[0]


def make(size: str) -> Made:
    """The model at a size."""
    c = pick(CONFIGS, size)
    stages, n_in = [], c.width
    for i, depth in enumerate(c.depths):
        width = c.width * 2**i
        rest = stacked(depth - 1, _block_params(4 * width, width, False))
        stages.append({"first": _block_params(n_in, width, True), "rest": rest})
        n_in = 4 * width
    params = {
        "stem": f32(7, 7, 3, c.width),
        "norm": norm_params(c.width),
        "stages": stages,
        "head": {"kernel": f32(n_in, c.classes), "bias": f32(c.classes)},
    }

    def loss_with(wrap: Wrap, wrap_stage: Wrap = identity) -> Loss:
        def loss(params: Any, batch: Any) -> jax.Array:
            x = jax.nn.relu(_norm(params["norm"], _conv(params["stem"], batch["images"], 2)))
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            for i, p in enumerate(params["stages"]):
                x = wrap_stage(partial(_stage, stride=1 if i == 0 else 2, wrap=wrap))(p, x)
            x = jnp.mean(x, (1, 2))
            return cross_entropy(x @ params["head"]["kernel"] + params["head"]["bias"], batch["labels"])

        return loss

    save = jax.checkpoint_policies.save_only_these_names("conv")
    losses = {
        "block": loss_with(jax.checkpoint),
        "save_conv": loss_with(partial(jax.checkpoint, policy=save)),
        "stage": loss_with(jax.checkpoint, jax.checkpoint),
    }
    batch = {"images": f32(c.batch, c.image, c.image, 3), "labels": i32(c.batch)}
    return Made(loss_with(identity), losses, (params, batch))
