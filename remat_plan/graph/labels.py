"""Which dimensions of an equation's operands and results are one axis, for equations that hold no others.

In: an equation. Out: ``Labels``; None for a primitive that there is no rule for.

There is one rule for each class of primitives. It labels every dimension of the operands and results; equal labels are
one axis. A dimension without a label is not apart: to make one element along it, elements elsewhere are read. A label
that a result lacks is reduced away, so each slice gives a partial result. Which primitives work element by
element, JAX's own batching rules tell.

Limits: what is not known is not apart: random bits, convolutions along space, reshapes but for the slowest dimension
of what they merge or split, gathers and scatters along what they index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from remat_plan import _compat

Row: TypeAlias = tuple[int | None, ...]
"""The labels of the dimensions of one operand or result."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of all dimensions, and how partial results are joined along those that are reduced away."""

    operands: list[Row]
    results: list[Row]
    joins: dict[int, str] = field(default_factory=dict)


def labels_of(eqn: Any) -> Labels | None:
    """Return the labels of an equation that holds no others, by the rule of its primitive."""
    name = eqn.primitive.name
    if name in _RULES:
        return _RULES[name](eqn)
    if name in _TRAILING:
        return _leading(eqn, _TRAILING[name])
    # what makes random bits batches like an element-wise primitive, but the bits depend on the whole shape
    if name in _ELEMENTWISE or (_compat.is_elementwise(eqn.primitive) and not name.startswith("random_")):
        return _elementwise(eqn)
    return None


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


def _shapes(eqn: Any) -> list[tuple[int, ...]]:
    return list(map(_shape, eqn.invars))


def _without(rank: int, mixed: Collection[int]) -> Row:
    """Labels of an array, none for some dimensions."""
    return tuple([None if d in mixed else d for d in range(rank)])


def _alike(eqn: Any, mixed: Collection[int]) -> Labels | None:
    """Operands and results have the same dimensions, of which some are mixed; other operands are scalars."""
    shapes = _shapes(eqn)
    rank = len(shapes[0])
    if any(len(s) not in (0, rank) for s in shapes) or any(len(_shape(v)) != rank for v in eqn.outvars):
        return None
    row = _without(rank, mixed)
    return Labels([row if s else () for s in shapes], [row] * len(eqn.outvars))


def _elementwise(eqn: Any) -> Labels | None:
    """Operands have the shape of the results, but for extents of one, or are scalars."""
    shape, shapes = _shape(eqn.outvars[0]), _shapes(eqn)
    if "shape" in eqn.params or any(_shape(v) != shape for v in eqn.outvars):
        return None
    if any(s and (len(s) != len(shape) or any(n not in (m, 1) for n, m in zip(s, shape, strict=True))) for s in shapes):
        return None
    rows = [tuple([d if n == shape[d] else None for d, n in enumerate(s)]) for s in shapes]
    return Labels(rows, [_without(len(shape), ())] * len(eqn.outvars))


def _sharding_constraint(eqn: Any) -> Labels | None:
    """Element by element, in the dimensions that are not to be spread over devices."""
    spread = [d for d in range(len(_shape(eqn.invars[0]))) if _compat.is_spread(eqn.params["sharding"], d)]
    return _alike(eqn, spread)


def _reduction(eqn: Any) -> Labels | None:
    """Some dimensions are reduced away; others are apart. First values of a reduction are scalars."""
    reduced = eqn.params["axes" if "axes" in eqn.params else "dimensions"]
    shapes = _shapes(eqn)
    rank = len(shapes[0])
    if any(len(s) not in (0, rank) for s in shapes):
        return None
    join = _JOINS.get(eqn.primitive.name)
    kept = tuple([d for d in range(rank) if d not in reduced])
    joins = dict.fromkeys(reduced, join) if join is not None else {}
    return Labels([_without(rank, ()) if s else () for s in shapes], [kept] * len(eqn.outvars), joins)


def _along(parameter: str) -> Callable[[Any], Labels | None]:
    """The rule of what mixes the one dimension that a parameter names."""
    return lambda eqn: _alike(eqn, {eqn.params[parameter]})


def _dot_general(eqn: Any) -> Labels:
    (left_summed, right_summed), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    left, right = _shapes(eqn)
    shared = [*zip(left_batch, right_batch, strict=True), *zip(left_summed, right_summed, strict=True)]
    of_left = {a: n for n, (a, _) in enumerate(shared)}
    of_right = {b: n for n, (_, b) in enumerate(shared)}
    for found, shape in ((of_left, left), (of_right, right)):
        for d in range(len(shape)):
            found.setdefault(d, len(shared) + d + (0 if found is of_left else len(left)))
    rows = [tuple([found[d] for d in range(len(s))]) for found, s in ((of_left, left), (of_right, right))]
    free = [n for row in rows for n in row if n >= len(shared)]
    joins = dict.fromkeys(range(len(left_batch), len(shared)), "add")
    return Labels([*rows], [(*range(len(left_batch)), *free)], joins)


