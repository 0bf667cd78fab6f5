"""Small losses in every structure that a program can have: loops, conditionals, calls with a meaning of their own.

``STRUCTURED`` maps a name to ``(loss, arguments)``. Each loss is differentiated in its first argument, takes well
under a second to run, and keeps enough from layer to layer that there is something to recompute. For tests of every
strategy on every structure.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, ROWS = 6, 8, 32

STRUCTURED: dict[str, tuple[Callable[..., jax.Array], tuple[Any, ...]]] = {}


def array(*shape: int, seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


WEIGHTS = {
    "up": array(LAYERS, WIDTH, 4 * WIDTH, seed=1) / 3,
    "down": array(LAYERS, 4 * WIDTH, WIDTH, seed=2) / 6,
    "scale": 1 + array(LAYERS, WIDTH, seed=3) / 10,
}
X = array(ROWS, WIDTH, seed=4)


def member(*args: Any) -> Callable[[Callable[..., jax.Array]], Callable[..., jax.Array]]:
    def add(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        STRUCTURED[fn.__name__] = fn, args
        return fn

    return add


def layer(p, x):
    """A residual MLP with a norm: what it keeps is about ten times its input."""
    h = x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5) * p["scale"]
    return x + jnp.tanh(jnp.exp(-((h @ p["up"]) ** 2))) @ p["down"]


def at(params, i):
    return jax.tree.map(lambda p: p[i], params)


def run_scan(p, x, body=layer):
    return lax.scan(lambda x, q: (body(q, x), None), x, p)[0]


def end(x):
    return jnp.mean(jnp.sin(x) ** 2)


@member(WEIGHTS, X)
def unrolled(p, x):
    for i in range(LAYERS):
        x = layer(at(p, i), x)
    return end(x)


@member(WEIGHTS, X)
def scanned(p, x):
    return end(run_scan(p, x))


@member(WEIGHTS, X)
def scanned_with_outputs(p, x):
    """Outputs of every step are read, and the scan runs backwards."""

    def body(carry, q):
        x, total = carry
        x = layer(q, x)
        return (x, total + jnp.mean(x)), jnp.mean(jnp.cos(x), 0)

    (x, total), means = lax.scan(body, (x, 0.0), p, reverse=True)
    return end(x) + jnp.sum(means**2) + jnp.sin(total)


@member(WEIGHTS, X)
def nested_scan(p, x):
    groups = jax.tree.map(lambda q: q.reshape(2, LAYERS // 2, *q.shape[1:]), p)
    return end(run_scan(groups, x, run_scan))


@member(WEIGHTS, X)
def scans_between_layers(p, x):
    """Two scans with layers before, between and after them."""
    x = layer(at(p, 0), x)
    x = run_scan(at(p, slice(1, 3)), x)
    x = layer(at(p, 3), x)
    return end(layer(at(p, 5), run_scan(at(p, slice(4, 5)), x)))


@member(WEIGHTS, X)
def scan_in_cond(p, x):
    def few(p, x):
        return run_scan(at(p, slice(0, 3)), x)

    return end(lax.cond(jnp.sum(x) > 1e6, few, run_scan, p, x))


@member(WEIGHTS, X)
def cond_in_scan(p, x):
    def body(q, x):
        return lax.cond(jnp.sum(x) > 0, layer, lambda q, x: jnp.cos(layer(q, x)), q, x)

    return end(run_scan(p, x, body))


@member(WEIGHTS, X)
def switch_in_scan(p, x):
    def body(numbered, x):
        number, q = numbered
        branches = [layer, lambda q, x: x, lambda q, x: layer(q, layer(q, x))]
        return lax.switch(number % 3, branches, q, x)

    return end(run_scan((jnp.arange(LAYERS), p), x, body))


@member(WEIGHTS, X)
def conds_of_layers(p, x):
    """Unrolled layers, every one of which may be skipped."""
    for i in range(LAYERS):
        x = lax.cond(x[0, 0] > -1e6 * i, layer, lambda q, x: x, at(p, i), x)
    return end(x)


@member(WEIGHTS, X)
def while_forward_only(p, x):
    """A loop that nothing is differentiated through, before layers that read what it found."""
    start = lax.stop_gradient(x)

    def step(state):
        i, y = state
        return i + 1, jnp.tanh(y @ y.T @ y / ROWS)

    _, mask = lax.while_loop(lambda state: (state[0] < 3) & (jnp.sum(state[1]) < 1e6), step, (0, start))
    for i in range(LAYERS):
        x = layer(at(p, i), x) * mask
    return end(x)


@member(WEIGHTS, X)
def while_in_scan(p, x):
    """Such a loop in the body of a scan."""

    def body(q, x):
        steps = lax.while_loop(lambda n: n < 3, lambda n: n + 1, jnp.argmax(lax.stop_gradient(x)) * 0)
        return layer(q, x) * steps / 3

    return end(run_scan(p, x, body))


def one_device(*names: str) -> Mesh:
    return Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(names)), names)


@member(WEIGHTS, X)
def shard_map_of_layers(p, x):
    """The layers inside ``shard_map``, the loss a mean over the axis."""

    def local(p, x):
        for i in range(LAYERS):
            x = layer(at(p, i), x)
        return lax.pmean(end(x), "data")

    return jax.shard_map(local, mesh=one_device("data"), in_specs=(P(), P("data")), out_specs=P())(p, x)


@member(WEIGHTS, X)
def shard_map_in_scan(p, x):
    spec = P("data")
    body = jax.shard_map(layer, mesh=one_device("data"), in_specs=(P(), spec), out_specs=spec)
    return end(run_scan(p, x, body))


@member(WEIGHTS, X)
def jit_with_shardings(p, x):
    """Every layer a ``jit`` with shardings of its own, and a constraint behind it."""
    rows = NamedSharding(one_device("data"), P("data"))
    everywhere = NamedSharding(one_device("data"), P())
    body = jax.jit(layer, in_shardings=(everywhere, rows), out_shardings=rows)
    for i in range(LAYERS):
        x = lax.with_sharding_constraint(body(at(p, i), x), rows)
    return end(x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def normalised(epsilon, x, scale):
    return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + epsilon) * scale


def _normalised_forward(epsilon, x, scale):
    inverse = lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + epsilon)
    return x * inverse * scale, (x * inverse, inverse, scale)


def _normalised_backward(epsilon, residuals, g):
    y, inverse, scale = residuals
    h = g * scale
    return inverse * (h - y * jnp.mean(h * y, -1, keepdims=True)), jnp.sum(g * y, 0)


normalised.defvjp(_normalised_forward, _normalised_backward)


@member(WEIGHTS, X)
def custom_vjp_in_scan(p, x):
    def body(q, x):
        return x + jnp.tanh(normalised(1e-5, x, q["scale"]) @ q["up"]) @ q["down"]

    return end(run_scan(p, x, body))


@member(WEIGHTS, X)
def checkpoint_in_scan(p, x):
    """A checkpoint that the author put into the body."""
    return end(run_scan(p, x, jax.checkpoint(layer, prevent_cse=False)))
