"""Pytrees taken apart into arrays, which ``jax.jit`` is given, and all else.

In: arguments or results of a training step. Out: ``Split``.

Leaves that are no arrays (activation functions of an Equinox module, say) stay outside ``jax.jit``: they are part of
what is compiled, as in ``equinox.filter_jit``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from remat_plan.graph.frameworks import sort_leaves


@dataclass(frozen=True)
class Split:
    """A pytree taken apart: a tree of its arrays with None for all else, and all else."""

    arrays: Any
    tree: Any
    others: tuple[Any, ...]
    traced: tuple[bool, ...]

    @staticmethod
    def of(value: Any, is_static: bool = False) -> Split:
        """Take a value apart; a static one has no arrays."""
        leaves, tree = jax.tree.flatten(value)
        traced = tuple(traced and not is_static for traced, _ in sort_leaves(value))
        arrays = jax.tree.unflatten(tree, [x if t else None for x, t in zip(leaves, traced, strict=True)])
        others = tuple(x for x, t in zip(leaves, traced, strict=True) if not t)
        return Split(None if is_static else arrays, tree, (value,) if is_static else others, traced)

    def joined(self, arrays: Any, is_static: bool = False) -> Any:
        """The pytree with other arrays in it."""
        if is_static:
            return self.others[0]
        left, others = iter(jax.tree.leaves(arrays)), iter(self.others)
        return jax.tree.unflatten(self.tree, [next(left) if t else next(others) for t in self.traced])

    def without_arrays(self) -> Split:
        """What may be kept: no array is."""
        return replace(self, arrays=None)
