"""Flax NNX: functions and methods of modules that plan themselves.

In: a function or method that takes modules, and what ``flax.nnx.remat`` takes, or a budget or the name of a strategy.
Out: a function with the same arguments, results and effects on the modules.

Modules are split into their structure and their state; what is planned (``plans.book.PlanBook``) is a pure function of
the state. It returns the new state with its result, so batch statistics and the counters of random streams are
updated once, and what is computed again in the backward pass is a copy that nobody stores.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from remat_plan.planning.strategies.values import StrategyLike
from remat_plan.plans.arguments import Planning, asks_for_plans, make_options
from remat_plan.plans.book import PlanBook
from remat_plan.rewrite.policies import guarded
from remat_plan.small.doors import door
from remat_plan.traced.modules import lifted

try:
    from flax import nnx
except ModuleNotFoundError as error:  # pragma: no cover
    raise ImportError('rp.nnx needs Flax: pip install "remat_plan[flax]"') from error


@door
def remat(
    f: Callable[..., Any] | None = None,
    *,
    budget: int | str | float | None = None,
    strategy: StrategyLike | None = None,
    policy: Callable[..., Any] | None = None,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
    **planning: Unpack[Planning],
) -> Any:
    """``flax.nnx.remat``; with a budget or a strategy, what is saved inside ``f`` is planned.

    Use it on a function of modules and arrays or on a method (where the class is defined: its first argument is the
    module), as a function or as a decorator, with or without arguments. It works under ``nnx.jit``,
    ``nnx.value_and_grad``, ``nnx.scan`` and ``nnx.vmap``. Plans are made when the function is first traced, once for
    every program that results; the result has them in its attribute ``remat_plans``.

    Args:
        f: the function.
        budget: bytes for the forward and backward pass of ``f`` alone: state of the modules, inputs and cotangents,
            outputs and gradients, temporaries (as in ``rp.checkpoint``, without the model around it).
        strategy: the name of a strategy; ``"auto"`` if there is a budget.
        policy: a policy of ``jax.checkpoint``; without budget and strategy this is ``flax.nnx.remat``: one segment.
        prevent_cse: as in ``jax.checkpoint``; False only inside a loop such as ``nnx.scan``.
        static_argnums: positions of arguments that are not traced. (With a budget or a strategy, booleans, strings and
            None are never traced.)
        **planning: ``verify``, ``target``, ``cost``, ``existing``, ``must_save``,
            ``must_recompute``, ``never_recompute``, ``never_split``, ``offload``, ``may_offload``, ``host_budget``,
            as in ``rp.plan``.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it.
        BudgetError: when called, if the budget cannot be met.

    Example:
        >>> import jax.numpy as jnp, remat_plan as rp
        >>> from flax import nnx
        >>> class Block(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.up, self.down = nnx.Linear(8, 32, rngs=rngs), nnx.Linear(32, 8, rngs=rngs)
        ...     @rp.nnx.remat(strategy="each_block", verify=False)
        ...     def __call__(self, x):
        ...         return x + self.down(nnx.gelu(self.up(x)))
        >>> gradient = nnx.grad(lambda block, x: jnp.sum(block(x)))(Block(nnx.Rngs(0)), jnp.ones((4, 8)))
        >>> gradient["up"]["kernel"][...].shape
        (8, 32)
    """
    if f is not None and not callable(f):
        raise TypeError(f"rp.nnx.remat needs a function, not {type(f).__name__}.")
    if isinstance(f, nnx.Module) or inspect.ismethod(f):
        raise TypeError(
            "rp.nnx.remat: decorate the method in its class, or pass a function that takes the module as an "
            "argument, such as lambda model, x: model(x); a module that is bound to the function cannot be updated."
        )
    if not asks_for_plans(policy, budget, strategy, planning):
        static = static_argnums if isinstance(static_argnums, int) else tuple(static_argnums)
        make = functools.partial(nnx.remat, policy=guarded(policy), prevent_cse=prevent_cse, static_argnums=static)
    else:
        book = PlanBook(make_options(budget, strategy, static_argnums, prevent_cse, **planning))
        make = functools.partial(_planned, book=book)
    return make if f is None else make(f)


def _planned(f: Callable[..., Any], book: PlanBook) -> Callable[..., Any]:
    """Plan a function of modules as a function of their state."""
    planned = lifted(f, lambda pure, args: book.run(pure, args, {}))
    planned.remat_plans = book.plans  # type: ignore[attr-defined]
    return planned
