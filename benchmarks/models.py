"""A zoo of models written in bare JAX, as straight-line Python loops over their layers.

Every model is a `Model`: a scalar loss, the shapes of its parameters and of its batch, and `loss_with`, which
rebuilds the loss with every block function passed through a wrapper.  ``loss_with(jax.checkpoint)`` is the
checkpointing that people write by hand; ``loss_with(lambda f: f)`` is the plain loss.

Shapes only are stored, so a full-size model costs nothing until `concrete` is called.  Parameters are always
float32 and images always arrive in float32; both are cast to the compute dtype where they are used.
Normalisation statistics, attention softmax and the final cross-entropy are computed in float32.

In the shape comments, B is batch, S sequence, D width, H heads, K classes; images are NHWC.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

Params = Any
Batch = Any
Loss = Callable[..., jax.Array]
Block = Callable[..., Any]
Wrap = Callable[[Block], Block]


@dataclasses.dataclass(frozen=True)
class Model:
    """A loss to differentiate, with the shapes it is called on.

    Attributes:
        name: the model's name in `MODELS`.
        loss: ``loss(params, batch)`` gives a float32 scalar; it is differentiated in ``params``.
        params: pytree of `jax.ShapeDtypeStruct`, all float32.
        batch: pytree of `jax.ShapeDtypeStruct`, float32 images and int32 tokens or labels.
        loss_with: ``loss_with(wrap)`` is ``loss`` with every block function ``f`` replaced by ``wrap(f)``.
            A block is pure, ``f(block_params, x, ...) -> x``, and takes arrays (or pytrees of arrays) only.
        classes: integers in the batch lie in ``[0, classes)``; an untrained loss is about ``log(classes)``.
    """

    name: str
    loss: Loss
    params: Params
    batch: Batch
    loss_with: Callable[[Wrap], Loss]
    classes: int


def _identity(f: Block) -> Block:
    return f


def _model(name: str, loss_with: Callable[[Wrap], Loss], params: Params, batch: Batch, classes: int) -> Model:
    return Model(
        name=name,
        loss=loss_with(_identity),
        params=params,
        batch=batch,
        loss_with=loss_with,
        classes=classes,
    )


# Shapes of parameters and inputs.


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _dense_params(n_in: int, n_out: int) -> Params:
    return {"kernel": _f32(n_in, n_out), "bias": _f32(n_out)}


def _norm_params(width: int) -> Params:
    return {"scale": _f32(width), "bias": _f32(width)}


def _conv_params(size: int, n_in: int, n_out: int) -> Params:
    """A bias-free convolution, as is usual next to a normalisation."""
    return {"kernel": _f32(size, size, n_in, n_out)}


# Layers.


def _dense(p: Params, x: jax.Array) -> jax.Array:
    """[..., n_in] -> [..., n_out]."""
    return x @ p["kernel"].astype(x.dtype) + p["bias"].astype(x.dtype)


def _conv(p: Params, x: jax.Array, stride: int = 1, padding: str = "SAME") -> jax.Array:
    """[B, h, w, n_in] -> [B, h/stride, w/stride, n_out]."""
    return lax.conv_general_dilated(
        x,
        p["kernel"].astype(x.dtype),
        window_strides=(stride, stride),
        padding=padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _upsample(p: Params, x: jax.Array) -> jax.Array:
    """Transposed 2x2 convolution, [B, h, w, n_in] -> [B, 2h, 2w, n_out]."""
    return lax.conv_transpose(
        x,
        p["kernel"].astype(x.dtype),
        strides=(2, 2),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _max_pool(x: jax.Array, size: int, stride: int) -> jax.Array:
    """[B, h, w, n] -> [B, h/stride, w/stride, n]."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), "SAME")


def _normalise(p: Params, x: jax.Array, axes: int | tuple[int, ...], eps: float) -> jax.Array:
    """Zero mean and unit variance over `axes`, then scale and bias of the last axis; the shape of x."""
    h = x.astype(jnp.float32)
    mean = jnp.mean(h, axis=axes, keepdims=True)
    var = jnp.var(h, axis=axes, keepdims=True)
    h = (h - mean) * lax.rsqrt(var + eps)
    return (h * p["scale"] + p["bias"]).astype(x.dtype)


