"""Graph and equivariant networks: Jraph, e3nn-jax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.packages.record import Problem, integers, load, normal, problem

NODES, EDGES = 256, 1024


@problem("jraph", "message passing, four rounds")
def jraph_network() -> Problem:
    """Width 32 on 256 nodes and 1024 edges; segment sums."""
    jraph = load("jraph")

    def mlp(p: Any, *parts: Any) -> jax.Array:
        return jnp.tanh(jnp.concatenate([x for x in parts if x is not None], -1) @ p["in"]) @ p["out"]

    def loss(params: Any, batch: Any) -> jax.Array:
        nodes, edges, senders, receivers = batch
        graph = jraph.GraphsTuple(
            nodes, edges, receivers, senders, jnp.zeros((1, 1)), jnp.array([NODES]), jnp.array([EDGES])
        )
        for p in params:
            graph = jraph.GraphNetwork(
                lambda edge, sent, received, _, p=p: edge + mlp(p["edge"], edge, sent, received),
                lambda node, sent, received, _, p=p: node + mlp(p["node"], node, sent, received),
            )(graph)
        return jnp.mean(graph.nodes**2)

    def weights(seed: int) -> dict[str, jax.Array]:
        return {"in": normal(96, 64, seed=seed) / 10, "out": normal(64, 32, seed=seed + 1) / 8}

    params = [{"edge": weights(4 * i), "node": weights(4 * i + 2)} for i in range(4)]
    ends = integers(NODES, EDGES), integers(NODES, EDGES, seed=1)
    return Problem(loss, params, (normal(NODES, 32), normal(EDGES, 32, seed=1), *ends))


@problem("e3nn-jax", "equivariant convolution on points")
def e3nn_points() -> Problem:
    """Three tensor-product layers in Linen on 64 points and 256 pairs."""
    e3nn, linen = load("e3nn_jax"), load("flax.linen")
    inner = e3nn.Irreps("16x0e + 8x1o + 4x2e")

    def linear(x: Any) -> Any:
        return e3nn.flax.Linear(inner, force_irreps_out=True)(x)

    class Layer(linen.Module):
        @linen.compact
        def __call__(self, x: Any, ways: Any, senders: jax.Array, receivers: jax.Array) -> Any:
            sent = e3nn.tensor_product(x[senders], e3nn.spherical_harmonics("0e + 1o + 2e", ways, True))
            sent = linear(sent)
            got = e3nn.scatter_sum(sent, dst=receivers, output_size=x.shape[0]) / 4
            return e3nn.scalar_activation(linear(got + linear(x)), [jnp.tanh, None, None])

    class Net(linen.Module):
        @linen.compact
        def __call__(self, points: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
            ways = e3nn.IrrepsArray("1o", points[receivers] - points[senders])
            x = e3nn.IrrepsArray("4x0e", jnp.ones((len(points), 4)))
            for _ in range(3):
                x = Layer()(x, ways, senders, receivers)
            return e3nn.flax.Linear("0e")(x).array

    net = Net()
    batch = normal(64, 3), integers(64, 256), integers(64, 256, seed=1)
    params = net.init(jax.random.key(0), *batch)
    return Problem(lambda params, batch: jnp.mean(net.apply(params, *batch) ** 2), params, batch)
