"""Random heads of language models: from hidden states to a loss, in the ways that people write them.

In: a seed. Out: ``Head``: a loss of (parameters, batch), and arguments. Everything that is differentiated is among the
parameters: hidden states, weights, and what else the head was drawn with.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax


@dataclass(frozen=True)
class Head:
    """A loss of ``args``, and what it is made of, in words; ``coarse``: some of it is in 16 bits."""

    loss: Callable[..., Any]
    args: tuple[Any, Any]
    words: tuple[str, ...]
    has_aux: bool
    coarse: bool


def normal(rng, *shape):
    """Numbers that do not saturate what is made of them."""
    return jnp.asarray(np.asarray(rng.normal(size=shape) * 0.5, np.float32))


def shared(p, x):
    return x


def dense(p, x):
    return jax.nn.gelu(x @ p["dense"])


def rms_norm(p, x):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * p["scale"]


def layer_norm(p, x):
    return jax.nn.standardize(x) * p["scale"] + x


BEFORE = {f.__name__: f for f in (shared, dense, rms_norm, layer_norm)}


def product(p, x):
    return x @ p["w"]


def with_bias(p, x):
    return x @ p["w"] + p["bias"]


def tied(p, x):
    """The embedding is read twice: where the hidden states are made, and here."""
    return jnp.einsum("...d,vd->...v", x, p["embedding"])


def attended(p, x):
    return lax.dot_general(x, p["embedding"], (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


LOGITS = {f.__name__: f for f in (product, with_bias, tied, attended)}


def log_softmax(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]


def logsumexp(logits, labels):
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]


def integer_labels(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def one_hot(logits, labels):
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, logits.shape[-1]))


def by_hand(logits, labels):
    high = lax.stop_gradient(jnp.max(logits, -1, keepdims=True))
    total = jnp.sum(jnp.exp(logits - high), -1)
    return jnp.log(total) - jnp.sum((logits - high) * (labels[..., None] == jnp.arange(logits.shape[-1])), -1)


def smoothed(logits, labels):
    rows = jax.nn.log_softmax(logits)
    return -0.9 * jnp.take_along_axis(rows, labels[..., None], -1)[..., 0] - 0.1 * jnp.mean(rows, -1)


def focal(logits, labels):
    found = jnp.sum(jax.nn.softmax(logits) * jax.nn.one_hot(labels, logits.shape[-1]), -1)
    return -((1 - found) ** 2) * jnp.log(found)


LOSSES = {f.__name__: f for f in (log_softmax, logsumexp, integer_labels, one_hot, by_hand, smoothed, focal)}


def nothing(p, b, x, labels):
    return jnp.ones(labels.shape)


def ignored(p, b, x, labels):
    return labels > 1


def given(p, b, x, labels):
    return b["weights"].reshape(labels.shape)


def learned(p, b, x, labels):
    """The weights are differentiated."""
    return jax.nn.softplus(p["weights"]).reshape(labels.shape)


def gated(p, b, x, labels):
    """The weights are made of the hidden states."""
    return jax.nn.sigmoid(x @ p["gate"])


def shortened(p, b, x, labels):
    """Only the first of the tokens count."""
    return (jnp.arange(labels.size) < b["length"]).reshape(labels.shape)


WEIGHTS = {f.__name__: f for f in (nothing, ignored, given, learned, gated, shortened)}


def mean(rows, weights):
    return jnp.mean(rows * weights)


def total(rows, weights):
    return jnp.sum(rows * weights)


def weighted(rows, weights):
    return jnp.sum(rows * weights) / jnp.sum(weights)


def selected(rows, weights):
    return jnp.sum(jnp.where(weights > 0, rows, 0) * weights) / jnp.maximum(jnp.sum(weights), 1)


def of_means(rows, weights):
    """The mean over sequences of the mean of each."""
    return jnp.mean(jnp.sum(rows * weights, -1) / (jnp.sum(weights, -1) + 1e-3))


def by_norm(rows, weights):
    return jnp.vdot(rows, weights) / jnp.sqrt(jnp.sum(weights * weights) + 1.0)


ENDS = {f.__name__: f for f in (mean, total, weighted, selected, of_means, by_norm)}


def alone(value, logits, labels, rows):
    return value


def accuracy(value, logits, labels, rows):
    return value, jnp.mean(jnp.argmax(logits, -1) == labels)


def per_token(value, logits, labels, rows):
    return value, {"rows": rows, "worst": jnp.max(rows)}


def perplexity(value, logits, labels, rows):
    return value, (jnp.exp(value), jnp.sum(labels > 1))


BESIDE = {f.__name__: f for f in (alone, accuracy, per_token, perplexity)}

TYPES = {"f32": (jnp.float32, jnp.float32), "bf16 states": (jnp.bfloat16, jnp.float32), "bf16": (jnp.bfloat16,) * 2}


def draw_head(seed):
    """The head of a seed."""
    draw = random.Random(seed)
    rng = np.random.default_rng(seed)

    def one_of(table, often=0.0):
        name = next(iter(table)) if draw.random() < often else draw.choice(list(table))
        return name, table[name]

    (first, before), (how, logits_of), (form, loss_of) = one_of(BEFORE, 0.3), one_of(LOGITS), one_of(LOSSES)
    (which, weights_of), (end, end_of) = one_of(WEIGHTS), one_of(ENDS)
    (aux, beside), (types, (low, weights_type)) = one_of(BESIDE, 0.6), one_of(TYPES, 0.7)
    is_merged, is_capped, is_wide = draw.random() < 0.4, draw.random() < 0.3, draw.random() < 0.8
    has_penalty, has_temperature, is_scaled = (draw.random() < 0.25 for _ in range(3))
    is_shifted = draw.random() < 0.15
    batch, length, width, words = draw.randint(1, 4), draw.randint(3, 9), draw.randint(3, 6), draw.randint(4, 17)
    labels = jnp.asarray(rng.integers(0, words, (batch, length)), jnp.int32)
    params = {
        "x": normal(rng, batch, length, width).astype(low),
        "w": normal(rng, width, words).astype(weights_type),
        "embedding": normal(rng, words, width).astype(weights_type),
        "dense": normal(rng, width, width).astype(weights_type),
        "bias": normal(rng, words).astype(weights_type),
        "scale": 1 + normal(rng, width).astype(weights_type),
        "weights": normal(rng, batch, length),
        "gate": normal(rng, width),
        "temperature": jnp.float32(1.3),
    }
    given_batch = {
        "labels": labels,
        "weights": jnp.asarray(rng.uniform(size=(batch, length)), jnp.float32),
        "length": jnp.int32(batch * length - 2),
    }

    def loss(p, b):
        x, labels = p["x"], b["labels"]
        if how in ("tied", "attended"):
            x = x + p["embedding"][labels].astype(x.dtype)
        if is_merged:
            x, labels = x.reshape(-1, x.shape[-1]), labels.reshape(-1)
        x = before(p, x)
        logits = logits_of(p, x)
        weights = weights_of(p, b, x, labels)
        if is_wide:
            logits = logits.astype(jnp.float32)
        if has_temperature:
            logits = logits / p["temperature"]
        if is_capped:
            logits = 2.0 * jnp.tanh(logits / 2.0)
        if is_shifted and logits.shape[-2] > 1:
            logits, labels, weights = logits[..., :-1, :], labels[..., 1:], weights[..., 1:]
        rows = loss_of(logits, labels)
        if has_penalty:
            rows = rows + 0.1 * jnp.square(jax.nn.logsumexp(logits, -1))
        value = end_of(rows, weights)
        if is_scaled:
            value = 0.01 * jnp.sum(jnp.square(p["w"])) + value * 3.0
        return beside(value.astype(jnp.float32), logits, labels, rows)

    said = [first, how, form, which, end, aux, types, f"{batch}x{length}x{width}x{words}"]
    named = ("merged", is_merged), ("capped", is_capped), ("wide", is_wide), ("penalty", has_penalty)
    more = ("temperature", has_temperature), ("scaled", is_scaled), ("shifted", is_shifted)
    said += [name for name, holds in (*named, *more) if holds]
    return Head(loss, (params, given_batch), tuple(said), aux != "alone", types != "f32")
