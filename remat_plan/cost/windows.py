"""Convolutions and poolings as XLA makes them: copies of what they read, indices of maxima.

In: an ``Emitter``, an equation, the numbers of what it reads.
Out: the numbers of its results, or of what it reads instead.
"""

from __future__ import annotations

import math
from typing import Any

from remat_plan.cost.emitter import Emitter
from remat_plan.cost.facts import Facts, equal_key
from remat_plan.cost.layout import conv_orders, is_kernel_gradient
from remat_plan.cost.rules import Kind, eqn_flops
from remat_plan.cost.steps import NO_REGION, Step
from remat_plan.cost.tiles import tiled_bytes


def conv_operands(state: Emitter, eqn: Any, reads: list[int]) -> list[int]:
    """Return what a convolution reads: on a GPU what it is padded to, and its kernel copied; on a TPU tiles."""
    left, right = reads
    if state.model.kernel_copies:
        source = state.made_by.get(right)
        if is_kernel_gradient(eqn) and _is_spread(eqn):  # cuDNN has no call for it: a forward one of transposed copies
            left, right = [state.copy(eqn, read, (), (), state.sizes[read]) for read in (left, right)]
        elif is_kernel_gradient(eqn):
            left = _padded(state, eqn, left)
        elif source is not None and source.primitive == "rev":  # of the gradient of the input: another algorithm
            right = state.copy(eqn, source.reads[0], (), (), state.sizes[right])
        else:
            left, right = _padded(state, eqn, left), state.copy(eqn, right, (), (), state.sizes[right])
    if state.model.tiles and left not in state.inner:
        spec = eqn.params["dimension_numbers"].lhs_spec
        size = tiled_bytes(eqn.invars[0].aval, (spec[0], spec[1]))
        made = Step((left,), (), Kind.OPAQUE, "layout_copy", 0.0, NO_REGION, eqn)
        left = state.emit(state.facts.number(("tiles", size)), made, (size,))[0]
    return [left, right]


def _is_spread(eqn: Any) -> bool:
    """Tell whether the elements of the input are set apart, as for the gradient of a strided convolution."""
    return max(eqn.params["lhs_dilation"], default=1) > 1


def _padded(state: Emitter, eqn: Any, read: int) -> int:
    """Return the operand of a convolution as cuDNN reads it: with zeros between its elements, and of uneven padding.

    Strided convolutions are padded more on one side, transposed ones read elements that are set apart.
    """
    before = eqn.invars[0].aval.shape
    shape = list(before)
    spaces = eqn.params["dimension_numbers"].lhs_spec[2:], eqn.params["padding"], eqn.params["lhs_dilation"]
    for dimension, (low, high), apart in zip(*spaces, strict=True):
        if low < 0 or high < 0:  # elements that are left out are no array
            continue
        even = 2 * min(low, high) if apart == 1 else 0
        shape[dimension] = (before[dimension] - 1) * apart + 1 + low + high - even
    if tuple(shape) == before:
        return read
    size = state.sizes[read] * math.prod(shape) // math.prod(before)
    return state.move(eqn, "pad", (read,), state.facts.number(("padded", *shape)), size)


def inner_of(state: Emitter, facts: Facts, reads: list[int]) -> tuple[int, int] | None:
    """Return the two innermost dimensions of a result next to convolutions or batches of products; None for others."""
    out = facts.eqn.outvars
    if len(out) != 1:
        return None
    if facts.name == "conv_general_dilated":
        spec = facts.eqn.params["dimension_numbers"].out_spec
        return spec[0], spec[1]
    rank = len(getattr(out[0].aval, "shape", ()))
    if facts.name == "dot_general":
        _, (batch, _) = facts.eqn.params["dimension_numbers"]
        return (rank - 1, rank - 2) if batch and rank == len(batch) + 2 else None
    if facts.name == "transpose":
        return None
    return next((inner for r in reads if r in state.inner for n, inner in [state.inner[r]] if n == rank), None)


