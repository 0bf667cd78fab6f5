"""Put the arguments of a program on a target.

In: pytrees of avals or arrays, a ``Target``.
Out: the same trees with ``ShapeDtypeStruct`` leaves, sharded so that XLA compiles for the target.

Where no argument has a sharding, JAX compiles for the default device without a word; so avals for any other
device get one. For the default device they get none, as in the user's own call.

Limits: only meshes (``NamedSharding``) are moved from one backend to another, device by device in order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from remat_plan import _compat
from remat_plan.verify.targets import Target, resolve

DEVICE, HOST = "device", "pinned_host"
"""JAX's names of the memory of a device, and of its host's."""


def in_memory(leaf: Any, memory: str, target: Target) -> Sharding:
    """The sharding of an array, or of the type of one, in a memory of a target."""
    sharding = getattr(leaf, "sharding", None)
    if isinstance(sharding, Sharding):
        return sharding.with_memory_kind(memory)
    return SingleDeviceSharding(target.device, memory_kind=memory)


def place(args: tuple[Any, ...], target: Target) -> tuple[Any, ...]:
    """Make every array leaf an aval, with a sharding where JAX would else compile for another device."""
    leaves, tree = jax.tree.flatten(tuple(args))
    default: Sharding | None = None
    if target.device != resolve(None).device and not any(map(_is_laid_out, leaves)):
        default = SingleDeviceSharding(target.device)
    return jax.tree.unflatten(tree, [_placed(leaf, default, target) for leaf in leaves])


def place_shardings(shardings: Any, target: Target) -> Any:
    """The shardings of a tree, their meshes laid over a target's devices."""

    def one(sharding: Any) -> Any:
        return _moved(sharding, target) if isinstance(sharding, Sharding) else sharding

    return jax.tree.map(one, shardings, is_leaf=lambda x: x is None or isinstance(x, Sharding))


def laid_out(tree: Any, shardings: Sequence[Sharding | None]) -> Any:
    """The types of a tree, those of unknown place where a compiled program wants them (see ``CompiledMemory``)."""
    leaves, structure = jax.tree.flatten(tree)
    if len(leaves) != len(shardings):
        return tree
    pairs = zip(leaves, shardings, strict=True)
    return jax.tree.unflatten(structure, [x.update(sharding=s) if x.sharding is None and s else x for x, s in pairs])


def device_bytes(tree: Any) -> int:
    """Bytes of the array leaves of a tree on one device, without those in its host's memory."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if _is_aval(leaf) and getattr(sharding, "memory_kind", None) != HOST:
            shape = sharding.shard_shape(leaf.shape) if isinstance(sharding, Sharding) else leaf.shape
            total += math.prod(shape) * leaf.dtype.itemsize
    return total


def returned_bytes(arguments: Any, donated: Any, results: Any) -> tuple[int, int]:
    """Bytes of the results of a step on one device, and those of them that are in the memory of donated arguments.

    A result takes the place of a donated argument of its shape and type while there is one. Of others, those that do
    not say how they lie, as along automatic axes, lie as such an argument does: a new version of it, or its gradient.
    """
    sizes: dict[Any, int] = {}
    free: dict[Any, list[int]] = defaultdict(list)
    for leaf, is_donated in zip(jax.tree.leaves(arguments), jax.tree.leaves(donated), strict=True):
        if _is_aval(leaf):
            size_bytes = sizes.setdefault((leaf.shape, leaf.dtype), device_bytes(leaf))
            if is_donated:
                free[leaf.shape, leaf.dtype].append(size_bytes)
    total = shared = 0
    for leaf in filter(_is_aval, jax.tree.leaves(results)):
        key = leaf.shape, leaf.dtype
        if free[key]:
            size_bytes = free[key].pop(0)
            shared += size_bytes
        else:
            is_known = isinstance(getattr(leaf, "sharding", None), Sharding) or key not in sizes
            size_bytes = device_bytes(leaf) if is_known else sizes[key]
        total += size_bytes
    return total, shared


def platforms_of(shardings: Any) -> set[str]:
    """Platforms of the devices in a tree of shardings."""
    return {device.platform for leaf in jax.tree.leaves(shardings) for device in leaf.device_set}


def _is_aval(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _placed(leaf: Any, default: Sharding | None, target: Target) -> Any:
    if not _is_aval(leaf):
        return leaf
    sharding = default
    if _is_laid_out(leaf):
        sharding = _moved(leaf.sharding, target)
    elif getattr(getattr(leaf, "sharding", None), "memory_kind", None) == HOST:
        sharding = SingleDeviceSharding(target.device, memory_kind=HOST)
    weak = bool(getattr(leaf, "weak_type", False))
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)


def _is_laid_out(leaf: Any) -> bool:
    return _compat.lays_out(getattr(leaf, "sharding", None))


def _moved(sharding: Sharding, target: Target) -> Sharding:
    """Lay the mesh of a sharding over the target's devices, unless it is there already."""
    abstract = isinstance(sharding, NamedSharding) and not isinstance(sharding.mesh, Mesh)
    known = abstract and not jax.sharding.get_abstract_mesh().empty  # the mesh that ``jax.set_mesh`` has set
    if target.attached and (known or (not abstract and target.platform in platforms_of(sharding))):
        return sharding
    if not abstract and sharding.device_set <= set(target.devices):
        return sharding
    count = sharding.num_devices
    if not isinstance(sharding, NamedSharding) or count > len(target.devices):
        raise ValueError(
            f"Target {target.name!r} has {len(target.devices)} device(s), but an argument has {sharding}. "
            "Name a target with more devices, or use a NamedSharding on a smaller mesh."
        )
    mesh = sharding.mesh
    chosen = np.array(target.devices[:count]).reshape(tuple(mesh.shape.values()))
    kind = HOST if sharding.memory_kind == HOST else None
    moved = Mesh(chosen, mesh.axis_names, axis_types=mesh.axis_types)
    return NamedSharding(moved, sharding.spec, memory_kind=kind)
