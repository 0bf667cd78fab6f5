"""Flax Linen: module classes and methods that plan themselves.

In: a module class, or a method of one, and what ``flax.linen.remat`` takes, or a budget or the name of a strategy.
Out: a class, or a method, with the same variables, random numbers and results.

Flax lifts functions of scopes: it packs variables and random streams of a module into pytrees, calls a pure function
of them, and publishes what that returns. Here the pure function is planned (``plans.book.PlanBook``): what it returns
are the output and every mutable collection, so batch statistics and sown values come out of one run, and what is
computed again in the backward pass is a copy that nobody publishes. Random streams enter as keys, so the copy draws
the same masks. While variables are initialised nothing is planned.

``remat_scan`` runs one module class many times, each time with its own variables, as a loop with a schedule
(``loops.scan``) for its gradient.

Limits: a model's evaluation is another program and planned too; build the model of the undecorated class for it, the
variables are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import jax

from remat_plan import _compat
from remat_plan.graph.argnums import positions
from remat_plan.graph.call import struct_of
from remat_plan.loops.scan import ScheduleLike, scan
from remat_plan.planning.strategies.values import StrategyLike
from remat_plan.plans.arguments import Planning, asks_for_plans, make_options
from remat_plan.plans.book import PlanBook
from remat_plan.rewrite.policies import guarded
from remat_plan.small.doors import door
from remat_plan.small.wording import short

try:
    import flax.linen as nn
    from flax.core import lift, meta
    from flax.linen.transforms import lift_transform
except ModuleNotFoundError as error:  # pragma: no cover
    raise ImportError('rp.linen needs Flax: pip install "remat_plan[flax]"') from error

Fn = Callable[..., Any]


@door
def remat(
    module: Callable[..., Any] | None = None,
    *,
    budget: int | str | float | None = None,
    strategy: StrategyLike | None = None,
    policy: Callable[..., Any] | None = None,
    variables: Any = True,
    rngs: Any = True,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
    methods: Sequence[str] | None = None,
    **planning: Unpack[Planning],
) -> Any:
    """``flax.linen.remat``; with a budget or a strategy, what is saved inside the module is planned.

    Use it on a module class (as a function, or as a decorator with or without arguments) or on a method. Parameters,
    their names, random numbers and mutable collections are those of the undecorated module. (``flax.linen.remat`` names
    an unnamed module ``CheckpointBlock_0``; here it stays ``Block_0``.) Plans are made when the module is first traced,
    once for every program that results (input shapes, training or not, whether its input is differentiated: not in a
    first layer); all modules of the class share them. The result has them in its attribute ``remat_plans``.

    Args:
        module: a ``Module`` class, or a method (a function whose first argument is a module).
        budget: bytes for the forward and backward pass of one module alone: its variables, inputs and cotangents,
            outputs and gradients, temporaries (as in ``rp.checkpoint``, without the model around it). To fit a model
            into a budget, plan its loss: ``rp.remat(loss, budget=...)``.
        strategy: the name of a strategy; ``"auto"`` if there is a budget.
        policy: a policy of ``jax.checkpoint``; without budget and strategy this is ``flax.linen.remat``: one segment.
        variables, rngs: the collections and random streams that are lifted; by default all.
        prevent_cse: as in ``jax.checkpoint``; False only inside a loop such as ``flax.linen.scan``.
        static_argnums: positions of arguments that are not traced; the module itself is 0. (With a budget or a
            strategy, booleans, strings and None are never traced.)
        methods: the methods of a class; by default ``__call__``.
        **planning: ``verify``, ``target``, ``cost``, ``existing``, ``must_save``,
            ``must_recompute``, ``never_recompute``, ``never_split``, ``offload``, ``may_offload``, ``host_budget``,
            as in ``rp.plan``.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it.
        BudgetError: when called, if the budget cannot be met.

    Example:
        >>> import jax, jax.numpy as jnp, flax.linen as nn, remat_plan as rp
        >>> @rp.linen.remat(strategy="each_block", verify=False)
        ... class Block(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return x + nn.Dense(8)(nn.gelu(nn.Dense(32)(x)))
        >>> model = nn.Sequential([Block(), Block()])
        >>> variables = model.init(jax.random.key(0), jnp.ones((4, 8)))
        >>> model.apply(variables, jnp.ones((4, 8))).shape
        (4, 8)
    """
    if isinstance(module, nn.Module):
        raise TypeError(f"rp.linen.remat needs a class: write rp.linen.remat({type(module).__name__}, ...)(...).")
    if module is not None and not callable(module):
        raise TypeError(f"rp.linen.remat needs a module class or a method, not {type(module).__name__}.")
    lifting = {"variables": variables, "rngs": rngs}
    if not asks_for_plans(policy, budget, strategy, planning):
        given = {"policy": guarded(policy), "prevent_cse": prevent_cse, "static_argnums": static_argnums}
        make = functools.partial(_whole, options={**lifting, **given, "methods": methods})
    else:
        if methods is not None and (
            isinstance(methods, (str, Mapping)) or not all(isinstance(m, str) for m in methods)
        ):
            raise TypeError(f"methods={short(methods)}: give a list of names of methods.")
        book = PlanBook(make_options(budget, strategy, _packed(static_argnums), prevent_cse, **planning))
        make = functools.partial(_planned, book=book, lifting=lifting, methods=methods)
    return make if module is None else make(module)


def _whole(target: Any, options: Mapping[str, Any]) -> Any:
    """``flax.linen.remat`` with the names of the undecorated class."""
    return _named_as(nn.remat(target, **options), target)


def _planned(target: Any, book: PlanBook, lifting: Mapping[str, Any], methods: Sequence[str] | None) -> Any:
    """Lift a class or a method so that what it computes is planned."""
    lifted = _named_as(lift_transform(planned_scope, target, methods=methods, book=book, **lifting), target)
    holder = lifted.func if isinstance(lifted, functools.partial) else lifted
    holder.remat_plans = book.plans  # type: ignore[attr-defined]
    return lifted


def _named_as(lifted: Any, target: Any) -> Any:
    """Give a lifted class the name of its original, from which Flax makes the names of modules."""
    if isinstance(lifted, functools.partial):
        _named_as(lifted.func, target.func)
    elif isinstance(lifted, type):
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(lifted, name, getattr(target, name))
    return lifted


def _packed(static_argnums: int | Sequence[int]) -> tuple[int, ...]:
    """Positions in a method's arguments, the module being 0, as positions behind variables and random streams."""
    numbers = positions(static_argnums, "static_argnums")
    if 0 in numbers:
        raise ValueError(f"static_argnums={static_argnums!r}: argument 0 is the module itself; count from 1.")
    return tuple(n + 1 if n > 0 else n for n in numbers)


def planned_scope(fn: Fn, book: PlanBook, variables: Any, rngs: Any) -> Fn:
    """Lift a function of scopes so that what it computes is planned (a transform as those of ``flax.core.lift``).

    While variables are initialised it is lifted all the same: Flax reserves their names in the scopes of each call.
    """

    def lifted(run: Fn) -> Fn:
        def packed(scope_fn: Fn, repack_fn: Fn, *given: Any, **kwargs: Any) -> Any:
            def pure(variable_groups: Any, rng_groups: Any, *args: Any, **kwargs: Any) -> Any:
                scopes = scope_fn(variable_groups, rng_groups)
                return fn(scopes, *args, **kwargs), repack_fn(scopes)

            return run(pure, given, kwargs)

        return lift.pack(packed, (variables,), (variables,), (rngs,), name="remat", enable_kwargs=True)

    return _unless_initializing(lifted(book.run), lifted(lambda pure, args, kwargs: pure(*args, **kwargs)))


def _unless_initializing(lifted: Fn, initialise: Fn) -> Fn:
    """A lifted function of scopes, and another one in its place while variables are initialised."""

    def run(scopes: Any, *args: Any, **kwargs: Any) -> Any:
        initializing = any(scope.get_flag("initializing", False) for scope in scopes)
        return (initialise if initializing else lifted)(scopes, *args, **kwargs)

    return run


@door
def remat_scan(
    module: Callable[..., Any],
    length: int,
    *,
    schedule: ScheduleLike = "sqrt",
    slots: int | None = None,
    budget: int | str | float | None = None,
    variable_axes: Mapping[Any, int] | None = None,
    variable_broadcast: Any = False,
    split_rngs: Mapping[Any, bool] | None = None,
    metadata_params: Mapping[Any, Any] | None = None,
    methods: Sequence[str] | None = None,
) -> Any:
    """Stack ``length`` modules of one class, with memory that does not grow with their number.

    ``flax.linen.remat_scan`` without lengths to choose by hand. Variables have the layout of ``flax.linen.scan`` (one
    leading axis of size ``length``) and the same initial values, and random numbers are the same; ``schedule`` can be
    changed later without touching them.

    Args:
        module: a ``Module`` class whose method takes one value (any pytree) and returns one like it; or a method.
        length: the number of modules.
        schedule, slots, budget: as in ``rp.scan``; by default about ``sqrt(length)`` values are stored, for one more
            forward pass.
        variable_axes: the collections that each module has for itself, with axis 0; by default all.
        variable_broadcast: the collections that all modules share; they cannot be updated.
        split_rngs: the random streams, with True if each module draws its own numbers; by default all.
        metadata_params: as in ``flax.linen.scan``, for variables with metadata such as partition names.
        methods: the methods of a class; by default ``__call__``.

    Raises:
        ValueError: an axis other than 0, a shared collection that is updated, a schedule as in ``rp.scan``.

    Example:
        >>> import jax, jax.numpy as jnp, flax.linen as nn, remat_plan as rp
        >>> model = rp.linen.remat_scan(nn.Dense, length=100)(8)
        >>> variables = model.init(jax.random.key(0), jnp.ones((4, 8)))
        >>> variables["params"]["kernel"].shape
        (100, 8, 8)
    """
    axes = {True: 0} if variable_axes is None else dict(variable_axes)
    if wrong := {collection: axis for collection, axis in axes.items() if axis != 0}:
        raise ValueError(f"variable_axes: {wrong!r} is not supported, use 0; others are transposed at every step.")
    lifted = lift_transform(
        scanned_scope,
        module,
        methods=methods,
        length=length,
        axes=axes,
        broadcast=variable_broadcast,
        rngs={True: True} if split_rngs is None else dict(split_rngs),
        metadata={} if metadata_params is None else dict(metadata_params),
        options={"schedule": schedule, "slots": slots, "budget": budget},
    )
    return _named_as(lifted, module)


def scanned_scope(
    fn: Fn,
    length: int,
    axes: Mapping[Any, int],
    broadcast: Any,
    rngs: Mapping[Any, bool],
    metadata: dict[Any, Any],
    options: Mapping[str, Any],
) -> Fn:
    """Lift a function of scopes to a loop over stacked variables (a transform as those of ``flax.core.lift``).

    ``fn`` takes a scope (or several) and one value and returns the next value; collections are stacked along ``axes``
    or shared (``broadcast``); ``options`` are those of ``loops.scan.scan``.
    """
    initialise = lift.scan(
        lambda scopes, value: (fn(scopes, value), ()),
        variable_axes=axes, variable_broadcast=broadcast, split_rngs=rngs, length=length, metadata_params=metadata,
    )  # fmt: skip
    splits = tuple(rngs.values())

    def packed(scope_fn: Fn, repack_fn: Fn, variable_groups: Any, rng_groups: Any, value: Any) -> Any:
        shared, *stacked = variable_groups
        rows = [meta.remove_axis(group, 0, metadata) for group in stacked]
        given = [_split(g, length) if split else None for g, split in zip(rng_groups, splits, strict=True)]

        def step(value: Any, row: Any) -> tuple[Any, Any]:
            own, keys = row
            streams = tuple(g if k is None else k for g, k in zip(rng_groups, keys, strict=True))
            scopes = scope_fn((shared, *own), streams)
            value = fn(scopes, value)
            updated_shared, *updated = repack_fn(scopes)
            if names := sorted({name for group in updated_shared for name in group if group[name]}):
                raise ValueError(
                    f"rp.linen.remat_scan: the shared collections {names} are updated in the loop; name them in "
                    "variable_axes instead of variable_broadcast."
                )
            return value, updated

        value, updated = scan(_traced(step, value, (rows, given)), value, (rows, given), length, **options)
        unchanged = tuple({} for _ in shared)
        return value, (unchanged, *(meta.add_axis(group, 0, metadata) for group in updated))

    groups = (broadcast, *axes)
    lifted = lift.pack(packed, groups, groups, tuple(rngs), name="scan")
    return _unless_initializing(lifted, lambda scopes, value: initialise(scopes, value)[0])


def _traced(step: Callable[..., Any], value: Any, rows: Any) -> Callable[..., Any]:
    """Return a step as what it computes, so that it draws the random numbers that it draws in ``flax.linen.scan``.

    Flax counts the draws of a module while Python runs it, and its scan runs the step twice: first to see what does
    not change in the loop, then for the loop.
    """
    first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
    given = jax.tree.map(struct_of, value), first
    jax.eval_shape(step, *given)
    closed, shape = jax.make_jaxpr(lambda *again: step(*again), return_shape=True)(*given)
    run, tree = _compat.as_function(closed), jax.tree.structure(shape)
    return lambda value, row: jax.tree.unflatten(tree, run(*jax.tree.leaves((value, row))))


def _split(streams: Any, length: int) -> Any:
    """Split every random stream into one for each step."""
    return lift.tree_map_rngs(lambda key: jax.random.split(jax.random.clone(key), length), streams)
