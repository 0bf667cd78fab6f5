"""Flax NNX modules among the arguments of a function: functions of their state instead.

In: functions, arguments. Out: the same functions, of pytrees; what they update is carried out and stored in the
modules. Modules are here all objects of NNX that a function may update: optimizers, metrics and random streams too.

Flax is imported where a module is met, not before.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from remat_plan.graph.frameworks import is_nnx_module
from remat_plan.small.wording import name_of

_TAG = "remat_plan"

Run = Callable[[Callable[..., Any], Sequence[Any]], Any]
"""Runs a pure function on its arguments."""


def holds_modules(args: Any) -> bool:
    """Tell whether there is an NNX module anywhere in a pytree."""
    return any(map(is_nnx_module, jax.tree.leaves(args, is_leaf=is_nnx_module)))


def lifted(f: Callable[..., Any], run: Run) -> Callable[..., Any]:
    """Return ``f`` with a pure function of the modules' state run in its place.

    The pure function returns the new state with the result, so that what ``f`` updates is updated once, whatever
    ``run`` computes again.
    """
    from flax.nnx.transforms import general

    @functools.wraps(f)
    def of_modules(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            bound = inspect.signature(f).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        pure = general.merge_inputs(by_position(f, len(args), kwargs), ctxtag=_TAG)
        split = general.split_inputs(lambda *args: _run_updates(run, pure, args), ctxtag=_TAG)
        return split(*args, *kwargs.values())

    return of_modules


def by_position(fn: Callable[..., Any], count: int, names: Iterable[str]) -> Callable[..., Any]:
    """A function that gets by position, behind ``count`` arguments, what ``fn`` gets by some names."""
    if not (names := tuple(names)):
        return fn

    @functools.wraps(fn, updated=())
    def in_order(*values: Any) -> Any:
        return fn(*values[:count], **dict(zip(names, values[count:], strict=True)))

    in_order.__name__ = name_of(fn)  # a partial function has none to take over
    return in_order


def _run_updates(run: Run, pure: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Run a pure function that returns new state and a result; of the state only what is new comes out of ``run``.

    Parameters that come back as they are would be outputs with cotangents of their own, as large as the model. The
    result comes first, so that a loss is the first output, as of other functions.
    """
    places: list[int | None] = []
    tree = None

    def updates(*inner: Any) -> tuple[Any, list[Any]]:
        nonlocal tree
        state, result = pure(*inner)
        leaves, tree = jax.tree.flatten(state)
        known = {id(leaf): i for i, leaf in enumerate(jax.tree.leaves(inner))}
        places[:] = [known.get(id(leaf)) for leaf in leaves]
        return result, [leaf for leaf, place in zip(leaves, places, strict=True) if place is None]

    result, new = run(updates, args)
    old, updated = jax.tree.leaves(args), iter(new)
    leaves = [next(updated) if place is None else old[place] for place in places]
    return jax.tree.unflatten(tree, leaves), result


@dataclass(frozen=True)
class Functional:
    """A function of modules (a training step) as one of their state.

    ``places`` are the arguments that hold modules, ``modules`` these arguments, ``states`` their state, one pytree for
    each; ``graph`` is what they are beside it.
    """

    fn: Callable[..., Any]
    graph: Any
    places: tuple[int, ...]
    modules: tuple[Any, ...]
    states: tuple[Any, ...]

    @staticmethod
    def of(fn: Callable[..., Any], args: Sequence[Any]) -> Functional:
        """Split the modules in the arguments of a call; a module that two of them share stays one."""
        from flax import nnx

        places = tuple(i for i, a in enumerate(args) if holds_modules(a))
        modules = tuple(args[i] for i in places)
        graph, state = nnx.split(modules)
        return Functional(fn, graph, places, modules, tuple(state.get(j, {}) for j in range(len(places))))

    def arguments(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments of ``pure`` for those of the call."""
        states = dict(zip(self.places, self.states, strict=True))
        return tuple(states.get(i, a) for i, a in enumerate(args))

    def pure(self, *args: Any) -> tuple[tuple[Any, ...], Any]:
        """Run the function on states in place of modules; return the new states, and what it returns."""
        from flax import nnx

        state = nnx.State({j: args[i] for j, i in enumerate(self.places)})
        modules = nnx.merge(self.graph, state)
        given = dict(zip(self.places, modules, strict=True))
        result = self.fn(*[given.get(i, a) for i, a in enumerate(args)])
        new = nnx.state(modules)
        return tuple(new.get(j, {}) for j in range(len(self.places))), result

    def store(self, states: Sequence[Any]) -> None:
        """Put new states into the modules of the call."""
        from flax import nnx

        nnx.update(self.modules, nnx.State(dict(enumerate(states))))