def _layer_norm(p: Params, x: jax.Array) -> jax.Array:
    """[..., D] -> [..., D], each vector by its own statistics."""
    return _normalise(p, x, axes=-1, eps=1e-5)


def _batch_norm(p: Params, x: jax.Array) -> jax.Array:
    """[B, h, w, n] -> [B, h, w, n], each channel by the statistics of this batch (training mode)."""
    return _normalise(p, x, axes=(0, 1, 2), eps=1e-5)


def _instance_norm(p: Params, x: jax.Array) -> jax.Array:
    """[B, h, w, n] -> [B, h, w, n], each channel of each image by its own statistics."""
    return _normalise(p, x, axes=(1, 2), eps=1e-5)


def _group_norm(p: Params, x: jax.Array, groups: int) -> jax.Array:
    """[B, h, w, n] -> [B, h, w, n], each group of channels of each image by its own statistics."""
    h = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, -1)
    mean = jnp.mean(h, axis=(1, 2, 4), keepdims=True)
    var = jnp.var(h, axis=(1, 2, 4), keepdims=True)
    h = ((h - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape)
    return (h * p["scale"] + p["bias"]).astype(x.dtype)


def _attention(p: Params, x: jax.Array, heads: int, causal: bool) -> jax.Array:
    """Multi-head self-attention, [B, S, D] -> [B, S, D]."""
    b, s, d = x.shape
    q, k, v = jnp.split(_dense(p["qkv"], x), 3, axis=-1)
    q, k, v = (t.reshape(b, s, heads, d // heads) for t in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / math.sqrt(d // heads)
    if causal:
        mask = jnp.tril(jnp.ones((s, s), dtype=bool))
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)  # [B, H, S, S]
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, s, d)
    return _dense(p["out"], mixed)


def _transformer_params(width: int) -> Params:
    return {
        "ln1": _norm_params(width),
        "attn": {"qkv": _dense_params(width, 3 * width), "out": _dense_params(width, width)},
        "ln2": _norm_params(width),
        "mlp": {"up": _dense_params(width, 4 * width), "out": _dense_params(4 * width, width)},
    }


def _transformer_layer(p: Params, x: jax.Array, heads: int, causal: bool) -> jax.Array:
    """Pre-LN attention and 4x gelu MLP, [B, S, D] -> [B, S, D]."""
    x = x + _attention(p["attn"], _layer_norm(p["ln1"], x), heads, causal)
    h = jax.nn.gelu(_dense(p["mlp"]["up"], _layer_norm(p["ln2"], x)))
    return x + _dense(p["mlp"]["out"], h)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean negative log-likelihood, logits [..., K] and labels [...] -> scalar float32."""
    logp = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return -jnp.mean(jnp.take_along_axis(logp, labels[..., None], axis=-1))


# Models.


def gpt2(
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    batch: int = 8,
    sequence: int = 512,
    vocab: int = 8192,
    dtype: DTypeLike = jnp.float32,
) -> Model:
    """GPT-2: learned positions, pre-LN causal transformer, untied head.

    The batch is tokens and targets, both int32 [B, S].  The block is one transformer layer.
    """
    params = {
        "token_embed": _f32(vocab, width),
        "position_embed": _f32(sequence, width),
        "layers": [_transformer_params(width) for _ in range(layers)],
        "norm": _norm_params(width),
        "head": {"kernel": _f32(width, vocab)},
    }

    def loss_with(wrap: Wrap) -> Loss:
        @wrap
        def layer(p: Params, x: jax.Array) -> jax.Array:
            return _transformer_layer(p, x, heads, causal=True)

        def loss(params: Params, batch: Batch) -> jax.Array:
            x = params["token_embed"][batch["tokens"]] + params["position_embed"]  # [B, S, D]
            x = x.astype(dtype)
            for p in params["layers"]:
                x = layer(p, x)
            x = _layer_norm(params["norm"], x)
            logits = x @ params["head"]["kernel"].astype(x.dtype)  # [B, S, vocab]
            return _cross_entropy(logits, batch["targets"])

        return loss

    inputs = {"tokens": _i32(batch, sequence), "targets": _i32(batch, sequence)}
    return _model("gpt2", loss_with, params, inputs, vocab)


def gpt2_scan(*, layers: int = 12, **sizes: Any) -> Model:
    """``gpt2`` with its layers scanned: the parameters of all layers are stacked. Sizes are those of ``gpt2``."""
    plain = gpt2(layers=1, **sizes)
    heads, dtype = sizes.get("heads", 12), sizes.get("dtype", jnp.float32)
    stacked = jax.tree.map(lambda x: _f32(layers, *x.shape), plain.params["layers"][0])

    def loss_with(wrap: Wrap) -> Loss:
        @wrap
        def layer(p: Params, x: jax.Array) -> jax.Array:
            return _transformer_layer(p, x, heads, causal=True)

        def loss(params: Params, batch: Batch) -> jax.Array:
            x = params["token_embed"][batch["tokens"]] + params["position_embed"]
            x, _ = lax.scan(lambda x, p: (layer(p, x), None), x.astype(dtype), params["layers"])
            x = _layer_norm(params["norm"], x)
            logits = x @ params["head"]["kernel"].astype(x.dtype)
            return _cross_entropy(logits, batch["targets"])

        return loss

    params = {**plain.params, "layers": stacked}
    return _model("gpt2_scan", loss_with, params, plain.batch, plain.classes)


def _bottleneck_params(n_in: int, width: int, n_out: int, project: bool) -> Params:
    params = {
        "bn1": _norm_params(n_in),
        "conv1": _conv_params(1, n_in, width),
        "bn2": _norm_params(width),
        "conv2": _conv_params(3, width, width),
        "bn3": _norm_params(width),
        "conv3": _conv_params(1, width, n_out),
    }
    if project:
        params["project"] = _conv_params(1, n_in, n_out)
    return params


def _bottleneck(p: Params, x: jax.Array, stride: int) -> jax.Array:
    """Pre-activation bottleneck, [B, h, w, n_in] -> [B, h/stride, w/stride, n_out]."""
    h = jax.nn.relu(_batch_norm(p["bn1"], x))
    shortcut = _conv(p["project"], h, stride) if "project" in p else x
    h = _conv(p["conv1"], h)
    h = jax.nn.relu(_batch_norm(p["bn2"], h))
    h = _conv(p["conv2"], h, stride)
    h = jax.nn.relu(_batch_norm(p["bn3"], h))
    return shortcut + _conv(p["conv3"], h)


def resnet50(
    *,
    depths: Sequence[int] = (3, 4, 6, 3),
    width: int = 64,
    batch: int = 32,
    size: int = 224,
    classes: int = 1000,
    dtype: DTypeLike = jnp.float32,
) -> Model:
    """Pre-activation ResNet-50 with BatchNorm in training mode (running statistics are not kept).

    The batch is images [B, size, size, 3] and labels int32 [B].  The block is one residual bottleneck.
    """
    depths = tuple(depths)
    stages: list[list[Params]] = []
    n_in = width
    for stage, depth in enumerate(depths):
        inner = width * 2**stage
        n_out = 4 * inner
        blocks = []
        for i in range(depth):
            blocks.append(_bottleneck_params(n_in, inner, n_out, project=i == 0))
            n_in = n_out
        stages.append(blocks)
    params = {
        "stem": {"conv": _conv_params(7, 3, width)},
        "stages": stages,
        "norm": _norm_params(n_in),
        "head": _dense_params(n_in, classes),
    }

    def loss_with(wrap: Wrap) -> Loss:
        @wrap
        def block(p: Params, x: jax.Array) -> jax.Array:
            return _bottleneck(p, x, stride=1)

        @wrap
        def downsampling_block(p: Params, x: jax.Array) -> jax.Array:
            return _bottleneck(p, x, stride=2)

        def loss(params: Params, batch: Batch) -> jax.Array:
            x = batch["images"].astype(dtype)
            x = _conv(params["stem"]["conv"], x, stride=2)
            x = _max_pool(x, size=3, stride=2)
            for stage, blocks in enumerate(params["stages"]):
                for i, p in enumerate(blocks):
                    x = downsampling_block(p, x) if stage > 0 and i == 0 else block(p, x)
            x = jax.nn.relu(_batch_norm(params["norm"], x))
            x = jnp.mean(x, axis=(1, 2))  # [B, n_out]
            return _cross_entropy(_dense(params["head"], x), batch["labels"])

        return loss

    inputs = {"images": _f32(batch, size, size, 3), "labels": _i32(batch)}
    return _model("resnet50", loss_with, params, inputs, classes)


def _double_conv_params(n_in: int, n_out: int) -> Params:
    return {
        "conv1": _conv_params(3, n_in, n_out),
        "bn1": _norm_params(n_out),
        "conv2": _conv_params(3, n_out, n_out),
        "bn2": _norm_params(n_out),
    }


def _double_conv(p: Params, x: jax.Array, groups: int) -> jax.Array:
    """Two 3x3 convolutions with normalisation and relu, [B, h, w, n_in] -> [B, h, w, n_out]; 0 groups for BatchNorm."""

    def norm(p: Params, x: jax.Array) -> jax.Array:
        return _group_norm(p, x, groups) if groups else _batch_norm(p, x)

    x = jax.nn.relu(norm(p["bn1"], _conv(p["conv1"], x)))
    return jax.nn.relu(norm(p["bn2"], _conv(p["conv2"], x)))


def unet(
    *,
    levels: int = 4,
    width: int = 64,
    batch: int = 8,
    size: int = 128,
    channels: int = 3,
    classes: int = 10,
    groups: int = 0,
    dtype: DTypeLike = jnp.float32,
) -> Model:
    """U-Net: `levels` levels down to a bottom of ``width * 2**levels`` channels and back up, with skips.

    ``groups`` is the number of groups of GroupNorm; 0 is BatchNorm in training mode.
    The batch is images [B, size, size, channels] and labels int32 [B, size, size].  The blocks are the double
    convolution of each level on the way down, and on the way up the level's upsampling, joining with the skip
    and double convolution.
    """
    widths = [width * 2**level for level in range(levels)]
    bottom = width * 2**levels
    params = {
        "down": [_double_conv_params(n_in, n) for n_in, n in zip([channels, *widths[:-1]], widths, strict=True)],
        "bottom": _double_conv_params(widths[-1], bottom),
        "up": [
            {"conv_up": _conv_params(2, 2 * n, n), "double_conv": _double_conv_params(2 * n, n)}
            for n in reversed(widths)
        ],
        "head": _dense_params(width, classes),
    }

    def loss_with(wrap: Wrap) -> Loss:
        @wrap
        def double_conv(p: Params, x: jax.Array) -> jax.Array:
            return _double_conv(p, x, groups)

        @wrap
        def up_level(p: Params, x: jax.Array, skip: jax.Array) -> jax.Array:
            """x [B, h, w, 2n] and skip [B, 2h, 2w, n] -> [B, 2h, 2w, n]."""
            x = _upsample(p["conv_up"], x)
            return _double_conv(p["double_conv"], jnp.concatenate([skip, x], axis=-1), groups)

        def loss(params: Params, batch: Batch) -> jax.Array:
            x = batch["images"].astype(dtype)
            skips = []
            for p in params["down"]:
                x = double_conv(p, x)
                skips.append(x)
                x = _max_pool(x, size=2, stride=2)
            x = double_conv(params["bottom"], x)
            for p, skip in zip(params["up"], reversed(skips), strict=True):
                x = up_level(p, x, skip)
            return _cross_entropy(_dense(params["head"], x), batch["labels"])

        return loss

    inputs = {"images": _f32(batch, size, size, channels), "labels": _i32(batch, size, size)}
    return _model("unet", loss_with, params, inputs, classes)


def mlp(
    *,
    layers: int = 24,
    width: int = 2048,
    batch: int = 4096,
    classes: int = 1000,
    dtype: DTypeLike = jnp.float32,
) -> Model:
    """A plain MLP: gelu layers of equal width, without residual connections.

    The batch is inputs [B, width] and labels int32 [B].  The block is one layer.
    """
    params = {
        "layers": [{"hidden": _dense_params(width, width)} for _ in range(layers)],
        "head": _dense_params(width, classes),
    }

    def loss_with(wrap: Wrap) -> Loss:
        @wrap
        def layer(p: Params, x: jax.Array) -> jax.Array:
            return jax.nn.gelu(_dense(p["hidden"], x))

        def loss(params: Params, batch: Batch) -> jax.Array:
            x = batch["inputs"].astype(dtype)
            for p in params["layers"]:
                x = layer(p, x)
            return _cross_entropy(_dense(params["head"], x), batch["labels"])

        return loss

    inputs = {"inputs": _f32(batch, width), "labels": _i32(batch)}
    return _model("mlp", loss_with, params, inputs, classes)


def densenet(
    *,
    layers: int = 24,
    growth: int = 32,
    stem: int = 64,
    batch: int = 32,
    size: int = 32,
    classes: int = 10,
    dtype: DTypeLike = jnp.float32,
) -> Model:
    """One dense block: every layer reads the concatenation of the outputs of all layers before it.

    The batch is images [B, size, size, 3] and labels int32 [B].  The block is one dense layer, concatenation
    included, as in the usual memory-efficient DenseNet.
    """
    widths = [stem + growth * i for i in range(layers)]
    n_out = stem + growth * layers
    params = {
        "stem": {"conv": _conv_params(3, 3, stem)},
        "layers": [{"bn": _norm_params(n), "conv": _conv_params(3, n, growth)} for n in widths],
        "norm": _norm_params(n_out),
        "head": _dense_params(n_out, classes),
    }

    def loss_with(wrap: Wrap) -> Loss:
        @wrap
        def dense_layer(p: Params, *features: jax.Array) -> jax.Array:
            """Features [B, h, w, stem], [B, h, w, growth], ... -> [B, h, w, growth]."""
            x = jnp.concatenate(features, axis=-1)
            return _conv(p["conv"], jax.nn.relu(_batch_norm(p["bn"], x)))

        def loss(params: Params, batch: Batch) -> jax.Array:
            features = [_conv(params["stem"]["conv"], batch["images"].astype(dtype))]
            for p in params["layers"]:
                features.append(dense_layer(p, *features))
            x = jnp.concatenate(features, axis=-1)
            x = jax.nn.relu(_batch_norm(params["norm"], x))
            x = jnp.mean(x, axis=(1, 2))  # [B, n_out]
            return _cross_entropy(_dense(params["head"], x), batch["labels"])

        return loss

    inputs = {"images": _f32(batch, size, size, 3), "labels": _i32(batch)}
    return _model("densenet", loss_with, params, inputs, classes)


def vit(
    *,
    layers: int = 12,
    width: int = 384,
    heads: int = 6,
    patch: int = 16,
    batch: int = 32,
    size: int = 224,
    classes: int = 1000,
    dtype: DTypeLike = jnp.float32,
) -> Model:
    """ViT-S/16 with a class token (``width=768, heads=12`` is ViT-B/16).

    The batch is images [B, size, size, 3] and labels int32 [B].  The block is one transformer layer.
    """
    tokens = (size // patch) ** 2 + 1
    params = {
        "patch": {"kernel": _f32(patch, patch, 3, width), "bias": _f32(width)},
        "class_embed": _f32(width),
        "position_embed": _f32(tokens, width),
        "layers": [_transformer_params(width) for _ in range(layers)],
        "norm": _norm_params(width),
        "head": _dense_params(width, classes),
    }

    def loss_with(wrap: Wrap) -> Loss:
        @wrap
        def layer(p: Params, x: jax.Array) -> jax.Array:
            return _transformer_layer(p, x, heads, causal=False)

        def loss(params: Params, batch: Batch) -> jax.Array:
            x = batch["images"].astype(dtype)
            x = _conv(params["patch"], x, stride=patch, padding="VALID")
            x = x + params["patch"]["bias"].astype(dtype)
            b, rows, columns, d = x.shape
            x = x.reshape(b, rows * columns, d)
            class_token = jnp.broadcast_to(params["class_embed"].astype(dtype), (b, 1, d))
            x = jnp.concatenate([class_token, x], axis=1)  # [B, S, D]
            x = x + params["position_embed"].astype(dtype)
            for p in params["layers"]:
                x = layer(p, x)
            x = _layer_norm(params["norm"], x[:, 0])  # [B, D]
            return _cross_entropy(_dense(params["head"], x), batch["labels"])

        return loss

    inputs = {"images": _f32(batch, size, size, 3), "labels": _i32(batch)}
    return _model("vit", loss_with, params, inputs, classes)


def cyclegan(
    *,
    blocks: int = 9,
    width: int = 64,
    batch: int = 4,
    size: int = 128,
    channels: int = 3,
    dtype: DTypeLike = jnp.float32,
) -> Model:
    """The generator of CycleGAN: two strided convolutions, residual blocks, two transposed ones; instance norm.

    The batch is images and targets, both [B, size, size, channels]; the loss is the mean absolute difference, as in
    the cycle.  The block is one residual block.
    """
    wide = 4 * width
    params = {
        "stem": {"conv": _conv_params(7, channels, width), "norm": _norm_params(width)},
        "down": [{"conv": _conv_params(3, n, 2 * n), "norm": _norm_params(2 * n)} for n in (width, 2 * width)],
        "blocks": [
            {
                "conv1": _conv_params(3, wide, wide),
                "norm1": _norm_params(wide),
                "out": _conv_params(3, wide, wide),
                "norm2": _norm_params(wide),
            }
            for _ in range(blocks)
        ],
        "up": [{"conv": _conv_params(2, n, n // 2), "norm": _norm_params(n // 2)} for n in (wide, wide // 2)],
        "head": _conv_params(7, width, channels),
    }

    def loss_with(wrap: Wrap) -> Loss:
        @wrap
        def residual_block(p: Params, x: jax.Array) -> jax.Array:
            """[B, h, w, n] -> [B, h, w, n]."""
            h = jax.nn.relu(_instance_norm(p["norm1"], _conv(p["conv1"], x)))
            return x + _instance_norm(p["norm2"], _conv(p["out"], h))

        def loss(params: Params, batch: Batch) -> jax.Array:
            x = batch["images"].astype(dtype)
            x = jax.nn.relu(_instance_norm(params["stem"]["norm"], _conv(params["stem"]["conv"], x)))
            for p in params["down"]:
                x = jax.nn.relu(_instance_norm(p["norm"], _conv(p["conv"], x, stride=2)))
            for p in params["blocks"]:
                x = residual_block(p, x)
            for p in params["up"]:
                x = jax.nn.relu(_instance_norm(p["norm"], _upsample(p["conv"], x)))
            x = jnp.tanh(_conv(params["head"], x))
            return jnp.mean(jnp.abs(x.astype(jnp.float32) - batch["targets"]))

        return loss

    inputs = {"images": _f32(batch, size, size, channels), "targets": _f32(batch, size, size, channels)}
    return _model("cyclegan", loss_with, params, inputs, 1)


def chain(
    *,
    layers: int = 1000,
    width: int = 256,
    hidden: int = 256,
    batch: int = 256,
    classes: int = 10,
    dtype: DTypeLike = jnp.float32,
) -> Model:
    """A long chain of residual MLP blocks, ``x + gelu(x @ W1) @ W2``.

    The batch is inputs [B, width] and labels int32 [B].  The block is one residual MLP.
    """
    params = {
        "layers": [
            {"up": {"kernel": _f32(width, hidden)}, "out": {"kernel": _f32(hidden, width)}} for _ in range(layers)
        ],
        "head": _dense_params(width, classes),
    }

    def loss_with(wrap: Wrap) -> Loss:
        @wrap
        def block(p: Params, x: jax.Array) -> jax.Array:
            h = jax.nn.gelu(x @ p["up"]["kernel"].astype(x.dtype))
            return x + h @ p["out"]["kernel"].astype(x.dtype)

        def loss(params: Params, batch: Batch) -> jax.Array:
            x = batch["inputs"].astype(dtype)
            for p in params["layers"]:
                x = block(p, x)
            return _cross_entropy(_dense(params["head"], x), batch["labels"])

        return loss

    inputs = {"inputs": _f32(batch, width), "labels": _i32(batch)}
    return _model("chain", loss_with, params, inputs, classes)


MODELS: dict[str, Callable[..., Model]] = {
    "gpt2": gpt2,
    "gpt2_scan": gpt2_scan,
    "resnet50": resnet50,
    "unet": unet,
    "mlp": mlp,
    "densenet": densenet,
    "vit": vit,
    "cyclegan": cyclegan,
    "chain": chain,
}

_SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"layers": 2, "width": 32, "heads": 2, "batch": 2, "sequence": 16, "vocab": 64},
    "gpt2_scan": {"layers": 6, "width": 32, "heads": 2, "batch": 2, "sequence": 16, "vocab": 64},
    "resnet50": {"depths": (1, 2, 1), "width": 8, "batch": 4, "size": 32, "classes": 10},
    "unet": {"levels": 2, "width": 8, "batch": 2, "size": 16, "classes": 3},
    "mlp": {"layers": 4, "width": 32, "batch": 16, "classes": 10},
    "densenet": {"layers": 4, "growth": 4, "stem": 8, "batch": 4, "size": 8, "classes": 10},
    "vit": {"layers": 2, "width": 32, "heads": 2, "patch": 8, "batch": 2, "size": 32, "classes": 10},
    "cyclegan": {"blocks": 3, "width": 4, "batch": 2, "size": 16},
    "chain": {"layers": 12, "width": 16, "hidden": 16, "batch": 8, "classes": 10},
}


def small(name: str, *, dtype: DTypeLike = jnp.float32) -> Model:
    """The model called `name` in `MODELS` at a tiny size, for quick tests."""
    return MODELS[name](**_SMALL[name], dtype=dtype)


def _standard_deviation(path: Sequence[str], shape: tuple[int, ...], branches: int) -> float:
    """Initial standard deviation of the weight at `path`; `branches` counts the model's residual branches."""
    leaf, module = path[-1], path[-2] if len(path) > 1 else ""
    if leaf.endswith("_embed"):
        return 0.02
    gain = 1.0
    if module == "head":
        gain = 0.1  # the first predictions are nearly uniform
    elif module == "out":
        gain = 1 / math.sqrt(branches)  # the last weight of a residual branch: the sum keeps its scale
    elif module == "hidden":
        gain = 1.53  # keeps the second moment through a gelu
    elif module.startswith("conv"):
        gain = math.sqrt(2)  # keeps the second moment through a relu
    return gain / math.sqrt(math.prod(shape[:-1]))


def concrete(model: Model, seed: int = 0) -> tuple[Params, Batch]:
    """Random parameters and a random batch for `model`: ``model.loss(*concrete(model))`` runs.

    Weights are normal at a scale that keeps activations of order one, norm scales are ones and biases zeros;
    images and inputs are standard normal, tokens and labels uniform in ``[0, model.classes)``.
    """
    rng = np.random.default_rng(seed)

    def names(path: tuple[Any, ...]) -> list[str]:
        return [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]

    def is_branch_end(path: tuple[Any, ...]) -> bool:
        return names(path)[-2:] == ["out", "kernel"]

    def weight(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        keys = names(path)
        if keys[-1] == "scale":
            return jnp.ones(leaf.shape, leaf.dtype)
        if keys[-1] == "bias":
            return jnp.zeros(leaf.shape, leaf.dtype)
        values = rng.standard_normal(leaf.shape, dtype=np.float32)
        values *= np.float32(_standard_deviation(keys, leaf.shape, branches))
        return jnp.asarray(values, leaf.dtype)

    def data(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jnp.asarray(rng.integers(0, model.classes, leaf.shape), leaf.dtype)
        return jnp.asarray(rng.standard_normal(leaf.shape, dtype=np.float32), leaf.dtype)

    leaves = jax.tree_util.tree_leaves_with_path(model.params)
    branches = sum(is_branch_end(path) for path, _ in leaves)
    params = jax.tree_util.tree_map_with_path(weight, model.params)
    return params, jax.tree_util.tree_map(data, model.batch)
