"""Max-pools whose gradient keeps one byte for each window.

In: the equation of a max-pool (or min-pool), its windows, its operand. Out: its value, with a derivative that XLA:CPU
makes in little memory.

XLA:CPU takes the gradient of a max-pool apart into a search over indices: for each dimension an array of 32-bit indices
as large as what is pooled, at the start of the program, since they depend on nothing, then a scatter, element by
element. Here comparisons of slices find the *offset* of the maximum in each window, one byte each, and the gradient is
a sum of the cotangent at each offset, put back in its place: loops over elements that XLA fuses with those around them.
Compiled by itself, for windows of 2 x 2, the gradient needs 0.3 times the bytes of what is pooled, not 5.5 times.

The element chosen is the one that XLA's gradient chooses: the first of equal ones, in the order of the window, padding
among them, and a NaN gives way to what follows it. Where windows overlap, gradients are added in the order of XLA's
scatter. So they are equal to the bit, but for types of 16 bits, which XLA:CPU may add in 32. The derivative is linear
and of JAX's own primitives, so all transformations hold; it is under a ``jax.checkpoint`` without a barrier, so that
JAX keeps for it what it keeps for its own: the operand.

Limits: other backends than the CPU get JAX's own derivative, and so do large windows (``graph.pooling``). Of equal
elements XLA's forward-mode derivative may choose another one than its gradient; here both choose the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import starmap
from typing import Any

import jax
import numpy as np
from jax import lax

from remat_plan import _compat
from remat_plan.graph.pooling import Windows


def run_pooling(eqn: Any, windows: Windows, args: Sequence[Any]) -> list[Any]:
    """Run a pooling, with the derivative that is written here on a CPU."""

    def run(x: jax.Array) -> jax.Array:
        return _compat.bind(eqn, [x])[0]

    def own(x: jax.Array, tangent: jax.Array) -> jax.Array:
        return jax.jvp(run, (x,), (tangent,))[1]

    def along(x: jax.Array, tangent: jax.Array) -> jax.Array:
        return lax.platform_dependent(x, tangent, cpu=partial(_along, windows), default=own)

    def rule(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
        (x,), (tangent,) = primals, tangents
        return run(x), _compat.linear_checkpoint(along)(x, tangent)

    function = jax.custom_jvp(run)
    function.defjvp(rule)
    return [function(*args)]


def _along(windows: Windows, x: jax.Array, tangent: jax.Array) -> jax.Array:
    """The tangent of the chosen element of each window.

    The barrier has XLA write the offsets: it would find them again for each element that a window covers, and keep what
    is pooled for that.
    """
    chosen = lax.optimization_barrier(_chosen(windows, lax.stop_gradient(x)))
    zero = jax.numpy.zeros(windows.n_out, tangent.dtype)
    offsets = enumerate(np.ndindex(windows.sizes))
    first, *others = [lax.select(chosen == number, _shifted(windows, tangent, at), zero) for number, at in offsets]
    return sum(others, first)


def _chosen(windows: Windows, x: jax.Array) -> jax.Array:
    """The number of the chosen offset in each window."""
    is_better = lax.ge if windows.largest else lax.le
    worst = jax.numpy.asarray(-math.inf if windows.largest else math.inf, x.dtype)
    padded = lax.pad(x, worst, [(low, high, 0) for low, high in windows.padding])
    ends = [(n - 1) * stride + 1 for n, stride in zip(windows.n_out, windows.strides, strict=True)]

    def element(at: Sequence[int]) -> jax.Array:
        return lax.slice(padded, at, [i + end for i, end in zip(at, ends, strict=True)], windows.strides)

    first, *others = np.ndindex(windows.sizes)
    best, found = element(first), jax.numpy.zeros(windows.n_out, np.int8)
    for number, at in enumerate(others, 1):
        other = element(at)
        stays = is_better(best, other)
        best, found = lax.select(stays, best, other), lax.select(stays, found, lax.full_like(found, number))
    return found


def _shifted(windows: Windows, x: jax.Array, at: Sequence[int]) -> jax.Array:
    """The element at an offset in each window; a zero in place of padding.

    Padding around the whole array would be shared by the slices at all offsets, and so be written out.
    """
    per_dimension = zip(at, windows.padding, windows.strides, windows.n_in, windows.n_out, strict=True)
    starts, ends, missing = zip(*starmap(_inside, per_dimension), strict=True)
    zero = jax.numpy.zeros((), x.dtype)
    return lax.pad(lax.slice(x, starts, ends, windows.strides), zero, [(low, high, 0) for low, high in missing])


def _inside(
    offset: int, padding: tuple[int, int], stride: int, n_in: int, n_out: int
) -> tuple[int, int, tuple[int, int]]:
    """Return where the elements at an offset start and end in one dimension, and how many windows have padding there.

    >>> _inside(0, (1, 1), 2, 5, 3)  # the windows begin at -1, 1 and 3
    (1, 4, (1, 0))
    """
    start = offset - padding[0]
    first = min(n_out, max(0, -(start // stride)))
    behind = max(first, min(n_out, (n_in - 1 - start) // stride + 1))
    if first == behind:
        return 0, 0, (first, n_out - behind)
    return start + first * stride, start + (behind - 1) * stride + 1, (first, n_out - behind)
