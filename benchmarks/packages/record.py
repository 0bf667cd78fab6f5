"""What a package's model is: a loss, and arrays to call it on."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PACKAGES: dict[str, Entry] = {}
"""Names of models to what makes them; modules of this folder fill it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A loss of someone else's model.

    Attributes:
        loss: ``loss(params, batch)`` gives a scalar; it is differentiated in ``params``.
        params, batch: pytrees of arrays.
    """

    loss: Callable[[Any, Any], jax.Array]
    params: Any
    batch: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """A model that a package has.

    Attributes:
        package: the name of the distribution, as one installs it.
        what: the model in a few words.
        make: makes it; raises ``ImportError`` where the package is missing.
    """

    package: str
    what: str
    make: Callable[[], Problem]


Make = Callable[[], Problem]


def problem(package: str, what: str) -> Callable[[Make], Make]:
    """Register a function that makes a problem, under its own name."""

    def add(make: Make) -> Make:
        PACKAGES[make.__name__] = Entry(package, what, make)
        return make

    return add


def load(name: str) -> Any:
    """Import a module whose package may not be installed; type checkers need not have it."""
    return importlib.import_module(name)


def normal(*shape: int, seed: int = 0) -> jax.Array:
    """Float32 normals."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def integers(high: int, *shape: int, seed: int = 0) -> jax.Array:
    """Int32 from 0 to below ``high``."""
    return jnp.asarray(np.random.default_rng(seed).integers(high, size=shape), jnp.int32)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean over all positions: [..., C], [...] -> []."""
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), labels[..., None], -1))
