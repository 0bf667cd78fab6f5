"""What JAX's types, variables and traced values are, and what types and calls say of devices: a part of ``_compat``.

In: types, values, shardings, equations. Out: whether they are keys, references, tracers; what of them a derivative is
being taken of, or depends on others; what is said of meshes. Use these through ``_compat``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import core
from jax._src import config
from jax._src.core import extend_axis_env_nd, get_axis_env, to_concrete_value
from jax._src.interpreters import batching
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Literal
from jax.interpreters import partial_eval
from jax.sharding import AxisType


def is_ref(aval: Any) -> bool:
    """Tell whether a value is a mutable array (``jax.new_ref``)."""
    return "Ref" in type(aval).__name__


def is_float(aval: Any) -> bool:
    """Tell whether a value of this type has a tangent (floating point or complex)."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and is_float_dtype(dtype)


def is_real(aval: Any) -> bool:
    """Tell whether a type is of real floating-point numbers."""
    return is_float(aval) and aval.dtype.kind != "c"


@functools.cache  # asking JAX takes long
def is_float_dtype(dtype: Any) -> bool:
    """Tell whether values of this dtype have a tangent."""
    return bool(jax.numpy.issubdtype(dtype, np.inexact))


def is_key(aval: Any) -> bool:
    """Tell whether a value is made of random keys."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def is_threefry(aval: Any) -> bool:
    """Tell whether a value is made of random keys of Threefry."""
    return is_key(aval) and "fry" in str(aval.dtype)


def is_literal(atom: Any) -> bool:
    """Tell whether a jaxpr atom is a literal (a scalar written into the equation)."""
    return isinstance(atom, Literal)


def is_elementwise(primitive: Any) -> bool:
    """Tell whether a primitive works element by element: JAX batches it as those that do."""
    rule = batching.fancy_primitive_batchers.get(primitive)
    while isinstance(rule, functools.partial):
        rule = rule.func
    return rule in (batching.broadcast_batcher, batching.vectorized_batcher)


def custom_jvp_jaxpr(eqn: Any) -> Any | None:
    """Return the jaxpr of a function with a ``custom_jvp`` that is given all tangents; None for all other equations."""
    is_one = eqn.primitive.name == "custom_jvp_call" and not eqn.params["symbolic_zeros"]
    return eqn.params["call_jaxpr"] if is_one else None


def depending(eqns: Iterable[Any], variables: Iterable[Any]) -> set[Any]:
    """Return the variables that depend on some variables, and these."""
    found = set(variables)
    for eqn in eqns:
        if any(a in found for a in eqn.invars if not is_literal(a)):
            found.update(eqn.outvars)
    return found


def is_tracer(value: Any) -> bool:
    """Tell whether a value is being traced."""
    return isinstance(value, core.Tracer)


def concrete(value: Any) -> Any:
    """Return the array that a traced value stands for, where it has one (in a gradient outside of ``jax.jit``)."""
    return to_concrete_value(value)


def perturbed(values: Sequence[Any]) -> tuple[bool, ...] | None:
    """Tell which values carry a tangent, where a derivative is being taken of them; None where none is, or not yet.

    (Inside ``jax.jit``, or the body of a loop, a derivative may be taken of what was traced, later.)
    """
    staged = partial_eval.DynamicJaxprTracer
    places = [i for i, x in enumerate(values) if is_tracer(x) and not isinstance(x, staged) and is_float(x.aval)]
    noted: list[list[bool]] = []

    @jax.custom_jvp
    def probe(*floats: Any) -> tuple[Any, ...]:
        return floats

    @functools.partial(probe.defjvp, symbolic_zeros=True)
    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        noted.append([not isinstance(t, SymbolicZero) for t in tangents])
        return primals, tangents

    if places:
        probe(*[values[i] for i in places])
    if not noted:
        return None
    known = dict(zip(places, noted[0], strict=True))
    return tuple([known.get(i, False) for i in range(len(values))])


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


def lays_out(sharding: Any) -> bool:
    """Tell whether a sharding says more than which device: it spans several, or is part of its value's type."""
    return isinstance(sharding, jax.sharding.Sharding) and (sharding.num_devices > 1 or has_explicit_axes(sharding))