def convolution(state: Emitter, facts: Facts, reads: list[int]) -> int:
    """Add a convolution with the copies of its operands and its result, into and out of NHWC, HWIO."""
    eqn, out_bytes = facts.eqn, facts.out_bytes[0]
    odd = conv_orders(eqn)
    spec = eqn.params["dimension_numbers"]
    orders = (tuple(spec.lhs_spec), tuple(spec.rhs_spec))
    width = 2 if state.facts.is_half(eqn.outvars[0].aval) else 1
    if len(reads) == 2:
        reads = [
            state.copy(eqn, read, atom.aval.shape, order, width * state.sizes[read]) if bad or width > 1 else read
            for read, atom, order, bad in zip(reads, eqn.invars, orders, odd, strict=False)
        ]
    made = Step(tuple(reads), (), Kind.OPAQUE, eqn.primitive.name, facts.flops, NO_REGION, eqn, work=facts.work)
    result = state.emit(facts.key, made, (width * out_bytes,))[0]
    if not odd[2] and width == 1:
        return result
    return state.copy(eqn, result, eqn.outvars[0].aval.shape, spec.out_spec, out_bytes)


def pool_indices(state: Emitter, eqn: Any, reads: list[int]) -> tuple[int, ...]:
    """Add what finds where each maximum of a max-pool was, as XLA expands its gradient: indices, one for a dimension.

    A second pooling, over one full-size index array a dimension; it needs the forward input only.
    """
    pooled, full = eqn.invars[0].aval, eqn.invars[1].aval
    rank = len(full.shape)
    index_bytes = 4 * full.size
    number = state.facts.number
    indices = [  # the library reads them from memory
        state.emit(
            number(("iota", d, full.shape)), Step((), (), Kind.OPAQUE, "iota", 0.0, NO_REGION, eqn), (index_bytes,)
        )
        for d in range(rank)
    ]
    found = Step((reads[1], *[i for (i,) in indices]), (), Kind.OPAQUE, "reduce_window", eqn_flops(eqn), NO_REGION, eqn)
    key = number(("reduce_window", *equal_key(eqn)))
    return state.emit(key, found, (state.sizes[reads[0]], *[4 * pooled.size] * rank))[1:]


def pool_scatter(state: Emitter, eqn: Any, read: int, indices: tuple[int, ...], out_bytes: int) -> int:
    """Add the gradient of a max-pool as XLA expands it: the cotangent scattered by indices into zeros."""
    pooled, full = eqn.invars[0].aval, eqn.invars[1].aval
    number, size = state.facts.number, 4 * pooled.size * len(full.shape)
    where = state.move(eqn, "concatenate", indices, number("pool_indices"), size)
    zeros = state.move(eqn, "broadcast_in_dim", (), number(("pool_zeros", full.shape, out_bytes)), out_bytes)
    made = Step((zeros, where, read), (), Kind.OPAQUE, "pool_scatter", 0.0, NO_REGION, eqn)
    return state.emit(number("pool_scatter"), made, (out_bytes,))[0]


def lean_pooling_gradient(state: Emitter, eqn: Any, reads: list[int], out_bytes: int) -> int:
    """Add the gradient of a max-pool as ``rewrite.pooling`` writes it.

    One kernel finds the offset of each maximum in its window, one byte each, from the forward input only, which is
    written out with its padding; the gradient is made of the cotangent at each offset, in the kernels that read it.
    """
    pooled, number = eqn.invars[0].aval, state.facts.number
    full, read = eqn.invars[1].aval, reads[1]
    shape = tuple([n + low + high for n, (low, high) in zip(full.shape, eqn.params["padding"], strict=True)])
    if shape != full.shape:
        padded = Step((read,), (), Kind.REDUCE, "pool_padding", 0.0, NO_REGION, eqn)
        size = state.sizes[read] * math.prod(shape) // full.size
        (read,) = state.emit(number(("pool_padding", *equal_key(eqn))), padded, (size,))
    found_by = Step((read,), (), Kind.REDUCE, "pool_offsets", eqn_flops(eqn), NO_REGION, eqn)
    (offsets,) = state.emit(number(("pool_offsets", *equal_key(eqn))), found_by, (pooled.size,))
    made = Step((offsets, reads[0]), (), Kind.CHEAP, "pool_spread", 0.0, NO_REGION, eqn)
    return state.emit(number(("pool_spread", *equal_key(eqn))), made, (out_bytes,))[0]