def _convolution(eqn: Any) -> Labels:
    """Batch, features of the result, and features that are summed; along space, neighbours are read."""
    numbers, groups = eqn.params["dimension_numbers"], eqn.params["feature_group_count"]
    batch, features, summed = range(3)
    left: dict[int, int] = {}
    right: dict[int, int] = {}
    out: dict[int, int] = {}
    if eqn.params["batch_group_count"] == 1:
        left[numbers.lhs_spec[0]] = out[numbers.out_spec[0]] = batch
        if groups == 1:
            right[numbers.rhs_spec[0]] = out[numbers.out_spec[1]] = features
            left[numbers.lhs_spec[1]] = right[numbers.rhs_spec[1]] = summed
    rows = [_by_dimension(found, numbers.lhs_spec) for found in (left, right, out)]
    return Labels(rows[:2], rows[2:], {summed: "add"})


def _broadcast_in_dim(eqn: Any) -> Labels:
    shape, inner = eqn.params["shape"], _shape(eqn.invars[0])
    dimensions = eqn.params["broadcast_dimensions"]
    row = tuple([d if n == shape[d] else None for n, d in zip(inner, dimensions, strict=True)])
    return Labels([row, *[()] * (len(eqn.invars) - 1)], [_without(len(shape), ())])


def _reshape(eqn: Any) -> Labels | None:
    """Dimensions are merged or split in groups; the slowest of each group that is not one is apart."""
    before, after = _shape(eqn.invars[0]), _shape(eqn.outvars[0])
    if eqn.params.get("dimensions") is not None or len(eqn.invars) > 1 or 0 in before:
        return None
    old, new = ([(d, n) for d, n in enumerate(shape) if n > 1] for shape in (before, after))
    of_old: dict[int, int] = {}
    of_new: dict[int, int] = {}
    i = j = 0
    while i < len(old) and j < len(new):
        (d, size), (e, other) = old[i], new[j]
        of_old[d] = of_new[e] = i  # any number that no other group has
        i, j = i + 1, j + 1
        while size != other:
            if size < other:
                size, i = size * old[i][1], i + 1
            else:
                other, j = other * new[j][1], j + 1
    return Labels([_by_dimension(of_old, before)], [_by_dimension(of_new, after)])


def _squeeze(eqn: Any) -> Labels:
    row = _without(len(_shape(eqn.invars[0])), ())
    return Labels([row], [tuple([d for d in row if d not in eqn.params["dimensions"]])])


def _transpose(eqn: Any) -> Labels:
    order = tuple(eqn.params["permutation"])
    return Labels([_without(len(order), ())], [order])


def _part(eqn: Any) -> Labels | None:
    """A slice is read or written: dimensions that it fills are apart (a start is clamped to 0 there)."""
    part = eqn.invars[1] if eqn.primitive.name == "dynamic_update_slice" else eqn.outvars[0]
    pairs = enumerate(zip(_shape(eqn.invars[0]), _shape(part), strict=True))
    return _alike(eqn, {d for d, (n, m) in pairs if n != m})


def _stack(eqn: Any) -> Labels:
    """Arrays beside one another in a new dimension, or taken out of one."""
    at, is_stack = eqn.params["axis"], eqn.primitive.name == "stack"
    row = _without(len(_shape(eqn.invars[0] if is_stack else eqn.outvars[0])), ())
    many: Row = (*row[:at], None, *row[at:])
    if is_stack:
        return Labels([row] * len(eqn.invars), [many])
    return Labels([many], [row] * len(eqn.outvars))


def _window(eqn: Any) -> Labels | None:
    """A reduction by windows, or the gradient of one: dimensions along which a window is one element are apart."""
    params = eqn.params
    rank = len(params["window_dimensions"])
    moved = [params[k] for k in ("window_dimensions", "window_strides", "base_dilation") if params.get(k) is not None]
    return _alike(eqn, {d for d in range(rank) if any(m[d] != 1 for m in moved) or any(params["padding"][d])})