def automatic_sharding(value: Any) -> Any:
    """Return the sharding of an array along automatic axes of several devices; None where it has none."""
    sharding: Any = value.sharding if isinstance(value, jax.Array) else None
    return sharding if is_automatic(sharding) and sharding.num_devices > 1 else None


def spread(struct: Any) -> tuple[Any, ...]:
    """Return how a sharding on a mesh lays out an array, however it is spelt: the mesh, and axes for each dimension."""
    mesh, spec = struct.sharding.mesh, tuple(struct.sharding.spec)
    axes = [entry if isinstance(entry, tuple) else () if entry is None else (entry,) for entry in spec]
    return (*mesh.shape.items(), *axes, *(() for _ in range(len(struct.shape) - len(axes))))


def is_spread(sharding: Any, dimension: int) -> bool:
    """Tell whether a sharding spreads a dimension over devices; one that does not say how it lays out arrays may."""
    if sharding is None or getattr(sharding, "is_fully_replicated", False):
        return False
    spec = getattr(sharding, "spec", None)
    return spec is None or (dimension < len(spec) and spec[dimension] not in (None, (), jax.P.UNCONSTRAINED))


def under_automatic_axes() -> bool:
    """Tell whether a mesh of several devices with automatic axes is set (``jax.set_mesh``)."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.size > 1 and any(kind.name == "Auto" for kind in mesh.axis_types)


def has_shardings(eqn: Any) -> bool:
    """Tell whether a ``jit`` call carries shardings or layouts of its own, which inlining would lose."""
    keys = "in_shardings", "out_shardings", "in_layouts", "out_layouts"
    items = [item for key in keys for item in eqn.params.get(key) or ()]
    return any(item is not None and type(item).__name__ != "UnspecifiedValue" for item in items)


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


Making = Callable[[Callable[[], Any]], Any]
"""Makes something somewhere, by a function of nothing."""


def map_of(eqn: Any) -> Making:
    """Return what makes something as if inside a ``shard_map`` like an equation's."""
    given = shard_map_arguments(eqn)
    return _inside_maps(given["mesh"], given["axis_names"], given["check_vma"], {})


def maps_around() -> Making | None:
    """Return what makes something as if inside the maps that are being traced now, ``shard_map`` or ``vmap`` over named
    axes; None outside of any."""
    here, names = jax.sharding.get_abstract_mesh(), dict(get_axis_env().axis_sizes)
    axes = set(here.manual_axes)
    if not names:
        return None
    kinds = [AxisType.Auto if n in axes else kind for n, kind in zip(here.axis_names, here.axis_types, strict=True)]
    mesh = here.update(axis_types=tuple(kinds)) if axes else here
    others = {name: size for name, size in names.items() if name not in axes}
    return _inside_maps(mesh, axes, config._check_vma.value, others)


def _inside_maps(mesh: Any, axes: set[Any], checks: bool, others: Mapping[Any, int]) -> Making:
    """``mesh`` is mapped over ``axes``, ``others`` are those of ``vmap``: what is traced of collectives and of varying
    values has a meaning there only."""

    def inside(make: Callable[[], Any]) -> Any:
        if axes.union(others) <= get_axis_env().axis_sizes.keys():  # a part of what is traced there is made anew
            return make()
        made: list[Any] = []

        def body() -> tuple[()]:
            with extend_axis_env_nd(others.items()):
                made.append(make())
            return ()

        given: dict[str, Any] = {"in_specs": (), "out_specs": (), "axis_names": axes, "check_vma": checks}
        jax.make_jaxpr(jax.shard_map(body, mesh=mesh, **given) if axes else body)()
        return made[0]

    return inside


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


def wide(aval: Any) -> Any:
    """Return the type in which values of a type are summed: of floating point, 32 bits at least."""
    is_low = jax.numpy.issubdtype(aval.dtype, jax.numpy.floating) and jax.numpy.finfo(aval.dtype).bits < 32
    return aval.update(dtype=jax.numpy.dtype(jax.numpy.float32)) if is_low else aval


def in_order(first: list[Any], second: list[Any]) -> tuple[list[Any], list[Any]]:
    """Say that ``first`` is computed before anything is made of ``second``; return both.

    Left out where values vary over different axes of a ``shard_map``: jax 0.10 would make them all vary alike.
    """
    if len({varying_axes(jax.typeof(x)) for x in (*first, *second)}) > 1:
        return first, second
    return jax.lax.optimization_barrier((first, second))
