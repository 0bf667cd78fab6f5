"""A loop that adds up a scalar, whose gradient is made with it in the forward pass.

In: a step (constants, carry, rows to the next carry, outputs), which of what is carried is the total. Out: ``lax.scan``
of it, with a derivative of its own.

The total is linear in what steps add to it, so that a step's part of the gradient is known together with its part of
the total, but for the factor that is the total's cotangent: nothing is kept of steps but the sum of their gradients,
and nothing runs twice. It is the derivative rule of a ``jax.custom_jvp``, so that forward mode, second derivatives and
any cotangent are right. Gradients of constants are added up in 32 bits at least. Whatever else steps make is
differentiated by running them again.

Limits: the total is added to and not read otherwise (``graph.structure.adds_up`` tells).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from remat_plan import _compat

Step = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Sequence[Any]]
"""Constants, the carry, the rows of a step to the next carry and the outputs, one after another."""


def summed_scan(
    step: Step, place: int, constants: Sequence[Any], start: Sequence[Any], rows: Sequence[Any], **loop: Any
) -> list[Any]:
    """Return the carry after all steps, and the stacked outputs; ``place``: that of the total in the carry.

    ``loop``: further arguments of ``jax.lax.scan``.

    >>> product = lambda w, carry, x: [carry[0] + (w[0] * x[0]) ** 2]
    >>> total = lambda w: summed_scan(product, 0, [w], [jnp.float32(0)], [jnp.arange(3.0)])[0]
    >>> jax.value_and_grad(total)(2.0)
    (Array(20., dtype=float32), Array(20., dtype=float32, weak_type=True))
    """
    m, n = len(start), len(constants)

    def run(*args: Any) -> list[Any]:
        def add(carry: list[Any], row: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            made = step(args[m : m + n], carry, row)
            return list(made[:m]), list(made[m:])

        carry, stacked = jax.lax.scan(add, list(args[:m]), args[m + n :], **loop)
        return [*carry, *stacked]

    def gradients(args: Sequence[Any], moves: Sequence[bool]) -> tuple[list[Any], list[Any]]:
        """What steps make, and the gradient of the total by those constants and rows that move."""
        constants, rows = args[m : m + n], args[m + n :]
        moving = _compat.partition_list(moves[:n], constants)[1]

        def add(carry: tuple[list[Any], list[Any]], row: Sequence[Any]) -> tuple[Any, Any]:
            so_far, sums = carry
            fixed, moving = _compat.partition_list(moves, [*constants, *row])

            def of(moving: list[Any]) -> tuple[Any, list[Any]]:
                given = _compat.merge_lists(moves, fixed, moving)
                made = list(step(given[:n], so_far, given[n:]))
                return made[place], made

            (_, made), parts = jax.value_and_grad(of, has_aux=True)(moving)
            following = made[:m], [a + g.astype(a.dtype) for a, g in zip(sums, parts, strict=False)]
            return following, (made[m:], parts[len(sums) :])

        zeros = [_compat.zeros(_compat.wide(jax.typeof(x))) for x in moving]
        (carry, sums), (stacked, by_row) = jax.lax.scan(add, (list(args[:m]), zeros), rows, **loop)
        return [*carry, *stacked], [*sums, *by_row]

    def derivative(args: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The rule of ``run``. What no derivative is taken by needs no gradient."""
        pairs = zip(args, tangents, strict=True)
        moved = [_compat.is_float(jax.typeof(x)) and not isinstance(t, SymbolicZero) for x, t in pairs]
        moves, given = moved[m:], _compat.partition_list(moved, list(tangents))[1]
        made, found = _compat.whole(lambda *args: gradients(args, moves), *args)
        shifts = _other_shifts(run, place, made, args, moved, given)
        shift = tangents[place] if moved[place] else jnp.zeros_like(made[place])
        for g, t in zip(found, given[sum(moved[:m]) :], strict=True):
            shift += _product(g.astype(t.dtype), t).astype(shift.dtype)
        return made, [*shifts[:place], shift, *shifts[place:]]

    summed = jax.custom_jvp(run)
    summed.defjvp(derivative, symbolic_zeros=True)
    return summed(*start, *constants, *rows)


def _other_shifts(
    run: Callable[..., list[Any]],
    place: int,
    made: Sequence[Any],
    args: Sequence[Any],
    moved: Sequence[bool],
    given: Sequence[Any],
) -> list[Any]:
    """The changes of all results but the total: mostly nobody asks, so nothing is kept for them."""
    others = [(x, _compat.is_float(jax.typeof(x))) for i, x in enumerate(made) if i != place]
    fixed, moving = _compat.partition_list(moved, list(args))

    def push(fixed: list[Any], moving: list[Any], given: list[Any]) -> list[Any]:
        def of(*moving: Any) -> list[Any]:
            found = run(*_compat.merge_lists(moved, fixed, list(moving)))
            kept = [x for i, x in enumerate(found) if i != place]
            return [x for x, (_, is_float) in zip(kept, others, strict=True) if is_float]

        return jax.jvp(of, tuple(moving), tuple(given))[1]

    asked = any(is_float for _, is_float in others) and any(moved)
    shifts = iter(_compat.linear_checkpoint(push)(fixed, moving, list(given)) if asked else ())
    zero = [jnp.zeros_like(x) if is_float else np.zeros(x.shape, jax.dtypes.float0) for x, is_float in others]
    return [next(shifts, z) if is_float else z for z, (_, is_float) in zip(zero, others, strict=True)]


def _product(gradient: Any, tangent: Any) -> Any:
    """The change of a real number along a tangent; JAX's gradients by complex numbers are not conjugated.

    A sum of products, which is what XLA makes of a product of two vectors.
    """
    return jnp.sum(gradient * tangent).real