def _gather(eqn: Any) -> Labels:
    """Dimensions of the indices, those of the operand that are taken whole, and those that both have."""
    numbers, taken = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    operand, indices = _shapes(eqn)
    rank = len(_shape(eqn.outvars[0]))
    batch = dict(enumerate([d for d in range(rank) if d not in numbers.offset_dims]))
    of_operand = _windows(operand, {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}, numbers.offset_dims)
    of_operand = {d: n for d, n in of_operand.items() if taken[d] == operand[d] and d not in numbers.start_index_map}
    both = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    of_operand.update({d: batch[i] for d, i in both})
    known = {*of_operand.values(), *batch.values()}  # a label is a dimension of the result
    out = _by_dimension({d: d for d in known}, range(rank))
    return Labels([_by_dimension(of_operand, operand), _by_dimension(batch, indices)], [out])


def _scatter(eqn: Any) -> Labels | None:
    """Dimensions that updates fill whole, and those that the indices have as well; joined updates are not apart."""
    if len(eqn.invars) != 3:
        return None
    numbers = eqn.params["dimension_numbers"]
    operand, indices, updates = _shapes(eqn)
    batch = [d for d in range(len(updates)) if d not in numbers.update_window_dims]
    inserted = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    of_operand = {
        d: u
        for d, u in _windows(operand, inserted, numbers.update_window_dims).items()
        if updates[u] == operand[d] and d not in numbers.scatter_dims_to_operand_dims
    }
    both = list(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    of_operand.update({d: batch[i] for d, i in both})
    row = _by_dimension(of_operand, operand)
    of_updates = tuple([u if u in row else None for u in range(len(updates))])  # a label is a dimension of updates
    return Labels([row, _by_dimension({i: batch[i] for _, i in both}, indices), of_updates], [row])


def _windows(operand: Sequence[int], gone: Collection[int], placed: Iterable[int]) -> dict[int, int]:
    """Of the dimensions of an operand that windows have: where they are in the result, or in the updates."""
    return dict(zip([d for d in range(len(operand)) if d not in gone], placed, strict=True))


def _by_dimension(labels: dict[int, int], shape: Sequence[int]) -> Row:
    return tuple([labels.get(d) for d in range(len(shape))])


def _leading(eqn: Any, trailing: int) -> Labels | None:
    """What works on matrices (or vectors) in the last dimensions, each by itself."""
    rank = len(_shape(eqn.invars[0])) - trailing
    ranks = [len(s) for s in _shapes(eqn)], [len(_shape(v)) for v in eqn.outvars]
    if any(n < rank for row in ranks for n in row):
        return None
    operands, results = ([_without(n, range(rank, n)) for n in row] for row in ranks)
    return Labels(operands, results)


_JOINS = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min"}

_ELEMENTWISE = frozenset("select_n clamp convert_element_type add_any name stop_gradient optimization_barrier".split())
"""Those whose batching rules are their own."""

_TRAILING = {
    **dict.fromkeys("cholesky triangular_solve lu eigh svd qr householder_product".split(), 2),
    "lu_pivots_to_permutation": 1,
}
"""Linear algebra, and how many dimensions are those of one matrix."""

_RULES: dict[str, Callable[[Any], Labels | None]] = {
    **dict.fromkeys("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor".split(), _reduction),
    **dict.fromkeys("argmax argmin reduce".split(), _reduction),
    **dict.fromkeys("cumsum cumprod cummax cummin cumlogsumexp split top_k".split(), _along("axis")),
    **dict.fromkeys("sort concatenate".split(), _along("dimension")),
    **dict.fromkeys("slice dynamic_slice dynamic_update_slice".split(), _part),
    **dict.fromkeys("scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max".split(), _scatter),
    **dict.fromkeys("stack unstack".split(), _stack),
    **dict.fromkeys("reduce_window reduce_window_sum reduce_window_max reduce_window_min".split(), _window),
    **dict.fromkeys("select_and_gather_add select_and_scatter_add".split(), _window),
    "broadcast_in_dim": _broadcast_in_dim,
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
    "fft": lambda eqn: _leading(eqn, len(eqn.params["fft_lengths"])),
    "gather": _gather,
    "iota": lambda eqn: Labels([()] * len(eqn.invars), [_without(len(eqn.params["shape"]), ())]),
    "pad": lambda eqn: _alike(eqn, {d for d, widths in enumerate(eqn.params["padding_config"]) if any(widths)}),
    "reshape": _reshape,
    "rev": lambda eqn: _alike(eqn, set(eqn.params["dimensions"])),
    "sharding_constraint": _sharding_constraint,
    "squeeze": _squeeze,
    "tile": lambda eqn: _alike(eqn, {d for d, times in enumerate(eqn.params["reps"]) if times != 1}),
    "transpose": _transpose,
}
