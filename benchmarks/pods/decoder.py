"""A Llama decoder as a user writes it for a pod: ``jax.jit`` over a mesh of automatic axes, constraints on activations.

In: a ``Pod``. Out: a training step with AdamW, its state and batch as shapes with shardings; nothing is made.

Parameters and optimizer state are in float32, spread over both axes of the mesh, layers stacked for a ``lax.scan``;
they are cast to bfloat16 in each layer, where the compiler gathers them along ``fsdp``. Between layers a sequence is
spread along ``tensor`` (as in https://arxiv.org/abs/2205.05198), inside them heads and hidden units are. Attention is
a kernel that each chip runs on its own heads, inside ``jax.shard_map``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.authors.record import Wrap, rms_norm
from benchmarks.longest import flash, scores
from benchmarks.pods.configs import Pod
from benchmarks.shipped import attention as splash
from benchmarks.shipped.decoders import rotate
from remat_plan.verify.targets import resolve

AXES = "fsdp", "tensor"
_LOW = jnp.bfloat16
_THETA = 500_000.0
_BETWEEN = P("fsdp", "tensor", None)
"""Activations between layers: a sequence is spread, so that what each layer keeps of its input is."""

ADAMW = optax.adamw(1e-4, weight_decay=0.1)


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes:
        loss: given how layers are wrapped, the loss of parameters and tokens.
        step: given that and how the loss is marked, the training step.
        state, batch: its arguments, as shapes.
    """

    loss: Callable[[Wrap], Callable[..., jax.Array]]
    step: Callable[[Wrap, Wrap], Callable[..., Any]]
    state: Any
    batch: Any


def _specs(pod: Pod) -> dict[str, tuple[tuple[int, ...], P]]:
    """Shapes of the parameters, and how they are spread."""
    c = pod.sizes
    layer = {
        "norm1": ((c.width,), (None,)),
        "query": ((c.width, c.heads, c.head_width), ("fsdp", "tensor", None)),
        "key": ((c.width, c.kv_heads, c.head_width), ("fsdp", "tensor", None)),
        "value": ((c.width, c.kv_heads, c.head_width), ("fsdp", "tensor", None)),
        "out": ((c.heads, c.head_width, c.width), ("tensor", None, "fsdp")),
        "norm2": ((c.width,), (None,)),
        "gate": ((c.width, c.mlp), ("fsdp", "tensor")),
        "up": ((c.width, c.mlp), ("fsdp", "tensor")),
        "down": ((c.mlp, c.width), ("tensor", "fsdp")),
    }
    stacked = {f"layers/{n}": ((c.layers, *shape), P(None, *spread)) for n, (shape, spread) in layer.items()}
    return stacked | {
        "embedding": ((c.vocab, c.width), P("tensor", "fsdp")),
        "norm": ((c.width,), P(None)),
        "head": ((c.width, c.vocab), P("fsdp", "tensor")),
    }


def _attend(pod: Pod, mesh: Mesh, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention, each chip on its own heads."""

    def own(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        if pod.kernels == "splash":
            return splash.attention(q * q.shape[-1] ** -0.5, k, v, 0, True)
        return (flash if pod.kernels == "flash" else scores)(q, k, v)

    heads = P("fsdp", None, "tensor")
    return jax.shard_map(own, mesh=mesh, in_specs=(heads,) * 3, out_specs=heads, check_vma=False)(q, k, v)


def loss_of(pod: Pod, mesh: Mesh, wrap: Wrap) -> Callable[..., jax.Array]:
    """The mean loss of the next token; arguments: parameters, [B, S + 1] tokens."""

    def lay(x: jax.Array, *spread: Any) -> jax.Array:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spread)))

    def layer(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
        w = {name: weight.astype(_LOW) for name, weight in p.items()}
        h = lay(rms_norm(w["norm1"], x), "fsdp", None, None)
        q, k, v = (
            lay(jnp.einsum("bsd,dhk->bshk", h, w[name]), "fsdp", None, "tensor") for name in ("query", "key", "value")
        )
        mixed = _attend(pod, mesh, rotate(q, _THETA), rotate(k, _THETA), v)
        x = x + lay(jnp.einsum("bshk,hkd->bsd", mixed, w["out"]), *_BETWEEN)
        h = lay(rms_norm(w["norm2"], x), "fsdp", None, None)
        hidden = lay(jax.nn.silu(h @ w["gate"]) * (h @ w["up"]), "fsdp", None, "tensor")
        return x + lay(hidden @ w["down"], *_BETWEEN)

    def loss(params: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
        layers = {name.partition("/")[2]: w for name, w in params.items() if "/" in name}
        run = wrap(layer)
        x = lay(params["embedding"].astype(_LOW)[tokens[:, :-1]], *_BETWEEN)
        x, _ = lax.scan(lambda x, p: (run(x, p), None), x, layers)
        x = lay(rms_norm(params["norm"].astype(_LOW), x), "fsdp", None, None)
        logits = lay(x @ params["head"].astype(_LOW), "fsdp", None, "tensor").astype(jnp.float32)
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    return loss


def by_hand(layer: Callable[..., Any]) -> Callable[..., Any]:
    """What everybody does to a layer inside a scan."""
    return jax.checkpoint(layer, prevent_cse=False)


def build(pod: Pod) -> Training:
    """The training step of a pod, with its state and batch as shapes."""
    devices = np.array(resolve(pod.target).devices[: pod.chips])
    mesh = Mesh(devices.reshape(pod.fsdp, pod.tensor), AXES, axis_types=(AxisType.Auto,) * 2)

    def placed(shape: tuple[int, ...], dtype: Any, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    params = {name: placed(shape, jnp.float32, spec) for name, (shape, spec) in _specs(pod).items()}
    shapes = jax.eval_shape(ADAMW.init, params)
    opt = optax.tree.map_params(ADAMW, lambda s, p: placed(s.shape, s.dtype, p.sharding.spec), shapes, params,
                                transform_non_params=lambda s: placed(s.shape, s.dtype, P()))  # fmt: skip
    batch = placed((pod.batch * pod.chips, pod.sequence + 1), jnp.int32, P("fsdp", None))
    loss = partial(loss_of, pod, mesh)
    return Training(loss, partial(_step_of, loss), (params, opt), batch)


def _step_of(loss_with: Callable[[Wrap], Callable[..., jax.Array]], wrap: Wrap, mark: Wrap) -> Callable[..., Any]:
    loss = mark(loss_with(wrap))

    def train_step(state: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        params, opt = state
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        updates, opt = ADAMW.update(gradients, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    return train_step
