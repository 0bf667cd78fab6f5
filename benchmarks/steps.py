"""Whole training steps, as shapes: GPT-2, a scanned Llama, ResNet-50 with running statistics, a ViT in Flax NNX.

In: whether they are to be tiny. Out: ``Step``: the step with its loss marked by ``rp.remat``, and its arguments for any
batch size. Nothing is allocated.

GPT-2 and Llama compute in bfloat16 on float32 parameters; ResNet-50 (Flax Linen) and the ViT compute in float32. The
Llama has the sizes of Sheared-LLaMA 1.3B, its layers stacked along axis 0 (where the scan needs no copy of them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx

import remat_plan as rp
from benchmarks.authors import llama
from benchmarks.models import gpt2, small

Function = Callable[..., Any]


@dataclass(frozen=True)
class Step:
    """A training step.

    Attributes:
        name: what it is called in tables.
        run: the step.
        make_args: its arguments for a number of examples, as ``jax.ShapeDtypeStruct``.
        batch: the number of examples it is fitted for.
        donate: the arguments that are its state.
        multiple_of: what batches are multiples of when the largest is searched.
    """

    name: str
    run: Function
    make_args: Callable[[int], tuple[Any, ...]]
    batch: int
    donate: tuple[int, ...] = (0,)
    multiple_of: int = 8

    @property
    def state_bytes(self) -> int:
        """Bytes of its state."""
        args = self.make_args(self.batch)
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves([args[i] for i in self.donate]))


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _with_adamw(name: str, loss: Function, params: Any, batch_of: Callable[[int], Any], batch: int) -> Step:
    """The step of a loss of parameters and a batch, with AdamW."""
    adamw = optax.adamw(1e-4)
    state = params, jax.eval_shape(adamw.init, params)

    def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, opt_state = state
        value, grads = jax.value_and_grad(rp.remat(loss))(params, batch)
        updates, opt_state = adamw.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    return Step(name, train_step, lambda n: (state, batch_of(n)), batch)


def gpt2_step(quick: bool) -> Step:
    """GPT-2 small, batch 8 of 512 tokens."""

    model = small("gpt2", dtype=jnp.bfloat16) if quick else gpt2(dtype=jnp.bfloat16)

    def batch_of(batch: int) -> Any:
        return jax.tree.map(lambda x: _i32(batch, *x.shape[1:]), model.batch)

    return _with_adamw("gpt2", model.loss, model.params, batch_of, 64 if quick else 8)


_LLAMA = llama.Config(24, 2048, 16, 16, 128, 5504, 32_000, 4, 2048, jnp.bfloat16, scan_axis=0)


def llama_step(quick: bool) -> Step:
    """A Llama of 1.3 B parameters in one scan, batch 4 of 2048 tokens."""
    config = replace(llama.CONFIGS["tiny"], batch=32, scan_axis=0, dtype=jnp.bfloat16) if quick else _LLAMA
    made = llama.make_of(config)
    step = _with_adamw(
        "llama", made.plain, made.arguments[0], lambda n: llama.batch_shapes(replace(config, batch=n)), config.batch
    )
    return replace(step, multiple_of=8 if quick else 1)


class Bottleneck(nn.Module):
    """A block of ResNet-50, [B, h, w, n] -> [B, h/stride, w/stride, 4 width]."""

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        norm = partial(nn.BatchNorm, use_running_average=False, momentum=0.9)
        conv = partial(nn.Conv, use_bias=False)
        h = nn.relu(norm()(conv(self.width, (1, 1))(x)))
        h = nn.relu(norm()(conv(self.width, (3, 3), strides=self.stride)(h)))
        h = norm(scale_init=nn.initializers.zeros)(conv(4 * self.width, (1, 1))(h))
        if h.shape != x.shape:
            x = norm()(conv(4 * self.width, (1, 1), strides=self.stride)(x))
        return nn.relu(h + x)


class ResNet(nn.Module):
    """ResNet-50 in training mode; its running statistics are the collection ``batch_stats``."""

    depths: tuple[int, ...]
    width: int
    classes: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Conv(self.width, (7, 7), strides=2, use_bias=False)(images)
        x = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for stage, depth in enumerate(self.depths):
            for i in range(depth):
                x = Bottleneck(self.width * 2**stage, 2 if stage > 0 and i == 0 else 1)(x)
        return nn.Dense(self.classes)(jnp.mean(x, (1, 2)))


def resnet50_step(quick: bool) -> Step:
    """ResNet-50 with running statistics as ``has_aux``, SGD with momentum, batch 64 of 224 x 224."""
    size, classes = (32, 10) if quick else (224, 1000)
    model = ResNet((1, 2), 8, classes) if quick else ResNet((3, 4, 6, 3), 64, classes)
    sgd = optax.sgd(0.1, momentum=0.9, nesterov=True)

    def loss_fn(params: Any, stats: Any, batch: Any) -> tuple[jax.Array, Any]:
        found: Any = model.apply({"params": params, "batch_stats": stats}, batch["images"], mutable=["batch_stats"])
        logits, changed = found
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        return jnp.mean(losses), changed["batch_stats"]

    def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, stats, opt_state = state
        (value, stats), grads = jax.value_and_grad(rp.remat(loss_fn), has_aux=True)(params, stats, batch)
        updates, opt_state = sgd.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), stats, opt_state), value

    made: Any = jax.eval_shape(model.init, jax.random.key(0), _f32(1, size, size, 3))
    state = made["params"], made["batch_stats"], jax.eval_shape(sgd.init, made["params"])

    def make_args(batch: int) -> tuple[Any, ...]:
        return state, {"images": _f32(batch, size, size, 3), "labels": _i32(batch)}

    return Step("resnet50", train_step, make_args, 64)


class VitBlock(nnx.Module):
    """Pre-norm attention and a gelu MLP, [B, S, D] -> [B, S, D]."""

    def __init__(self, width: int, heads: int, rngs: nnx.Rngs):
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=heads, in_features=width, decode=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Vit(nnx.Module):
    """A vision transformer: patches, learned positions, the mean of the last layer to a linear head."""

    def __init__(self, *, layers: int, width: int, heads: int, patch: int, size: int, classes: int, rngs: nnx.Rngs):
        self.patches = nnx.Conv(3, width, (patch, patch), strides=patch, padding="VALID", rngs=rngs)
        positions = 0.02 * jax.random.normal(rngs.params(), ((size // patch) ** 2, width))
        self.positions = nnx.Param(positions)
        self.blocks = nnx.List([VitBlock(width, heads, rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.patches(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(jnp.mean(x, 1)))


def vit_step(quick: bool) -> Step:
    """ViT-B/16 as a Flax NNX module with ``nnx.Optimizer``, batch 32 of 224 x 224."""
    size, classes = (32, 10) if quick else (224, 1000)
    depth = {"layers": 2, "width": 32, "heads": 2, "patch": 8} if quick else {
        "layers": 12, "width": 768, "heads": 12, "patch": 16}  # fmt: skip

    def make() -> tuple[Vit, nnx.Optimizer[Vit]]:
        model = Vit(**depth, size=size, classes=classes, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-4), wrt=nnx.Param)

    def loss_fn(model: Vit, batch: Any) -> jax.Array:
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(batch["images"]), batch["labels"]))

    def train_step(model: Vit, optimizer: nnx.Optimizer[Vit], batch: Any) -> jax.Array:
        value, grads = nnx.value_and_grad(rp.remat(loss_fn))(model, batch)
        optimizer.update(model, grads)
        return value

    state = nnx.eval_shape(make)

    def make_args(batch: int) -> tuple[Any, ...]:
        return *state, {"images": _f32(batch, size, size, 3), "labels": _i32(batch)}

    return Step("vit", train_step, make_args, 64 if quick else 32, donate=(0, 1))


STEPS: Mapping[str, Callable[[bool], Step]] = {
    "gpt2": gpt2_step,
    "llama": llama_step,
    "resnet50": resnet50_step,
    "vit": vit_step,
}
"""Per name, what makes the step; by the names that models of the benchmarks have."""
