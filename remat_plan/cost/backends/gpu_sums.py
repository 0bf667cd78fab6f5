"""Sums of columns of XLA:GPU, and what is written for them.

In: a step, the kernels that would compute it. Out: whether they do, or read what another one wrote.

A sum along other axes than the last is a block of threads for every few columns. Of few columns a GPU is mostly idle
meanwhile, and one block reads and computes no faster for that. So XLA:GPU has a kernel of all threads write what is
summed, where computing it inside the sums takes longer than writing and reading it (``GpuPerformanceModel``, which
``PriorityFusion`` asks): the product of a gradient and what it scales, or ``silu`` for a mean over an image and, in
the backward pass, for the gradient of what the image is scaled by.

Limits: the figures are those of an H100; of functions that are computed on the way only whether there are some.
"""

from __future__ import annotations

import math

from remat_plan.cost.copies import Copies
from remat_plan.cost.rules import EXPENSIVE, Kind
from remat_plan.cost.steps import Step

_SUMMED_ROWS, _BLOCK_COLUMNS = 4096, 64
"""What a block sums at most, and for how many columns: of more rows there are two sums, the first of many blocks."""

_BLOCK_BYTES, _ALL_BYTES, _BLOCK_CALLS, _LAUNCH = 63.4, 3350.0, 4.3, 1000.0
"""Of a nanosecond: the bytes that a block moves and those that all do, and the elements of an expensive function that a
block computes; the nanoseconds of a launch. They give the least rows of which a product or ``silu`` is written for
sums of so many columns: 267 of 64, 454 of 512, 2639 of 1024, and 99 of 64, 103 of 512, 171 of 2048."""


def fed_in(step: Step, kernels: frozenset[int], copies: Copies) -> bool:
    """Tell whether a step is computed in its kernels: not for sums of columns that would take longer over it."""
    sums = [blocks for kernel in copies.of(kernels) if (blocks := _blocks(kernel))]
    if not sums or step.eqn is None:
        return True
    written, read, functions = copies.making(step)
    calls = step.eqn.outvars[0].aval.size / _BLOCK_CALLS if not EXPENSIVE.isdisjoint(functions) else 0.0
    gained = 0.0
    for blocks in sums:
        rate = min(blocks * _BLOCK_BYTES, _ALL_BYTES)
        gained += max(read / rate, calls / blocks, written / rate) - written / rate
    return gained <= (read + written) / _ALL_BYTES + _LAUNCH


def _blocks(reduction: Step) -> int:
    """How many blocks of threads sum columns; 0 if the kernel does something else, or makes two sums."""
    axes = reduction.eqn.params.get("axes", ()) if reduction.kind == Kind.REDUCE and reduction.eqn else ()
    if not axes:
        return 0
    shape = reduction.eqn.invars[0].aval.shape
    rows, columns = math.prod([shape[axis] for axis in axes]), math.prod(shape[max(axes) + 1 :])
    if len(shape) - 1 in axes or not rows * columns or rows > _SUMMED_ROWS:
        return 0
    return math.prod(shape) // (rows * columns) * math.ceil(columns / _BLOCK_COLUMNS)
