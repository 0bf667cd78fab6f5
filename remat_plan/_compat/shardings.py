"""What JAX's types and calls say of devices: the part of ``_compat`` that is about meshes.

In: avals, shardings, equations. Out: plain functions with one meaning. Use them through ``_compat``.
"""

from __future__ import annotations

import inspect
from typing import Any

import jax

_STRUCT_PARAMETERS = frozenset(inspect.signature(jax.ShapeDtypeStruct.__init__).parameters)


def shard_shape(shape: tuple[int, ...], sharding: Any) -> tuple[int, ...]:
    """Return the shape of one device's part; axes that are manual already (inside ``shard_map``) do not count."""
    mesh, spec = getattr(sharding, "mesh", None), getattr(sharding, "spec", None)
    if mesh is None or spec is None or not mesh.axis_names:
        return shape
    manual = set(getattr(mesh, "manual_axes", ()))
    local = list(shape)
    for dim, entry in enumerate(spec):
        for name in entry if isinstance(entry, tuple) else (entry,):
            if isinstance(name, str) and name not in manual:
                local[dim] = -(-local[dim] // mesh.shape[name])
    return tuple(local)


def has_explicit_axes(sharding: Any) -> bool:
    """Tell whether a sharding is part of its value's type: on a mesh with explicit axes, named in it or not."""
    return any(kind.name == "Explicit" for kind in getattr(getattr(sharding, "mesh", None), "axis_types", ()))


def is_automatic(sharding: Any) -> bool:
    """Tell whether a sharding is on a mesh with automatic axes only: the compiler's business, and no part of a type."""
    kinds = getattr(getattr(sharding, "mesh", None), "axis_types", None) or ()
    return bool(kinds) and all(kind.name == "Auto" for kind in kinds)


def automatic_sharding(value: Any) -> Any:
    """Return the sharding of an array along automatic axes of several devices; None where it has none."""
    sharding: Any = value.sharding if isinstance(value, jax.Array) else None
    return sharding if is_automatic(sharding) and sharding.num_devices > 1 else None


def spread(struct: Any) -> tuple[Any, ...]:
    """Return how a sharding on a mesh lays out an array, however it is spelt: the mesh, and axes for each dimension."""
    mesh, spec = struct.sharding.mesh, tuple(struct.sharding.spec)
    axes = [entry if isinstance(entry, tuple) else () if entry is None else (entry,) for entry in spec]
    return (*mesh.shape.items(), *axes, *(() for _ in range(len(struct.shape) - len(axes))))


def under_automatic_axes() -> bool:
    """Tell whether a mesh of several devices with automatic axes is set (``jax.set_mesh``)."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.size > 1 and any(kind.name == "Auto" for kind in mesh.axis_types)


def has_shardings(eqn: Any) -> bool:
    """Tell whether a ``jit`` call carries shardings or layouts of its own, which inlining would lose."""
    for key in ("in_shardings", "out_shardings", "in_layouts", "out_layouts"):
        for item in eqn.params.get(key) or ():
            if item is not None and type(item).__name__ != "UnspecifiedValue":
                return True
    return False


def jit_arguments(eqn: Any) -> dict[str, Any]:
    """Return what ``jax.jit`` has to be told to make a call like this one."""
    found: dict[str, Any] = {"keep_unused": eqn.params.get("keep_unused", False)}
    for key in ("in_shardings", "out_shardings"):
        given = eqn.params.get(key) or ()
        found[key] = tuple(None if type(item).__name__ == "UnspecifiedValue" else item for item in given)
    if found["out_shardings"]:
        found["out_shardings"] = list(found["out_shardings"])  # a prefix of the list that the call returns
    return found


def shard_map_arguments(eqn: Any) -> dict[str, Any]:
    """Return what ``jax.shard_map`` has to be told to make a map like this one."""
    params = eqn.params
    return {
        "mesh": params["mesh"],
        "in_specs": tuple(params["in_specs"]),
        "out_specs": list(params["out_specs"]),
        "check_vma": params["check_vma"],
        "axis_names": set(params["newly_manual_axes"]),
    }


def varies(aval: Any) -> bool:
    """Tell whether a value differs between devices inside ``shard_map`` (its type says over which axes)."""
    kind = getattr(aval, "manual_axis_type", None)
    if kind is not None:
        return bool(kind.varying or kind.unreduced or kind.reduced)
    return bool(getattr(aval, "vma", ()))


def varying_axes(aval: Any) -> tuple[str, ...]:
    """Return the axes of a ``shard_map`` over which a value differs between devices."""
    kind = getattr(aval, "manual_axis_type", None)
    return tuple(sorted(kind.varying if kind is not None else getattr(aval, "vma", ()) or ()))


def struct(aval: Any) -> jax.ShapeDtypeStruct:
    """Return the ``ShapeDtypeStruct`` of an abstract value.

    What it varies over inside ``shard_map`` is kept, and so is a sharding that is part of its type, also where it names
    no axis: rules of derivatives look at the mesh.
    """
    more: dict[str, Any] = {}
    for name in ("manual_axis_type", "vma"):
        if name in _STRUCT_PARAMETERS and varies(aval):
            more[name] = getattr(aval, name)
    sharding = getattr(aval, "sharding", None)
    if "manual_axis_type" in more or has_explicit_axes(sharding):
        more["sharding"] = sharding
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False), **more)


def zeros(aval: Any, leading: tuple[int, ...] = ()) -> jax.Array:
    """Return zeros of a type, stacked in ``leading`` axes.

    Inside ``shard_map`` they vary over the same axes; where shardings are part of types, theirs is the same.
    """
    sharding = getattr(aval, "sharding", None)
    spec = getattr(sharding, "spec", None) or ()
    placed = None
    if sharding is not None and any(isinstance(entry, (str, tuple)) for entry in spec):
        placed = jax.NamedSharding(sharding.mesh, jax.P(*(None for _ in leading), *spec))
    empty = jax.numpy.zeros((*leading, *aval.shape), aval.dtype, out_sharding=placed)
    axes = varying_axes(aval)
    return jax.lax.pcast(empty, axes, to="varying") if axes else empty


def in_order(first: list[Any], second: list[Any]) -> tuple[list[Any], list[Any]]:
    """Say that ``first`` is computed before anything is made of ``second``; return both.

    Left out where values vary over different axes of a ``shard_map``: jax 0.10 would make them all vary alike.
    """
    if len({varying_axes(jax.typeof(x)) for x in (*first, *second)}) > 1:
        return first, second
    return jax.lax.optimization_barrier((first, second))
