"""A loop that adds up a scalar, whose gradient is made with it in the forward pass.

In: a step (constants, total so far, rows to the next total). Out: ``lax.scan`` of it, with a derivative of its own.

The total is linear in what steps add to it, so that a step's part of the gradient is known together with its part of
the total, but for the factor that is the total's cotangent: nothing is kept of steps but the sum of their gradients,
and nothing runs twice. It is the derivative rule of a ``jax.custom_jvp``, so that forward mode, second derivatives and
any cotangent are right. Gradients of constants are added up in 32 bits at least.

Limits: the total is added to and not read otherwise (``graph.structure.adds_up`` tells).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from remat_plan import _compat

Step = Callable[[Sequence[Any], Any, Sequence[Any]], Any]
"""Constants, the total so far, the rows of a step to the next total."""


def summed_scan(
    step: Step, constants: Sequence[Any], start: Any, rows: Sequence[Any], length: int, reverse: bool, unroll: int
) -> Any:
    """Return the total after all steps.

    >>> product = lambda w, total, x: total + (w[0] * x[0]) ** 2
    >>> total = lambda w: summed_scan(product, [w], jnp.float32(0), [jnp.arange(3.0)], 3, False, 1)
    >>> jax.value_and_grad(total)(2.0)
    (Array(20., dtype=float32), Array(20., dtype=float32, weak_type=True))
    """
    n = len(constants)
    loop: dict[str, Any] = {"length": length, "reverse": reverse, "unroll": unroll}

    def total(start: Any, *args: Any) -> Any:
        def add(so_far: Any, row: Sequence[Any]) -> tuple[Any, None]:
            return step(args[:n], so_far, row), None

        return jax.lax.scan(add, start, args[n:], **loop)[0]

    def gradients(start: Any, args: Sequence[Any], moves: Sequence[bool]) -> tuple[Any, list[Any]]:
        """The total, and its gradient by those arguments that move."""
        constants, rows = args[:n], args[n:]
        moving = _compat.partition_list(moves[:n], constants)[1]

        def add(carry: tuple[Any, list[Any]], row: Sequence[Any]) -> tuple[tuple[Any, list[Any]], list[Any]]:
            so_far, sums = carry
            fixed, moving = _compat.partition_list(moves, [*constants, *row])

            def of(moving: list[Any]) -> Any:
                given = _compat.merge_lists(moves, fixed, moving)
                return step(given[:n], so_far, given[n:])

            made, parts = jax.value_and_grad(of)(moving)
            return (made, [a + g.astype(a.dtype) for a, g in zip(sums, parts, strict=False)]), parts[len(sums) :]

        zeros = [_compat.zeros(_compat.wide(jax.typeof(x))) for x in moving]
        (made, sums), by_row = jax.lax.scan(add, (start, zeros), rows, **loop)
        return made, [*sums, *by_row]

    def derivative(args: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """The rule of ``total``. What no derivative is taken by needs no gradient."""
        pairs = zip(args[1:], tangents[1:], strict=True)
        moves = [_compat.is_float(jax.typeof(x)) and not isinstance(t, SymbolicZero) for x, t in pairs]
        made, found = _compat.whole(lambda start, *args: gradients(start, args, moves), *args)
        shift = jnp.zeros_like(made) if isinstance(tangents[0], SymbolicZero) else tangents[0]
        for g, t in zip(found, _compat.partition_list(moves, list(tangents[1:]))[1], strict=True):
            shift += _product(g.astype(t.dtype), t).astype(shift.dtype)
        return made, shift

    run = jax.custom_jvp(total)
    run.defjvp(derivative, symbolic_zeros=True)
    return run(start, *constants, *rows)


def _product(gradient: Any, tangent: Any) -> Any:
    """The change of a real number along a tangent; JAX's gradients by complex numbers are not conjugated.

    A sum of products, which is what XLA makes of a product of two vectors.
    """
    return jnp.sum(gradient * tangent).real
