"""One equation run on a slice of an axis along which its elements are apart.

In: an equation, its ``Axis`` (of ``graph.axes``), a ``Slice``, and operands that are slices of it where the axis says
so, else whole. Out: results that are slices, or partial results.

Most primitives take the slice as it is; some are told the size of their result, and ``iota`` where the slice starts.
Equations that hold others run these on the slice one by one; the rule of a ``custom_jvp`` goes with it, so that all
derivatives are those of the whole equation.

Limits: the number of units must divide the extents of all dimensions along the axis; slices may be uneven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.axes import Axis, Inside, Place, inside_of, places_inside, rule_of, rule_places


@dataclass(frozen=True, slots=True)
class Slice:
    """``part`` of ``whole`` units of an axis, from unit ``start`` on (which may be traced)."""

    part: int
    whole: int
    start: Any

    def of(self, extent: int) -> int:
        """How many of so many elements are in the slice; ``extent`` is a multiple of ``whole``."""
        return extent * self.part // self.whole

    def first(self, extent: int) -> Any:
        """Which of so many elements is the first in the slice."""
        return self.start * (extent // self.whole)


def cut(value: Any, dimension: int, piece: Slice) -> Any:
    """Return a slice of a whole array."""
    extent = value.shape[dimension]
    first, size = piece.first(extent), piece.of(extent)
    if isinstance(first, int):
        return jax.lax.slice_in_dim(value, first, first + size, axis=dimension)
    return jax.lax.dynamic_slice_in_dim(value, first, size, dimension)


def run_slice(eqn: Any, args: Sequence[Any], axis: Axis, piece: Slice) -> list[Any]:
    """Run an equation on a slice.

    Args:
        eqn: the equation.
        args: slices where ``axis.operands`` has a dimension, else whole arrays.
        axis: the whole axis, as ``axis_of`` found it.
        piece: which slice.

    Returns:
        Slices where ``axis.results`` has a dimension, else partial results.

    Example:
        >>> import jax
        >>> from remat_plan.graph.axes import axis_of
        >>> numbers = jax.make_jaxpr(lambda: jax.lax.iota("int32", 8))().eqns[0]
        >>> run_slice(numbers, [], axis_of(numbers, [], [0]), Slice(3, 8, 2))
        [Array([2, 3, 4], dtype=int32)]
    """
    held = inside_of(eqn)
    if held is None:
        return _run_alone(eqn, args, axis, piece)
    places = places_inside(held, axis.operands, axis.results)
    assert places is not None, "the axis was found through what the equation holds"
    with _compat.in_place_of(eqn):
        if held.is_loop:
            return _run_scan(eqn, held, args, places, piece)
        if _compat.custom_jvp_jaxpr(eqn) is not None:
            return _run_custom_jvp(eqn, held, args, axis, places, piece)
        if _compat.checkpointed_jaxpr(eqn) is not None:
            return _compat.checkpointed_as(eqn, lambda *xs: _run_inside(held, xs, places, piece))(*args)
        return _run_inside(held, args, places, piece)


_SIZES = {
    "broadcast_in_dim": "shape",
    "dynamic_slice": "slice_sizes",
    "iota": "shape",
    "reshape": "new_sizes",
    "slice": "limit_indices",
}
"""Primitives that are told the size of their result, and by which parameter."""


def _run_alone(eqn: Any, args: Sequence[Any], axis: Axis, piece: Slice) -> list[Any]:
    name, params = eqn.primitive.name, dict(eqn.params)
    if name in _SIZES:
        params[_SIZES[name]] = _resized(params[_SIZES[name]], axis.results[0], piece)
    elif name == "gather" and axis.operands[0] not in (None, *params["dimension_numbers"].operand_batching_dims):
        params["slice_sizes"] = _resized(params["slice_sizes"], axis.operands[0], piece)
    if name != "iota" or params["dimension"] != axis.results[0]:
        return _compat.bind(eqn.replace(params=params), args)
    # as integers, then as what is asked for: a sum of rounded numbers would be rounded again
    dtype = params["dtype"]
    params["dtype"] = dtype if jax.numpy.issubdtype(dtype, jax.numpy.integer) else jax.numpy.dtype("int32")
    (numbers,) = _compat.bind(eqn.replace(params=params), args)
    first = piece.first(eqn.outvars[0].aval.shape[params["dimension"]])
    return [(numbers + jax.numpy.asarray(first, numbers.dtype)).astype(dtype)]


def _resized(sizes: Sequence[int], dimension: int | str | None, piece: Slice) -> tuple[int, ...]:
    return tuple([piece.of(n) if d == dimension else n for d, n in enumerate(sizes)])


def _run_inside(held: Inside, args: Sequence[Any], places: dict[Any, Place], piece: Slice) -> list[Any]:
    """Run equations on a slice, those that the axis does not reach as they are; constants are cut here."""

    def run(eqn: Any, values: Sequence[Any]) -> list[Any]:
        given = [places[v] for v in eqn.outvars if v in places]
        if not given:
            return _compat.bind(eqn, values)
        taken = [None if _compat.is_literal(a) else places.get(a) for a in eqn.invars]
        return run_slice(
            eqn, values, Axis(tuple([d if isinstance(d, int) else None for d in taken]), tuple(given)), piece
        )

    env = dict(zip(held.jaxpr.invars, args, strict=True))
    for variable, value in zip(held.jaxpr.constvars, held.constants, strict=True):
        place = places.get(variable)
        env[variable] = cut(value, place, piece) if isinstance(place, int) else value
    return _compat.run_equations(held.jaxpr.eqns, env, held.jaxpr.outvars, run)


def _run_scan(eqn: Any, held: Inside, args: Sequence[Any], places: dict[Any, Place], piece: Slice) -> list[Any]:
    consts = held.whole - held.carried

    def body(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        values = _run_inside(held, [*args[:consts], *carry, *row], places, piece)
        return values[: held.carried], values[held.carried :]

    options = {k: eqn.params[k] for k in ("length", "reverse", "unroll")}
    carry, rows = jax.lax.scan(body, list(args[consts : held.whole]), list(args[held.whole :]), **options)
    return [*carry, *rows]


def _run_custom_jvp(
    eqn: Any, held: Inside, args: Sequence[Any], axis: Axis, places: dict[Any, Place], piece: Slice
) -> list[Any]:
    """Run a function on a slice, with its rule on the same slice; ``start`` is an operand, since a rule runs later."""
    moves = [_compat.is_float(a.aval) for a in eqn.invars]
    floats = [_compat.is_float(v.aval) for v in eqn.outvars]

    @jax.custom_jvp
    def call(start: Any, *xs: Any) -> list[Any]:
        return _run_inside(held, xs, places, Slice(piece.part, piece.whole, start))

    @call.defjvp
    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        traced, within = rule_of(eqn), rule_places(eqn, axis)
        assert traced is not None
        assert within is not None, "the axis was found through the rule"
        start, *xs = primals
        moving = _compat.partition_list(moves, tangents[1:])[1]
        values = _run_inside(Inside(*traced), [*xs, *moving], within, Slice(piece.part, piece.whole, start))
        outputs, directions = values[: len(floats)], values[len(floats) :]
        still = [_compat.zero_tangent(x) for x, moved in zip(outputs, floats, strict=True) if not moved]
        return outputs, _compat.merge_lists(floats, still, directions)

    return list(call(piece.start, *args))
