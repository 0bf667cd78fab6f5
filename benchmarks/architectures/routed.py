"""Models that send rows to where indices say. In: nothing. Out: ``Model``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.architectures.layers import Params, f32, stack
from benchmarks.models import Model


def messages(layers: int = 4, nodes: int = 8192, edges: int = 65536, width: int = 64) -> Model:
    """Messages along the edges of a graph, summed at its nodes (Gilmer et al. 2017, arXiv 1704.01212)."""

    def layer(p: Params, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        sent = jax.nn.silu(jnp.concatenate([x[senders], x[receivers]], -1) @ p["edge"])
        summed = jax.ops.segment_sum(sent, receivers, nodes)
        return x + jax.nn.silu(jnp.concatenate([x, summed], -1) @ p["node"])

    shapes = {"edge": f32(2 * width, width), "node": f32(2 * width, width)}
    ends = [jax.ShapeDtypeStruct((edges,), jnp.int32)] * 2
    return stack("messages", layer, [shapes] * layers, f32(nodes, width), *ends)


def graph_attention(layers: int = 3, nodes: int = 4096, edges: int = 32768, heads: int = 4, size: int = 32) -> Model:
    """Weights of edges, normalised at each node (Veličković et al. 2018, arXiv 1710.10903)."""
    width = heads * size

    def layer(p: Params, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        h = (x @ p["in"]).reshape(nodes, heads, size)
        scores = jax.nn.leaky_relu((h * p["from"]).sum(-1)[senders] + (h * p["to"]).sum(-1)[receivers])
        largest = jax.ops.segment_max(lax.stop_gradient(scores), receivers, nodes)
        weights = jnp.exp(scores - largest[receivers])
        shares = weights / (jax.ops.segment_sum(weights, receivers, nodes)[receivers] + 1e-9)
        summed = jax.ops.segment_sum(h[senders] * shares[..., None], receivers, nodes)
        return x + jax.nn.elu(summed.reshape(nodes, width))

    ends = [jax.ShapeDtypeStruct((edges,), jnp.int32)] * 2
    shapes = {"in": f32(width, width), "from": f32(heads, size), "to": f32(heads, size)}
    return stack("graph_attention", layer, [shapes] * layers, f32(nodes, width), *ends)


def experts(layers: int = 3, tokens: int = 4096, width: int = 256, count: int = 8, chosen: int = 2) -> Model:
    """Tokens sorted by the experts that were chosen for them, each expert with equal room (Shazeer et al. 2017)."""

    def layer(p: Params, x: jax.Array) -> jax.Array:
        weights, indices = lax.top_k(jax.nn.softmax(x @ p["router"]), chosen)
        order = jnp.argsort(indices.reshape(-1))
        h = x[order // chosen].reshape(count, -1, width)
        h = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", h, p["up"]))
        h = jnp.einsum("ecf,efd->ecd", h, p["down"]).reshape(-1, width)
        return x + jnp.zeros_like(x).at[order // chosen].add(h * weights.reshape(-1)[order][:, None])

    shapes = {"router": f32(width, count), "up": f32(count, width, 2 * width), "down": f32(count, 2 * width, width)}
    return stack("experts", layer, [shapes] * layers, f32(tokens, width))
