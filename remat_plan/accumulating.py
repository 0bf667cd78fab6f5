"""Gradient accumulation over microbatches: ``rp.accumulate``.

In: a function of parameters and a batch that returns a loss and gradients. Out: the same function, run on the slices of
a batch one after another. It lowers what recomputation cannot: the memory that one slice needs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
from jax import lax

from remat_plan import _compat
from remat_plan.graph.frameworks import check_function
from remat_plan.small.doors import door, integer
from remat_plan.traced.modules import Functional, by_position, holds_modules

P = ParamSpec("P")
R = TypeVar("R")


@door
def accumulate(value_and_grad: Callable[P, R], microbatches: int) -> Callable[P, R]:
    """Return ``value_and_grad`` run on the slices of a batch, its results averaged.

    Args:
        value_and_grad: ``f(params, *batch)``, such as ``jax.value_and_grad(loss_fn)``; it may return any pytree (with
            ``has_aux``, or gradients alone). The first axis of arrays in ``batch`` is that of examples.
        microbatches: the number of slices; must divide the number of examples. Slice ``i`` has the examples ``i``,
            ``i + microbatches`` and so on, so that a batch sharded along its first axis is not moved.

    Returns:
        A function of the same arguments. Floating-point results are averaged over the slices (in their own dtype),
        others (counts) added up. State of an NNX module in the first argument is carried from slice to slice.

    Raises:
        TypeError, ValueError: ``microbatches`` is not a positive integer, or (when called) does not divide the batch,
            or arrays of the batch have different numbers of examples.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> loss = lambda w, x: jnp.mean((x @ w) ** 2)
        >>> w, x = jnp.ones((4, 2)), jnp.arange(32.0).reshape(8, 4)
        >>> value, gradient = rp.accumulate(jax.value_and_grad(loss), 4)(w, x)
        >>> bool(jnp.allclose(gradient, jax.grad(loss)(w, x)))
        True
    """
    check_function(value_and_grad, "rp.accumulate needs")
    microbatches = integer("microbatches", microbatches)

    @_compat.api_boundary
    @functools.wraps(value_and_grad, updated=())
    def accumulated(params: Any, *batch: Any, **named: Any) -> Any:
        call = by_position(value_and_grad, 1 + len(batch), named)
        batch = (*batch, *named.values())
        slices = jax.tree_util.tree_map_with_path(functools.partial(_sliced, count=microbatches), batch)
        _check_alike(batch, microbatches)
        if not holds_modules(params):
            return _run(lambda state, part: ((), call(params, *part)), (), slices, microbatches)[1]
        first = jax.tree.map(lambda x: x[0], slices)
        function = Functional.of(call, (params, *first))

        def once(state: Any, part: Any) -> tuple[Any, Any]:
            (new,), result = function.pure(state, *part)
            return new, result

        state, result = _run(once, function.states[0], slices, microbatches)
        function.store((state,))
        return result

    return cast(Callable[P, R], accumulated)


def _sliced(path: Any, x: Any, count: int) -> Any:
    """[B, ...] -> [count, B / count, ...], every ``count``-th example in one slice."""
    where = _place(path, x)
    if jnp.ndim(x) == 0:
        raise ValueError(
            f"microbatches={count}: {where}, has no axis of examples. Only the first argument is not taken apart: put "
            "what all microbatches share there with the parameters, or close over it. Of a random key, pass one for "
            "each example (jax.random.split)."
        )
    if x.shape[0] % count:
        raise ValueError(f"microbatches={count} does not divide the first axis of {where}.")
    return jnp.swapaxes(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 0, 1)


def _place(path: Any, x: Any) -> str:
    return f"argument {path[0].idx + 1}{jax.tree_util.keystr(path[1:])}, of shape {jnp.shape(x)}"


def _check_alike(batch: Any, count: int) -> None:
    """Refuse arrays of which not all have the same number of examples: a table beside them would be cut up too."""
    (first, x), *others = jax.tree_util.tree_leaves_with_path(batch) or [((), None)]
    for path, y in others:
        if y.shape[0] != x.shape[0]:
            raise ValueError(
                f"microbatches={count}: {_place(first, x)}, and {_place(path, y)}, have different numbers of examples "
                "(the first axis). Put what all microbatches share with the parameters, or close over it."
            )


def _run(once: Callable[[Any, Any], tuple[Any, Any]], state: Any, slices: Any, count: int) -> tuple[Any, Any]:
    """Run a function of state and slice on all slices; return the last state, and the results put together."""
    part = jax.tree.map(lambda x: x[0], slices)
    _, shapes = jax.eval_shape(once, state, part)

    def add(carry: tuple[Any, Any], part: Any) -> tuple[tuple[Any, Any], None]:
        state, total = carry
        state, result = once(state, part)
        return (state, jax.tree.map(jnp.add, total, result)), None

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    (state, total), _ = lax.scan(add, (state, zeros), slices)
    return state, jax.tree.map(lambda x: x / count if _compat.is_float(x) else x, total)
