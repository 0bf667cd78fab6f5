"""What objects of other libraries are to this one, told by their classes: nothing of Flax or Equinox is imported.

In: any value. Out: whether it is a module of Flax NNX, which leaves of a pytree are traced (Python numbers in a model
are a part of it); ``check_function``, which refuses what is no function and says what to give instead.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable
from typing import Any

import jax

_NNX_BASES = ("Module", "Pytree", "Object")
"""Classes of Flax NNX, one of which everything that a function may update is: modules, optimizers, metrics, streams."""


@functools.cache
def _is_of(kind: type, package: str, *names: str) -> bool:
    """Tell whether a class is, or is made of, one that a package has under one of some names (of none: under any)."""
    return any(c.__module__.startswith(package) and (not names or c.__name__ in names) for c in kind.__mro__)


def is_nnx_module(value: Any) -> bool:
    """Tell whether a value is a module of Flax NNX (or an optimizer, ...): a pytree that a function may update."""
    return _is_of(type(value), "flax.nnx", *_NNX_BASES)


def is_model(value: Any) -> bool:
    """Tell whether a value is a model or a layer of one: what can be called, and modules of Equinox.

    Python numbers in it (where a pooling starts, the rate of a dropout) are part of the program, as
    ``equinox.filter_jit`` has it. Those in dictionaries, tuples and states are data, as ``jax.jit`` has it; NNX tells
    the two apart itself.
    """
    kind = type(value)
    return _is_of(kind, "equinox", "Module") or (callable(value) and not _is_of(kind, "flax.nnx"))


def is_array(leaf: Any) -> bool:
    """Tell whether an argument leaf is an array, or stands for one."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def is_number(leaf: Any) -> bool:
    """Tell whether an argument leaf is a Python number; what is true or false is none."""
    return isinstance(leaf, (int, float, complex)) and not isinstance(leaf, bool) and not is_array(leaf)


def sort_leaves(tree: Any) -> list[tuple[bool, bool]]:
    """Tell of each leaf of a pytree whether it is traced (arrays, and numbers outside of models), and is in a model."""
    found = []
    for part in jax.tree.leaves(tree, is_leaf=is_model):
        inside = is_model(part)
        leaves = jax.tree.leaves(part) if inside else [part]
        found += [(is_array(leaf) or (is_number(leaf) and not inside), inside) for leaf in leaves]
    return found


def is_for_jax(tree: Any) -> bool:
    """Tell whether JAX takes all leaves of a pytree: arrays, and Python numbers that are not a part of a model."""
    leaves = zip(jax.tree.leaves(tree), sort_leaves(tree), strict=True)
    return all(traced or (isinstance(leaf, bool) and not inside) for leaf, (traced, inside) in leaves)


def refuse_bound_linen(leaves: Iterable[Any], need: str) -> None:
    """Raise ``TypeError`` if an argument is a Linen module that has its variables: it is the ``self`` of a method."""
    if any(_is_of(type(leaf), "flax.linen", "Module") and leaf.scope is not None for leaf in leaves):
        raise _linen_method(need)


def check_function(fn: Any, need: str) -> None:
    """Raise ``TypeError`` unless ``fn`` is a function that computes with its arguments; ``need`` begins the message
    (``"rp.remat needs"``)."""
    if isinstance(fn, functools.partial):
        return check_function(fn.func, need)
    if not callable(fn):
        raise TypeError(f"{need} a function, not {type(fn).__name__}.")
    if inspect.iscoroutinefunction(fn):
        raise TypeError(f"{need} a function that returns arrays, but an async function returns a coroutine.")
    owner = fn.__self__ if isinstance(fn, types.MethodType) else fn
    kind, is_class = (owner, True) if isinstance(owner, type) else (type(owner), False)
    what = f"the class {kind.__name__}" if is_class else f"a module ({kind.__name__})"
    if _is_of(kind, "flax.nnx", *_NNX_BASES) and (owner is fn or not is_class):
        raise TypeError(
            f"{need} a function, not {what} of flax.nnx. Pass the loss, a function that takes the module as an "
            "argument (lambda model, x: ...), or use rp.nnx.remat on methods in their class."
        )
    if _is_of(kind, "flax.linen", "Module") and (owner is fn or fn.__name__ == "__call__"):
        raise TypeError(
            f"{need} a function, not {what} of flax.linen. Pass the loss, a function of the parameters that calls "
            "model.apply, or use rp.linen.remat on the class."
        )
    if getattr(fn, "compact", False) is True:
        raise _linen_method(need)
    if isinstance(fn, type):
        raise TypeError(f"{need} a function, not {what}: pass the loss, or decorate methods of the class.")
    return None


def _linen_method(need: str) -> TypeError:
    return TypeError(
        f"{need} a function whose arrays are all arguments, but a method of a flax.linen module does not take the "
        "module's variables as an argument. Use rp.linen.remat on the method or the class, or plan the loss: a "
        "function of the parameters that calls model.apply."
    )
