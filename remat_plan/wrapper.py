"""A function in place of another one.

In: the function. Out: ``Wrapper``, a base class: it has the function's name, documentation and signature, is bound as
a function is where it stands in a class, and is pickled: by its name where it stands there (a decorator put it there),
else as what it is made of.
"""

from __future__ import annotations

import functools
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)


class Wrapper(ABC, Generic[P, R]):
    """See the module docstring.

    Attributes:
        fn: the function.
    """

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
        name = getattr(self, "__qualname__", type(self.fn).__name__)
        return f"<{name}: {'; '.join(map(repr, self.known_plans())) or 'planned when it is first called'}>"

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
