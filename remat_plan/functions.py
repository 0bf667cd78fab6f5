"""Functions that plan themselves: ``remat``, ``checkpoint``, and what they return.

In: a function, what ``jax.checkpoint`` takes, or a budget or the name of a strategy. Out: a function with the same
signature, values and derivatives.

Plans are made and kept by a ``PlanBook``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, Unpack, overload

import jax

from remat_plan import _compat
from remat_plan.graph.argnums import fixed_arguments, positions
from remat_plan.graph.call import make_function_call
from remat_plan.graph.frameworks import check_function, is_for_jax, refuse_bound_linen
from remat_plan.planning.strategies.values import StrategyLike
from remat_plan.plans.arguments import CheckpointOptions, Planning, RematOptions, asks_for_plans, make_options
from remat_plan.plans.book import PlanBook, PlanOptions
from remat_plan.results.plan import Plan
from remat_plan.rewrite.policies import guarded
from remat_plan.small.doors import Wrapper, door, unknown_argument
from remat_plan.small.wording import name_of, short
from remat_plan.traced.modules import holds_modules, lifted

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])

_jax_checkpoint = jax.checkpoint  # the original, even where a program puts ours in its place

NO_PLANS: Mapping[str, Plan] = MappingProxyType({})


class Planned(Wrapper[P, R]):
    """A function (``fn``) that plans itself; made by ``remat`` and ``checkpoint``.

    ``plans`` maps digests of its traced programs to their plans; the last 512 are kept.
    """

    def __init__(self, fn: Callable[P, R], options: PlanOptions, plans: Mapping[str, Plan] = NO_PLANS):
        super().__init__(fn)
        self.book = PlanBook(options)
        for digest, plan in plans.items():
            self.book.plans.keep(digest, plan)

    def made_of(self) -> tuple[Any, ...]:
        return self.fn, self.book.options, dict(self.plans)

    def known_plans(self) -> tuple[Plan, ...]:
        return tuple(self.plans.values())

    def __repr__(self) -> str:
        if self.book.options.plans_alone:
            return super().__repr__()
        return f"<{getattr(self, '__qualname__', name_of(self.fn))}: marked, planned by rp.fit>"

    @property
    def plans(self) -> dict[str, Plan]:
        """The plans made so far, by digest of the program."""
        return self.book.plans

    @door
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if holds_modules((args, kwargs)):
            return self._of_modules(*args, **kwargs)
        refuse_bound_linen(jax.tree.leaves(args), "rp.remat needs")
        return self.book.run(self.fn, args, kwargs)

    @functools.cached_property
    def _of_modules(self) -> Callable[..., Any]:
        """The function of NNX modules, whose updates are carried out of it; ``rp.nnx.remat`` has the same.

        Of a loss their new state is beside it (``has_aux``).
        """
        options, is_loss = self.book.options, bool(self.book.options.request.argnums)
        book = PlanBook(replace(options, request=replace(options.request, has_aux=is_loss)))
        book.plans = self.book.plans

        def run(pure: Callable[..., Any], args: Sequence[Any]) -> Any:
            def loss(*args: Any) -> Any:
                result, updates = pure(*args)
                is_pair = type(result) in (tuple, list) and len(result) == 2
                return (result[0], (updates, (result[1],))) if is_pair else (result, (updates, ()))

            value, (updates, aux) = book.run(loss, args, {})
            return (value, *aux) if aux else value, updates

        return lifted(self.fn, run if is_loss else lambda pure, args: book.run(pure, args, {}))


@overload
def remat(fn: Callable[P, R], **options: Unpack[RematOptions]) -> Planned[P, R]: ...
@overload
def remat(fn: None = None, **options: Unpack[RematOptions]) -> Callable[[Callable[P, R]], Planned[P, R]]: ...
@overload
def remat(fn: F, *, policy: Callable[..., Any] | None, **options: Unpack[RematOptions]) -> F: ...
@overload
def remat(
    fn: None = None, *, policy: Callable[..., Any] | None, **options: Unpack[RematOptions]
) -> Callable[[F], F]: ...
@door
def remat(
    fn: Callable[..., Any] | None = None,
    *,
    budget: int | str | float | None = None,
    strategy: StrategyLike | None = None,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    policy: Callable[..., Any] | None = None,
    prevent_cse: bool = True,
    **planning: Unpack[Planning],
) -> Any:
    """Return ``fn`` planned. It is planned when it is first traced, once for each set of input shapes.

    Use it as a function or as a decorator. The result has the signature, values and derivatives of ``fn`` and
    works under ``jax.jit``, ``grad``, ``value_and_grad``, ``vmap``, ``jvp`` and their combinations.

    Args:
        fn: a loss as in ``plan``, if ``argnums`` or ``has_aux`` is given or if it has a budget and returns a scalar.
            Otherwise any function of arrays, whose gradient step is its VJP, with cotangents for all of its outputs.
        budget: as in ``plan``; for a function that is not a loss, as in ``checkpoint``.
        strategy: by default ``"auto"`` with a budget, ``"memory"`` without.
        argnums, has_aux: as in ``plan``. When a gradient is being taken, what is differentiated is known; otherwise
            (if the call is jitted inside ``jax.grad``) the default is a loss's first argument, if that holds float
            arrays, else all that there are.
        static_argnums, static_argnames: positional and keyword arguments that are not traced.
        policy: a policy of ``jax.checkpoint``. Nothing is planned then; this is ``jax.checkpoint``.
        prevent_cse: as in ``jax.checkpoint``; False only inside a loop such as ``jax.lax.scan``.
        **planning: ``verify``, ``target``, ``cost``, ``existing``, ``progress``, ``must_save``, ``must_recompute``,
            ``never_recompute``, ``never_split``, ``offload``, ``may_offload``, ``host_budget``, as in ``plan``.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it.
        BudgetError: when called, if the budget cannot be met.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> @rp.remat(budget="60%")
        ... def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.sum(x)
        >>> gradient = jax.jit(jax.grad(loss))(jnp.ones((64, 64)) / 64, jnp.ones((4096, 64)))
        >>> gradient.shape
        (64, 64)
    """
    if policy is not None and not asks_for_plans(policy, budget, strategy, planning):
        return checkpoint(
            fn, policy=policy, prevent_cse=prevent_cse, static_argnums=static_argnums, static_argnames=static_argnames
        )
    any_function = argnums is None and not has_aux
    if argnums is None:
        argnums = 0 if budget is not None or has_aux else ()
    elif not positions(argnums):
        raise ValueError(f"argnums={short(argnums)}: name at least one argument to differentiate.")
    options = make_options(
        budget, strategy, static_argnums, prevent_cse, static_argnames, positions(argnums), has_aux, **planning
    )
    options = replace(options, is_mark=budget is None and strategy is None, any_function=any_function)
    make = functools.partial(_decorate, "rp.remat", options=options)
    return make if fn is None else make(fn)


@overload
def checkpoint(fun: F, **options: Unpack[CheckpointOptions]) -> F: ...
@overload
def checkpoint(fun: None = None, **options: Unpack[CheckpointOptions]) -> Callable[[F], F]: ...
@door
def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    policy: Callable[..., Any] | None = None,
    prevent_cse: bool | Sequence[bool] = True,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    budget: int | str | float | None = None,
    strategy: StrategyLike | None = None,
    **others: Any,
) -> Any:
    """``jax.checkpoint``; with a budget or a strategy, what is saved inside ``fun`` is planned.

    With JAX's own arguments only, this is ``jax.checkpoint``, but leaves of arguments need not be arrays (Equinox
    modules hold functions). Use it as a function or as a decorator, with or without arguments.

    Args:
        fun: any function of arrays (a layer, a block, a loss).
        policy, prevent_cse, static_argnums, static_argnames: as in ``jax.checkpoint``.
        budget: bytes for the forward and backward pass of ``fun`` alone, as in ``plan``: arguments, cotangents of its
            outputs, outputs, gradients with respect to every floating-point array, temporaries.
        strategy: the name of a strategy; ``"auto"`` if there is a budget.
        **others: with a budget or a strategy, ``verify``, ``target``, ``cost``, ``existing``, ``must_save``,
            ``must_recompute``, ``never_recompute``, ``never_split``, ``offload``, ``may_offload``, ``host_budget``,
            ``progress``, as in ``plan``; without, ``concrete`` if the installed ``jax.checkpoint`` takes it.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it.
        BudgetError: when called, if the budget cannot be met.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> @rp.checkpoint
        ... def layer(w, x):
        ...     return jnp.tanh(x @ w)
        >>> @rp.checkpoint(budget="80%")
        ... def layers(w, x):
        ...     for _ in range(8):
        ...         x = layer(w, x)
        ...     return x
        >>> layers(jnp.ones((64, 64)), jnp.ones((4096, 64))).shape
        (4096, 64)
    """
    make: Callable[..., Any]
    if not asks_for_plans(policy, budget, strategy, others):
        if unknown := sorted(set(others) - set(CheckpointOptions.__annotations__)):
            raise unknown_argument(unknown[0], CheckpointOptions.__annotations__, "of rp.checkpoint")
        others.update(policy=guarded(policy), prevent_cse=prevent_cse)
        make = functools.partial(_whole, static_argnums=static_argnums, static_argnames=static_argnames, others=others)
    elif isinstance(prevent_cse, bool):
        options = make_options(budget, strategy, static_argnums, prevent_cse, static_argnames, **others)
        make = functools.partial(_decorate, "rp.checkpoint", options=options)
    else:
        raise TypeError(f"prevent_cse={short(prevent_cse)}: True or False where a budget or a strategy is given.")
    return make if fun is None else make(fun)


def _whole(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int],
    static_argnames: str | Sequence[str],
    others: Mapping[str, Any],
) -> Callable[..., Any]:
    """``jax.checkpoint`` that waits for its cotangents in the backward pass; a call that JAX refuses is flattened."""
    check_function(fun, "rp.checkpoint needs")
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    static = {"static_argnums": static_argnums, "static_argnames": names}
    whole = _jax_checkpoint(fun, **others, **{name: value for name, value in static.items() if value != ()})

    @functools.wraps(whole)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        fixed, fixed_names = fixed_arguments(fun, len(args), static_argnums, names)
        dynamic = [a for i, a in enumerate(args) if i not in fixed], {k: kwargs[k] for k in kwargs.keys() - fixed_names}
        holds = _compat.barriers_hold_cotangents() or others["prevent_cse"] is not True
        is_given = all(-len(args) <= n < len(args) for n in positions(static_argnums))
        if holds and is_given and is_for_jax(dynamic):
            return whole(*args, **kwargs)
        refuse_bound_linen(jax.tree.leaves(args), "rp.checkpoint needs")
        call = make_function_call(fun, args, kwargs, static_argnums, names)
        if not holds:
            return _compat.held(call.flat_fn, call.leaves, others["policy"])
        barriers = others["prevent_cse"] is not False  # one for each argument cannot be told for the leaves
        return _jax_checkpoint(call.flat_fn, **{**others, "prevent_cse": barriers})(*call.leaves)

    return checkpointed


def _decorate(door: str, fn: Callable[..., Any], options: PlanOptions) -> Planned:
    check_function(fn, f"{door} needs")
    return Planned(fn, options)
