"""Arguments by their positions and names: those that are differentiated, that are not traced, that JAX speaks of.

In: what a user wrote for ``argnums`` or ``static_argnums``. Out: positions from 0, names, or an error that
names what is wrong. In: an error from tracing a ``Call`` on flat arrays, which JAX calls ``args[0]``, ``args[1]``, ...
Out: the same error, which speaks of ``n`` or ``params['w']``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from remat_plan.small.wording import short

_FLAT = re.compile(r"(?<![*\w])args\[(\d+)\]")
"""What JAX calls a flat argument; not one that was named already (``*args[0]``)."""

FLAT_NAMES = inspect.signature(lambda *args: args)
"""The signature of a function of flat arrays: without it JAX takes the names of the user's arguments in order."""


def positions(argnums: int | Sequence[int], name: str = "argnums") -> tuple[int, ...]:
    """Return positions of arguments as a tuple; one integer stands for itself. ``TypeError`` for what is no integer."""
    single = isinstance(argnums, (int, np.integer)) or not isinstance(argnums, Iterable)
    numbers: tuple[Any, ...] = (argnums,) if single else tuple(argnums)  # type: ignore[arg-type]
    for n in numbers:
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            raise TypeError(f"{name}={short(argnums)}: positions of arguments are integers, not {type(n).__name__}.")
    return tuple(int(n) for n in numbers)


def normalize_argnums(argnums: int | Sequence[int], n_args: int, name: str = "argnums") -> tuple[int, ...]:
    """Return ``argnums`` as a tuple of positions from 0 to ``n_args - 1``; ``ValueError`` if out of range, or none at
    all."""
    numbers = positions(argnums, name)
    for n in numbers:
        if not -n_args <= n < n_args:
            raise ValueError(f"{name}={short(argnums)}: the function gets {n_args} positional argument(s).")
    if not numbers:
        raise ValueError(f"{name}={short(argnums)}: name at least one argument to differentiate.")
    return tuple(n % n_args for n in numbers)


def fixed_arguments(
    fn: Callable[..., Any], count: int, static_argnums: int | Sequence[int], static_argnames: Sequence[str] = ()
) -> tuple[set[int], set[str]]:
    """Return the positions and the names of the arguments of a call, with ``count`` by position, that are not traced.

    As in ``jax.jit``: an argument that is named by its position may be given by its name, or left out, and the other
    way round. ``ValueError`` for a position that there is no argument for.
    """
    parameters, several = _positional(fn)
    most = count if several else max(count, len(parameters))
    fixed = set()
    for n in positions(static_argnums, "static_argnums"):
        if not -most <= n < most and not (several and n >= 0):
            raise ValueError(
                f"static_argnums={short(static_argnums)}: the function gets {count} positional argument(s)."
            )
        fixed.add(n % most if n < 0 else n)
    fixed |= {i for i, name in enumerate(parameters) if name in static_argnames}
    names = {parameters[i] for i in fixed if i < len(parameters)}
    return {i for i in fixed if i < count}, names | set(static_argnames)


def _positional(fn: Callable[..., Any]) -> tuple[list[str], str | None]:
    """The names of a function's positional parameters, and of the one for any more arguments; None without one."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # what is not written in Python need not have one
        return [], None
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return named, next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)


def name_arguments(error: Exception, fn: Callable[..., Any], tree: Any, traced: Sequence[bool]) -> None:
    """Write names into the text of an error that was raised while the user's ``fn`` was traced on flat arrays.

    ``tree`` is the structure of ``(args, kwargs)``; ``traced`` tells which of its leaves are flat arguments.
    """
    text = error.args[0] if error.args else None
    if not isinstance(text, str) or f"tracing the function {getattr(fn, '__name__', '')} " not in text:
        return
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(tree, range(len(traced))))]
    flat = [path for path, is_array in zip(paths, traced, strict=True) if is_array]
    if all(int(number) < len(flat) for number in _FLAT.findall(text)):
        error.args = (_FLAT.sub(lambda match: _name(fn, flat[int(match[1])]), text), *error.args[1:])


def _name(fn: Callable[..., Any], path: Sequence[Any]) -> str:
    """The name of an argument and where in it a leaf is, as one would write it in the function."""
    group, own, *rest = path
    inside = jax.tree_util.keystr(tuple(rest))
    if group.idx:
        return own.key + inside
    named, several = _positional(fn)
    if own.idx < len(named):
        return named[own.idx] + inside
    return (f"*{several}[{own.idx - len(named)}]" if several else f"argument {own.idx}") + inside
