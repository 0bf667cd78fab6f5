"""What the functions that users call, and those that they are given in return, have in common.

In: such a function. Out: by ``door`` the same one: its tracebacks show no frames below it, as those of JAX's own
functions do not (``JAX_TRACEBACK_FILTERING=off`` shows all); a call that does not fit its signature says how it is
called; where JAX has no gradient for a loop, a note names one that has. ``Wrapper`` is the base class of a function in
place of another one: it has that function's name, documentation and signature, is bound as a function is where it
stands in a class, and is pickled: by its name where it stands there (a decorator put it there), else as what it is made
of.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

import numpy as np

from remat_plan import _compat
from remat_plan.small.wording import did_you_mean, name_of, readable, short

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)

WHILE_NOTE = (
    "rp.while_loop(cond, body, init, max_steps=...) is the same loop with a gradient. If the number of steps is known, "
    "jax.lax.scan and rp.scan have one too."
)


def door(fn: F) -> F:
    """Decorate a function that users call."""

    @readable
    @functools.wraps(fn)
    def entered(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except TypeError:
            if (text := _misuse(fn, args, kwargs)) is None:
                raise
            raise TypeError(text) from None
        except ValueError as error:
            if _compat.is_of_while_loop(error) and WHILE_NOTE not in getattr(error, "__notes__", ()):
                error.add_note(WHILE_NOTE)
            raise

    return cast(F, _compat.api_boundary(entered))


def unknown_argument(name: str, known: Collection[str], where: str = "here", takes_kwargs: bool = False) -> TypeError:
    """The error of a keyword argument that a function does not have."""
    hint = did_you_mean(name, known)
    if not (hint or takes_kwargs):
        hint = f" It takes {', '.join(known)}."
    if takes_kwargs:
        hint += f" Pass keyword arguments of the function itself as kwargs={{{name!r}: ...}}."
    return TypeError(f"{name!r} is not an argument {where}.{hint}")


def integer(name: str, value: Any, least: int = 1, why: str = "") -> int:
    """An argument that is an integer of at least ``least``; if it is none, an error that says so, and perhaps why.

    >>> import numpy as np
    >>> integer("slots", np.int64(3))
    3
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:  # no integer, or one whose value only a running step knows
        number = None
    if number is None or number < least:
        error = TypeError if number is None else ValueError
        raise error(f"{name}={short(value)}: give an integer of at least {least}{why}.")
    return number


def flag(name: str, value: Any, why: str = "") -> bool:
    """An argument that is true or false; if it is neither (``"no"`` is true), an error that says so, and perhaps more.

    >>> flag("verify", False)
    False
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError(f"{name}={short(value)}: give True or False{why}.")


def _misuse(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """What to say of a call that does not fit the signature; None if it does, so that the error is another."""
    signature = inspect.signature(fn)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:  # what it says is the answer
        place = fn.__module__.rpartition(".")[2]
        name = f"{place}.{fn.__qualname__}" if place in ("linen", "nnx") else fn.__qualname__
        name = name if "." in fn.__qualname__ else f"rp.{name}"
        takes = signature.parameters.values()
        options = [p.name for p in takes if p.kind is p.KEYWORD_ONLY]
        unknown = [key for key in kwargs if key not in signature.parameters]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in takes):
            return str(unknown_argument(unknown[0], options, f"of {name}", "kwargs" in options))
        inputs = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in takes if p.kind < p.KEYWORD_ONLY]
        form = ", ".join(inputs + [f"{option}=..." for option in options[:1]])
        return f"{name}: {error}. Write {name}({form})."
    return None


class Wrapper(ABC, Generic[P, R]):
    """A function in place of another one, ``fn``."""

    def __init__(self, fn: Callable[P, R]):
        functools.update_wrapper(self, fn)  # first: a callable object may have attributes of our names
        self.fn = fn

    @abstractmethod
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What is called in place of the function."""

    @abstractmethod
    def made_of(self) -> tuple[Any, ...]:
        """The arguments that make another one of it."""

    @abstractmethod
    def known_plans(self) -> tuple[Any, ...]:
        """The plans that it has."""

    def __repr__(self) -> str:
        plans = "; ".join(map(repr, self.known_plans())) or "planned when it is first called"
        return f"<{getattr(self, '__qualname__', name_of(self.fn))}: {plans}>"

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(self: Wrapper[Concatenate[Any, Q], R], instance: object, owner: Any = None) -> Callable[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        name = getattr(self, "__qualname__", "")
        return name if _stands_at(self, name) else (type(self), self.made_of())


def _stands_at(thing: Wrapper, name: str) -> bool:
    """Tell whether a thing is what its module has under a dotted name."""
    found: Any = sys.modules.get(getattr(thing, "__module__", ""))
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing
