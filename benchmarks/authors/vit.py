"""A vision transformer as Big Vision trains it, in Flax: ``nn.scan`` over ``nn.remat`` of the encoder block.

In: a size. Out: ``Made``.

What is as there: each block also returns what it computed on the way, so the scan stacks outputs that the loss does
not read; ``prevent_cse=False``; a policy named as in ``jax.checkpoint_policies`` (its ``none`` names no policy and is
the program of ``nothing_saveable``). ``remat_scan`` is Flax's own nested scan over the same blocks, of which each
inner one is checkpointed as a whole. Full size is ViT-L/16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.authors.record import Loss, Made, cross_entropy, f32, i32, pick

REMAT_POLICIES = ("nothing_saveable", "dots_with_no_batch_dims_saveable", "dots_saveable")


@dataclass(frozen=True)
class Config:
    """Sizes; ``lengths`` are those of the nested scan."""

    lengths: tuple[int, ...]
    width: int
    heads: int
    mlp: int
    patch: int
    image: int
    batch: int
    classes: int

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return self.lengths[0] * self.lengths[1]


CONFIGS = {
    "tiny": Config((2, 2), 32, 2, 64, 8, 32, 2, 10),
    "small": Config((6, 2), 192, 3, 768, 8, 96, 8, 100),
    "full": Config((6, 4), 1024, 16, 4096, 16, 224, 64, 1000),
}


class Block(nn.Module):
    """Pre-norm attention and MLP; returns the stream and what was computed on the way."""

    heads: int
    mlp: int

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool = True) -> tuple[jax.Array, dict[str, jax.Array]]:
        out = {}
        y = nn.LayerNorm(name="norm1")(x)
        y = out["sa"] = nn.MultiHeadDotProductAttention(
            num_heads=self.heads, deterministic=deterministic, name="attention"
        )(y, y)
        x = out["+sa"] = x + y
        y = nn.LayerNorm(name="norm2")(x)
        width = x.shape[-1]
        y = nn.Dense(self.mlp, name="up")(y)
        y = out["mlp"] = nn.Dense(width, name="down")(nn.gelu(y))
        x = out["+mlp"] = x + y
        return x, out


class Stream(nn.Module):
    """A block that returns the stream alone, which is what ``nn.remat_scan`` takes."""

    heads: int
    mlp: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return Block(self.heads, self.mlp, name="block")(x)[0]


class ViT(nn.Module):
    """The model; ``remat`` is None, the name of a policy, or ``remat_scan``."""

    config: Config
    remat: str | None = None

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        c = self.config
        patches = (c.patch, c.patch)
        x = nn.Conv(c.width, patches, strides=patches, padding="VALID", name="embedding")(images)
        x = x.reshape(x.shape[0], -1, c.width)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], c.width))
        if self.remat == "remat_scan":
            x = nn.remat_scan(Stream, lengths=c.lengths)(c.heads, c.mlp, name="blocks")(x)
        else:
            x, _ = self._scan()(c.heads, c.mlp, name="blocks")(x, True)
        x = jnp.mean(nn.LayerNorm(name="norm")(x), axis=1)
        return nn.Dense(c.classes, name="head")(x)

    def _scan(self) -> Any:
        policy = getattr(jax.checkpoint_policies, self.remat or "", None)
        remat = partial(nn.remat, prevent_cse=False, static_argnums=(2,), policy=policy)
        return nn.scan(
            remat(Block) if self.remat else Block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=cast(Any, nn.broadcast),  # Flax takes it, its annotation does not
            length=self.config.depth,
        )


def _regroup(params: Any, lengths: Sequence[int]) -> Any:
    """The parameters of a flat scan as those of a nested one."""
    blocks = jax.tree.map(lambda p: p.reshape(*lengths, *p.shape[1:]), params["blocks"])
    return {**params, "blocks": {"block": blocks}}


def make(size: str) -> Made:
    """The model at a size."""
    c = pick(CONFIGS, size)
    batch = {"images": f32(c.batch, c.image, c.image, 3), "labels": i32(c.batch)}
    variables = jax.eval_shape(ViT(c).init, jax.random.key(0), batch["images"])

    def loss_with(remat: str | None) -> Loss:
        model = ViT(c, remat)

        def loss(params: Any, batch: Any) -> jax.Array:
            if remat == "remat_scan":
                params = _regroup(params, c.lengths)
            return cross_entropy(jnp.asarray(model.apply({"params": params}, batch["images"])), batch["labels"])

        return loss

    policies = {name: loss_with(name) for name in (*REMAT_POLICIES, "remat_scan")}
    return Made(loss_with(None), policies, (variables["params"], batch))
