"""Decoders as MaxText writes them, spread over many chips: scanned layers, named values, weights gathered in each.

In: a ``Shipped`` configuration. Out: `Model`, its loss as a ``shard_map`` over the chips; the same loss under the
policy of the authors.

As there: parameters in float32, spread by the width of the model over all chips that share a batch and stacked along
axis 1; cast to bfloat16 and gathered in each layer, again in the backward pass; everything else in bfloat16 but norms
and the loss; rotary positions before the names; layers under ``jax.checkpoint`` with ``prevent_cse=False`` inside the
scan; losses in parts under ``jax.checkpoint``, where the configuration names parts.

Not as there: one segment to a sequence, embeddings looked up, a plain cross-entropy; where two chips share a layer,
both have what is between layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.authors.record import identity, layer_norm, rms_norm
from benchmarks.models import Model, Wrap
from benchmarks.shipped.attention import attention
from benchmarks.shipped.configs import Shipped, Sizes
from remat_plan.verify.targets import resolve

AXES = "fsdp", "tensor"
_LOW = jnp.bfloat16
_LOCAL_THETA = 10_000.0
"""Base of the rotary positions of layers that see a window."""

Shapes = dict[str, tuple[tuple[int, ...], tuple[str | None, ...]]]
"""By name, the shape of an array and what axes of the mesh its axes are spread over."""


def _layer_shapes(c: Sizes) -> Shapes:
    """Of one layer."""
    d, h, k, m = c.width, c.heads, c.head_width, c.mlp
    norms = ("norm1", "norm2", *(("norm3", "norm4") if c.family == "gemma3" else ()))
    shapes: Shapes = dict.fromkeys(norms, ((d,), ("fsdp",)))
    shapes |= {"out": ((h, k, d), ("tensor", None, "fsdp")), "wo": ((m, d), ("tensor", "fsdp"))}
    if c.family == "gpt3":
        shapes |= {f"{name}_bias": ((d,), ("fsdp",)) for name in ("norm1", "norm2", "out", "wo")}
        shapes |= {"qkv": ((d, 3, h, k), ("fsdp", None, "tensor", None)), "wi": ((d, m), ("fsdp", "tensor"))}
        return shapes | {"qkv_bias": ((3, h, k), (None, "tensor", None)), "wi_bias": ((m,), ("tensor",))}
    for name, heads in (("query", h), ("key", c.kv_heads), ("value", c.kv_heads)):
        shapes[name] = (d, heads, k), ("fsdp", "tensor", None)
    if c.family == "gemma3":
        shapes |= {f"{name}_norm": ((k,), (None,)) for name in ("query", "key")}
    return shapes | dict.fromkeys(("wi_0", "wi_1"), ((d, m), ("fsdp", "tensor")))


def _shapes(c: Shipped) -> Shapes:
    """Of the whole model; layers of a block are apart, blocks are stacked along axis 1."""
    s = c.sizes
    shapes: Shapes = {"embedding": ((s.vocab, s.width), ("tensor", "fsdp")), "norm": ((s.width,), ("fsdp",))}
    if s.family == "llama":
        shapes["head"] = (s.width, s.vocab), ("fsdp", "tensor")
    if s.family == "gpt3":
        shapes |= {"positions": ((c.sequence, s.width), (None, "fsdp")), "norm_bias": ((s.width,), ("fsdp",))}
    blocks = s.layers // len(s.windows)
    for i in range(len(s.windows)):
        for name, (shape, spread) in _layer_shapes(s).items():
            shapes[f"layers/{i}/{name}"] = (shape[0], blocks, *shape[1:]), (spread[0], None, *spread[1:])
    return shapes


def _whole(w: jax.Array, axis: int = 0) -> jax.Array:
    """A weight in bfloat16, of all chips that share a batch."""
    return lax.all_gather(w.astype(_LOW), "fsdp", axis=axis, tiled=True)


def rotate(x: jax.Array, theta: float) -> jax.Array:
    """Rotary positions of [B, S, H, d]; the two halves of d are the two coordinates."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None, None] / theta ** (jnp.arange(half) / half)
    sin, cos = jnp.sin(angle).astype(x.dtype), jnp.cos(angle).astype(x.dtype)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _normed(c: Sizes, p: dict[str, jax.Array], name: str, x: jax.Array) -> jax.Array:
    scale = _whole(p[name])
    if c.family == "gpt3":
        return layer_norm({"scale": scale, "bias": _whole(p[f"{name}_bias"])}, x)
    return rms_norm(scale, x)


