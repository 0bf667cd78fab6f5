"""Arguments by the names that they have for the user, in JAX's messages.

In: an error from tracing a ``Call`` on flat arrays, which JAX calls ``args[0]``, ``args[1]``, ... Out: the same error,
which speaks of ``n`` or ``params['w']``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

_FLAT = re.compile(r"(?<![*\w])args\[(\d+)\]")
"""What JAX calls a flat argument; not one that was named already (``*args[0]``)."""

FLAT_NAMES = inspect.signature(lambda *args: args)
"""The signature of a function of flat arrays: without it JAX takes the names of the user's arguments in order."""


def name_arguments(error: Exception, fn: Callable[..., Any], tree: Any, traced: Sequence[bool]) -> None:
    """Write names into the text of an error that was raised while ``fn`` was traced on flat arrays.

    Args:
        error: changed in place.
        fn: the user's function.
        tree: the structure of ``(args, kwargs)``.
        traced: which of its leaves are flat arguments.
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
    return (own.key if group.idx else _of_position(fn, own.idx)) + jax.tree_util.keystr(tuple(rest))


def _of_position(fn: Callable[..., Any], position: int) -> str:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # no signature is known of it
        return f"argument {position}"
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if position < len(named):
        return named[position]
    several = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), "argument ")
    return f"*{several}[{position - len(named)}]"
