"""What several architectures share. In: arrays. Out: arrays, or shapes of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models import Model

Params = Any


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """A float32 array of this shape."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layer_norm(x: jax.Array) -> jax.Array:
    """Rows with mean 0 and variance 1."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def rms_norm(x: jax.Array) -> jax.Array:
    """Rows with a root mean square of 1."""
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def mlp_params(width: int, hidden: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a perceptron with one hidden layer."""
    return {"up": f32(width, hidden), "down": f32(hidden, width)}


def mlp(p: Params, x: jax.Array) -> jax.Array:
    """The perceptron."""
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def stack(name: str, layer: Callable[..., jax.Array], params: list[Params], *batch: jax.ShapeDtypeStruct) -> Model:
    """Layers one after the other, and the mean square of what comes out.

    Args:
        name: of the model.
        layer: ``layer(params, x, *rest) -> x``.
        params: shapes, for each layer.
        batch: shapes of ``x`` and what else each layer reads.
    """

    def loss_with(wrap: Callable[[Any], Any]) -> Callable[..., jax.Array]:
        wrapped = wrap(layer)

        def loss(params: list[Params], batch: tuple[jax.Array, ...]) -> jax.Array:
            x, *rest = batch
            for p in params:
                x = wrapped(p, x, *rest)
            return (x**2).mean()

        return loss

    return Model(name, loss_with(lambda f: f), params, batch, loss_with, classes=1)
