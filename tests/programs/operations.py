"""Operations of random programs: anything that takes matrices and returns one of the same shape.

In: matrices of any floating dtype, and what a program is ``Given`` beside them. Out: a matrix.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from tests.zoo import cubed


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Given:
    """What every step of a program can read.

    Attributes:
        p: parameters: ``"w"`` [3, D, D], ``"b"`` [D], ``"none"`` [0, D].
        labels: integers [4], from 0 to 5.
        key, raw: a typed random key and a raw one.
    """

    p: Any
    labels: Any
    key: Any
    raw: Any


SEEN: list[tuple[int, float]] = []
"""What operations with effects have told: the number of the step, and a figure of its operand."""


def tell(number, figure):
    SEEN.append((int(number), round(float(figure), 3)))


def like(x, y):
    """``y`` in the shape and dtype of ``x``."""
    return jnp.broadcast_to(y, x.shape).astype(x.dtype)


def wide(x):
    """At least 32 bits: Fourier transforms and linear algebra have no less."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


UNARY = {
    "tanh": jnp.tanh,
    "exp": lambda x: jnp.exp(-(x**2)),
    "relu": jax.nn.relu,
    "cubed": lambda x: cubed(jnp.sin(x)),
    "softmax": jax.nn.softmax,
    "rsqrt": lambda x: lax.rsqrt(1.5 + x**2),
    "sqrt": lambda x: jnp.sqrt(1.0 + jnp.abs(x)),
    "logistic": jax.nn.sigmoid,
    "mean": lambda x: like(x, jnp.mean(x, 1, keepdims=True)),
    "norm": lambda x: (x - x.mean(0)) / (1.0 + x.var(0)),
    "max": lambda x: like(x, jnp.max(x, 0)),
    "reverse": lambda x: x[::-1, ::-1],
    "transposed": lambda x: x.T.reshape(x.shape),
    "halves": lambda x: jnp.concatenate(jnp.split(x, 2, axis=1)[::-1], axis=1),
    "padded": lambda x: jnp.pad(x, ((0, 1), (0, 0)))[1:],
    "cumsum": lambda x: jnp.cumsum(x, 1) / x.shape[1],
    "sorted": lambda x: jnp.sort(x, 1),
    "rolled": lambda x: jnp.roll(x, 1, 0).at[0].mul(0.5),
    "stopped": lax.stop_gradient,
    "row_scan": lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), x[0], x)[1],
    "jitted": jax.jit(lambda x: jnp.sin(x) * 2),
    "checkpointed": jax.checkpoint(lambda x: jnp.sin(jnp.tanh(x)) * x),
    "constants": lambda x: x * jnp.cos(jnp.arange(x.shape[1], dtype=x.dtype) + 0.5),
    "complex": lambda x: jnp.fft.ifft(jnp.fft.fft(wide(x)) * (1 + 0.3j)).real.astype(x.dtype),
    "phases": lambda x: jnp.abs(jnp.exp(1j * wide(x)) + lax.complex(wide(x), wide(x) * 0.5 + 1)).astype(x.dtype),
    "twice": lambda x: jnp.concatenate([x, x, x])[1 : x.shape[0] + 1],
    "narrow": lambda x: x.astype(jnp.float32).astype(x.dtype),
    "empty": lambda x: jnp.concatenate([jnp.tanh(x[:0]), x]) + jnp.sum(x[:0] ** 2),
    "barrier": lax.optimization_barrier,
    "barely": lambda x: jnp.where(x > 100, jnp.inf, x),
}
"""Of one matrix, in its own dtype."""

HALVES = {"bfloat16": lambda x: x.astype(jnp.bfloat16), "float16": lambda x: x.astype(jnp.float16)}
"""What makes a matrix one of 16 bits."""

BINARY = {
    "add": lambda x, y: (x + y) / 2,
    "mul": lambda x, y: x * jnp.tanh(y),
    "div": lambda x, y: x / (1.0 + y**2),
    "max2": jnp.maximum,
    "where": lambda x, y: jnp.where(x > y, x, 0.5 * y),
    "attend": lambda x, y: jax.nn.softmax(x @ y.T / x.shape[1]) @ y,
    "outer": lambda x, y: jnp.einsum("bi,bj->bij", x, jnp.tanh(y)).sum(2) / x.shape[1],
    "row_set": lambda x, y: x.at[0].set(y[-1].astype(x.dtype)),
    "many_set": lambda x, y: x.at[jnp.asarray([0, 2, 2]), 1].add(y[:3, 0].astype(x.dtype)),
    "slice_set": lambda x, y: lax.dynamic_update_slice(x, y[:2].astype(x.dtype), (1, 0)),
}
"""Of two matrices."""


def dot(given, x, number):
    return x @ given.p["w"][number % 3].astype(x.dtype)


def dropout(given, x, number):
    keep = jax.random.bernoulli(jax.random.fold_in(given.key, number), 0.8, x.shape)
    return jnp.where(keep, x / 0.8, 0.0)


def raw_noise(given, x, number):
    one, other = jax.random.split(jax.random.fold_in(given.raw, number))
    return x * jax.random.uniform(one, x.shape, x.dtype, 0.5, 1.5) + jax.random.normal(other, x.shape, x.dtype)


def moved(given, x, number):
    """Written and read at places that are known when it runs."""
    start = given.labels[number % 4] % 2
    return lax.dynamic_update_slice(x, jnp.sin(lax.dynamic_slice(x, (start, 0), (2, x.shape[1]))), (1 - start, 0))


def printed(given, x, number):
    jax.debug.callback(tell, number, jnp.sum(x.astype(jnp.float32)))
    return jnp.sin(x)


def ordered(given, x, number):
    io_callback(tell, None, number, jnp.sum(lax.stop_gradient(x).astype(jnp.float32)), ordered=True)
    return jnp.cos(x)


def looked_up(given, x, number):
    """The host's answer, which no gradient goes through."""
    shape = jax.ShapeDtypeStruct(x.shape, bool)
    found = jax.pure_callback(lambda a: np.asarray(a) > 0, shape, lax.stop_gradient(x), vmap_method="expand_dims")
    return jnp.where(found, x, 0.5 * x)


OTHER = {
    "dot": dot,
    "bias": lambda given, x, number: x + given.p["b"].astype(x.dtype),
    "gather": lambda given, x, number: x[(given.labels[0] + jnp.arange(x.shape[0])) % x.shape[0]],
    "table": lambda given, x, number: x + given.p["b"][given.labels % 4].sum().astype(x.dtype),
    "integers": lambda given, x, number: x * (1 + (given.labels.sum() * jnp.arange(x.shape[1]) % 3)).astype(x.dtype),
    "nothing": lambda given, x, number: x + jnp.sum(given.p["none"]).astype(x.dtype),
    "dropout": dropout,
    "raw_noise": raw_noise,
    "moved": moved,
    "looked_up": looked_up,
}
"""Of a matrix, what is given, and the number of the step."""

EFFECTS = {"printed": printed, "ordered": ordered}
"""The same, with effects."""
