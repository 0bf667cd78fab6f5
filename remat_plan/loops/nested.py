"""Scans in scans under ``jax.checkpoint``: schedules of a loop that JAX differentiates by itself.

In: a scan and the sizes of its groups. Out: the same scan, whose backward pass keeps one carry for each group of each
level and recomputes the groups from there.

    "each"              every step is a segment: n carries, one more forward pass
    factors (k1, k2)    k1 groups of k2 steps: k1 carries and the residuals of k2 steps, one more forward pass
    factors (k1 .. kd)  groups of groups: k1 + ... + k(d-1) carries and the residuals of kd steps, d - 1 more passes

Source: Chen et al. 2016, arXiv 1604.06174, sections 4.1 (groups of sqrt(n)) and 4.4 (recursion).

Lengths that do not divide: a level of k groups has n / k steps in each, rounded up or down so that fewer are left
over; these run as one more short group. Groups then read their part of xs by index, out of the whole: cutting the tail
off first would copy all the rest. The gradient of xs is added up in place in the same way.

Limits: each inner level copies its group's part of xs, so the copies of all levels come to about 1 / (k1 - 1) of xs.
Outputs of a length that does not divide are joined at the end, which copies them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from remat_plan import _compat

LOG_BASE = 4
"""Groups of each level of the "log" schedule: 4 log4(n) carries are as many as 2 log2(n), for half the passes."""


def sqrt_factors(length: int, residual_per_carry: float = 1.0) -> tuple[int, int]:
    """Return (groups, steps in each) with the least memory: groups + steps * residual_per_carry.

    >>> sqrt_factors(64)
    (8, 8)
    """
    steps = max(1, round(math.sqrt(length / max(residual_per_carry, 1e-9))))
    steps = min(steps, length)
    return -(-length // steps), steps


def log_factors(length: int) -> tuple[int, ...]:
    """Return the groups of each level so that each level has ``LOG_BASE`` parts.

    >>> log_factors(1024)
    (4, 4, 4, 4, 4)
    """
    factors = []
    while length > LOG_BASE:
        factors.append(LOG_BASE)
        length = -(-length // LOG_BASE)
    return (*factors, max(length, 1))


def check_factors(factors: Any, length: int, name: str) -> tuple[int, ...]:
    """Return factors given by a user.

    ``TypeError`` for what is no sequence of integers, ``ValueError`` if one is below 1 or their product below
    ``length``.
    """
    numbers = isinstance(factors, (tuple, list)) and [isinstance(k, int) and not isinstance(k, bool) for k in factors]
    if not numbers or not all(numbers):
        raise TypeError(
            f"{name}: schedule=('nested', {factors!r}): give a tuple of integers, such as ('nested', (8, 8))."
        )
    if min(factors) < 1:
        raise ValueError(f"{name}: schedule=('nested', {tuple(factors)}): each factor must be 1 or more.")
    if math.prod(factors) < length:
        raise ValueError(
            f"{name}: schedule=('nested', {tuple(factors)}) has room for {math.prod(factors)} steps, but the loop "
            f"has {length}. Choose factors whose product is {length} or more."
        )
    return tuple(int(k) for k in factors)


def divide(length: int, groups: int) -> tuple[int, int, int]:
    """Return how many groups to make, the steps in each, and the steps that are left: as few as rounding gives.

    >>> divide(61, 8), divide(10_007, 4)
    ((8, 7, 5), (4, 2501, 3))
    """
    down, up = length // groups, -(-length // groups)
    return min((groups, down, length - groups * down), (length // up, up, length % up), key=lambda found: found[2])


def nested_scan(
    body: Callable[..., Any],
    init: Any,
    xs: Any,
    length: int,
    factors: Sequence[int],
    *,
    reverse: bool = False,
    unroll: int = 1,
) -> tuple[Any, Any]:
    """Scan in groups of groups, each under ``jax.checkpoint``.

    ``factors`` are the groups at each level from the outermost; the last is the most steps of an innermost group, whose
    scan is unrolled by ``unroll``. All else is as in ``jax.lax.scan``.

    Example:
        >>> import jax.numpy as jnp
        >>> last, ys = nested_scan(lambda c, x: (c + x, c), jnp.float32(0), jnp.arange(7.0), 7, (3, 3))
        >>> float(last), ys.shape
        (21.0, (7,))
    """
    groups = min(factors[0], length) if len(factors) > 1 else 1
    if groups <= 1:
        if len(factors) > 1 and length > 0:
            return nested_scan(body, init, xs, length, factors[1:], reverse=reverse, unroll=unroll)
        return jax.lax.scan(body, init, xs, length, reverse=reverse, unroll=unroll)
    groups, size, rest = divide(length, groups)
    inner = partial(nested_scan, body, length=size, factors=factors[1:], reverse=reverse, unroll=unroll)
    if not rest:
        parts = jax.tree.map(lambda x: x.reshape(groups, size, *x.shape[1:]), xs)
        carry, ys = jax.lax.scan(jax.checkpoint(inner, prevent_cse=False), init, parts, groups, reverse=reverse)
        return carry, jax.tree.map(lambda y: y.reshape(length, *y.shape[2:]), ys)
    # Rows 0 .. groups * size - 1 are the groups, the rest is the tail; backwards the tail comes first.
    main = jax.checkpoint(_group(inner, xs, size), prevent_cse=False)
    # The steps that are left are a segment, not inside a scan, so its border must be kept from CSE.
    tail = _compat.checkpoint(
        _group(partial(jax.lax.scan, body, length=rest, reverse=reverse, unroll=unroll), xs, rest)
    )
    starts = jnp.arange(groups, dtype=jnp.int32) * size
    carry, end = init, None
    if reverse:
        carry, end = tail(carry, groups * size)
    carry, ys = jax.lax.scan(main, carry, starts, reverse=reverse)
    if not reverse:
        carry, end = tail(carry, groups * size)
    joined = lambda y, end: jnp.concatenate([y.reshape(groups * size, *y.shape[2:]), end])  # noqa: E731
    return carry, jax.tree.map(joined, ys, end)


def _group(run: Callable[..., Any], xs: Any, size: int) -> Callable[[Any, Any], tuple[Any, Any]]:
    """The scan over ``size`` rows of xs from a start: (carry, start) -> (carry, ys)."""

    def group(carry: Any, start: Any) -> tuple[Any, Any]:
        return run(carry, jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), xs))

    return group
