"""Positions of arguments: those that are differentiated, those that are not traced.

In: what a user wrote for ``argnums`` or ``static_argnums``. Out: positions from 0, names, or an error that
names what is wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from remat_plan.small.wording import short


def positions(argnums: int | Sequence[int], name: str = "argnums") -> tuple[int, ...]:
    """Return positions of arguments as a tuple of integers; one integer stands for itself.

    Raises:
        TypeError: not integers.
    """
    single = isinstance(argnums, (int, np.integer)) or not isinstance(argnums, Iterable)
    numbers: tuple[Any, ...] = (argnums,) if single else tuple(argnums)  # type: ignore[arg-type]
    for n in numbers:
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
            raise TypeError(f"{name}={short(argnums)}: positions of arguments are integers, not {type(n).__name__}.")
    return tuple(int(n) for n in numbers)


def normalize_argnums(argnums: int | Sequence[int], n_args: int, name: str = "argnums") -> tuple[int, ...]:
    """Return ``argnums`` as a tuple of positions from 0 to ``n_args - 1``.

    Raises:
        TypeError: not integers. ValueError: out of range, or none at all.
    """
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
    """Return the positions and the names of the arguments of a call that are not traced.

    As in ``jax.jit``: an argument that is named by its position may be given by its name, or left out, and the other
    way round.

    Args:
        fn: what is called.
        count: with how many positional arguments.
        static_argnums, static_argnames: as in ``jax.jit``.

    Raises:
        ValueError: a position that there is no argument for.
    """
    parameters, any_number = _positional(fn)
    most = count if any_number else max(count, len(parameters))
    fixed = set()
    for n in positions(static_argnums, "static_argnums"):
        if not -most <= n < most and not (any_number and n >= 0):
            raise ValueError(
                f"static_argnums={short(static_argnums)}: the function gets {count} positional argument(s)."
            )
        fixed.add(n % most if n < 0 else n)
    fixed |= {i for i, name in enumerate(parameters) if name in static_argnames}
    names = {parameters[i] for i in fixed if i < len(parameters)}
    return {i for i in fixed if i < count}, names | set(static_argnames)


def _positional(fn: Callable[..., Any]) -> tuple[list[str], bool]:
    """The names of a function's positional parameters, and whether there may be more arguments than these."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # what is not written in Python need not have one
        return [], False
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [p.name for p in parameters if p.kind in kinds]
    return names, any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
