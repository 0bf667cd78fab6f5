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
from typing import Any


class Wrapper(ABC):
    """See the module docstring.

    Attributes:
        fn: the function.
    """

    def __init__(self, fn: Callable[..., Any]):
        functools.update_wrapper(self, fn)  # first: a callable object may have attributes of our names
        self.fn = fn

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What is called in place of the function."""

    @abstractmethod
    def made_of(self) -> tuple[Any, ...]:
        """The arguments that make another one of it."""

    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., Any]:
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