def _projections(c: Sizes, p: dict[str, jax.Array], x: jax.Array, window: int) -> list[jax.Array]:
    """Queries, keys and values."""
    scale = 1 / math.sqrt(c.head_width)
    if c.family == "gpt3":
        both = jnp.einsum("bsd,dnhk->bsnhk", x, _whole(p["qkv"])) + p["qkv_bias"].astype(_LOW)
        q, k, v = (checkpoint_name(both, "qkv_proj")[:, :, i] for i in range(3))
        return [q * scale, k, v]
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, _whole(p[name])) for name in ("query", "key", "value"))
    if c.family == "gemma3":
        q, k = rms_norm(p["query_norm"], q), rms_norm(p["key_norm"], k)
    theta = _LOCAL_THETA if window else c.theta
    return [rotate(q, theta) * (scale if c.family == "gemma3" else 1), rotate(k, theta), v]


def _mlp(c: Sizes, p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The part of one chip."""
    if c.family == "gpt3":
        h = jax.nn.gelu(checkpoint_name(x @ _whole(p["wi"]) + p["wi_bias"].astype(_LOW), "mlpwi"))
    else:
        gate, up = (checkpoint_name(x @ _whole(p[name]), f"mlp{name}") for name in ("wi_0", "wi_1"))
        h = (jax.nn.gelu if c.family == "gemma3" else jax.nn.silu)(gate) * up
    return h @ _whole(p["wo"], 1)


def _layer(c: Shipped, window: int, p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    s = c.sizes

    def summed(part: jax.Array, name: str) -> jax.Array:
        """The sum over chips that share a layer, with its bias."""
        whole = lax.psum(part, "tensor") if c.tensor > 1 else part
        return whole + _whole(p[f"{name}_bias"]) if s.family == "gpt3" else whole

    x = checkpoint_name(x, "decoder_layer_input")
    named = zip(_projections(s, p, _normed(s, p, "norm1", x), window), ("query", "key", "value"), strict=True)
    q, k, v = (checkpoint_name(value, f"{name}_proj") for value, name in named)
    mixed = jnp.einsum("bshk,hkd->bsd", attention(q, k, v, window, c.kernels), _whole(p["out"], 2))
    mixed = checkpoint_name(summed(mixed, "out"), "out_proj")
    x = x + (rms_norm(_whole(p["norm3"]), mixed) if s.family == "gemma3" else mixed)
    y = checkpoint_name(summed(_mlp(s, p, _normed(s, p, "norm2", x)), "wo"), "mlpwo")
    return x + (rms_norm(_whole(p["norm4"]), y) if s.family == "gemma3" else y)


def _summed_losses(c: Shipped, head: jax.Array, x: jax.Array, targets: jax.Array) -> jax.Array:
    """The sum of the losses of some tokens; chips that share a layer have each a part of the classes."""
    logits = (x @ head).astype(jnp.float32)
    classes, first = logits.shape[-1], 0
    top = lax.stop_gradient(jnp.max(logits, -1))
    if c.tensor > 1:
        first = lax.axis_index("tensor") * classes
        top = jnp.max(lax.all_gather(top, "tensor"), 0)
    total = jnp.sum(jnp.exp(logits - top[:, None]), -1)
    picked = jnp.sum(jnp.where(targets[:, None] == first + jnp.arange(classes), logits, 0.0), -1)
    if c.tensor > 1:
        total, picked = lax.psum((total, picked), "tensor")
    return jnp.sum(jnp.log(total) + top - picked)


def _embedded(c: Shipped, params: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
    """What goes into the first layer."""
    table = _whole(params["embedding"], 1)
    if c.tensor > 1:
        own = tokens - lax.axis_index("tensor") * table.shape[0]
        there = (own >= 0) & (own < table.shape[0])
        x = lax.psum(jnp.where(there[..., None], table[jnp.where(there, own, 0)], 0), "tensor")
    else:
        x = table[tokens]
    if c.sizes.family == "gpt3":
        x = x + _whole(params["positions"], 1)
    return x * math.sqrt(c.sizes.width) if c.sizes.family == "gemma3" else x


def _loss_of_one(c: Shipped, wrap: Wrap, tiles: int, params: dict[str, jax.Array], batch: Any) -> jax.Array:
    """The loss as one chip computes it."""
    s, blocks = c.sizes, range(len(c.sizes.windows))

    @wrap
    def block(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
        for i in blocks:
            start = f"layers/{i}/"
            x = _layer(c, s.windows[i], {n.removeprefix(start): w for n, w in p.items() if n.startswith(start)}, x)
        return x

    layers = {name: jnp.moveaxis(w, 1, 0) for name, w in params.items() if name.startswith("layers/")}
    x = lax.scan(lambda x, p: (block(x, p), None), _embedded(c, params, batch["tokens"]), layers)[0]
    x = _normed(s, params, "norm", x).reshape(-1, s.width)
    head = _whole(params["head"]) if s.family == "llama" else _whole(params["embedding"], 1).T
    targets = batch["targets"].reshape(-1)
    if tiles == 1:
        total = _summed_losses(c, head, x, targets)
    else:
        part = jax.checkpoint(partial(_summed_losses, c, head), prevent_cse=False)
        cut = x.reshape(tiles, -1, s.width), targets.reshape(tiles, -1)
        total = lax.scan(lambda total, xs: (total + part(*xs), None), jnp.float32(0), cut)[0]
    return lax.psum(total, "fsdp") / (targets.size * lax.axis_size("fsdp"))


def policy(c: Shipped) -> Wrap:
    """``jax.checkpoint`` as the authors use it on a layer."""
    if not c.kept and not c.moved:
        return partial(jax.checkpoint, prevent_cse=False)
    rule = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=list(c.kept),
        names_which_can_be_offloaded=list(c.moved),
        offload_src="device",
        offload_dst="pinned_host",
    )
    return partial(jax.checkpoint, prevent_cse=False, policy=rule)


def build(c: Shipped) -> tuple[Model, Callable[..., jax.Array]]:
    """The model with nothing computed again, and its loss as the authors compute it."""
    devices = np.array(resolve(c.target).devices)
    kind = AxisType.Explicit if devices.size > 1 else AxisType.Auto  # types say what is spread
    mesh = Mesh(devices.reshape(-1, c.tensor), AXES, axis_types=(kind,) * 2)
    shapes = _shapes(c)
    specs = {name: P(*spread) for name, (_, spread) in shapes.items()}

    def placed(shape: tuple[int, ...], dtype: Any, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    def loss_with(wrap: Wrap, tiles: int = 1) -> Callable[..., jax.Array]:
        local = partial(_loss_of_one, c, wrap, tiles)
        return jax.shard_map(local, mesh=mesh, in_specs=(specs, P("fsdp")), out_specs=P(), check_vma=False)

    params = {name: placed(shape, jnp.float32, specs[name]) for name, (shape, _) in shapes.items()}
    tokens = placed((c.batch * mesh.shape["fsdp"], c.sequence), jnp.int32, P("fsdp"))
    batch = {"tokens": tokens, "targets": tokens}
    model = Model(c.sizes.family, loss_with(identity), params, batch, loss_with, c.sizes.vocab)
    return model, loss_with(policy(c), c.tiles)
