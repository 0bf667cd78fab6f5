"""Single kernels, and the cycles that XLA:TPU estimates for them on a v5e, for each 1024 elements."""

import jax.numpy as jnp


def mapped(x):
    return (x.astype(jnp.float32) * 2.5 + 1).astype(x.dtype)


def summed(x):
    return jnp.sum(x.astype(jnp.float32) * 2 + 1, 0)


def bare_sum(x):
    return jnp.sum(x, 0)


def summed_and_mapped(x):
    return jnp.sum(x, 0), x * 3


def mapped_twice(x):
    return x * 3, jnp.maximum(x, 0)


KERNELS = [
    (mapped, "bfloat16", 18.6),
    (mapped, "float32", 18.9),
    (summed, "bfloat16", 14.4),
    (summed, "float32", 18.5),
    (bare_sum, "float32", 30.8),
    (summed_and_mapped, "float32", 19.0),
    (mapped_twice, "bfloat16", 23.2),
    (mapped_twice, "float32", 27.9),
]
"""``test_accuracy_accelerators`` holds these figures to the compiler, ``test_hardware`` the evaluator to these figures."""
