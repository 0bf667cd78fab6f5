"""What messages and ``help`` have in common: how they show values and signatures, and what was perhaps meant.

In: any value; a name and the names that are known; a function. Out: short texts; the function, as ``help`` shows it.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

_MOST_CHARACTERS = 80


class _Short(reprlib.Repr):
    """Arrays are shown by type and shape, NumPy's numbers as they are, whatever is long is cut."""

    def repr1(self, x: Any, level: int) -> str:
        shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
        if isinstance(shape, tuple) and dtype is not None and not isinstance(x, np.generic):
            return f"{dtype}[{','.join(map(str, shape))}]"
        return super().repr1(x, level)


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _MOST_CHARACTERS


def short(value: Any) -> str:
    """A value as it is written, on one line; never the contents of an array.

    >>> import numpy as np
    >>> short({"w": np.ones((3, 4), "float32")}), short("8GiB"), short([1, 2])
    ("{'w': float32[3,4]}", "'8GiB'", '[1, 2]')
    """
    return " ".join(_SHORT.repr(value).split())


def name_of(fn: Any) -> str:
    """What a function is called; of what ``functools.partial`` makes, what it calls, unless that has a name too."""
    while isinstance(fn, functools.partial) and not hasattr(fn, "__name__"):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest of the known names, after a space; nothing where none is near.

    >>> did_you_mean("memmory", ["memory", "speed"]), did_you_mean("magic", ["memory", "speed"])
    (" Did you mean 'memory'?", '')
    """
    known = list(known)
    inside = [k for k in known if len(name) > 2 and name.lower() in k]
    near = inside or difflib.get_close_matches(name.lower(), known, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


class _Text(str):
    """An annotation that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Signature(inspect.Signature):
    """A signature that is shown with one parameter a line where one line is too short."""

    __slots__ = ()

    def __str__(self) -> str:
        parameters = list(self.parameters.values())
        line = str(inspect.Signature(parameters, return_annotation=self.return_annotation))
        if len(line) <= _MOST_CHARACTERS:
            return line
        parts, kinds = [str(p) for p in parameters], [p.kind for p in parameters]
        if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
            parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
        returned = "" if self.return_annotation is self.empty else f" -> {self.return_annotation!r}"
        return "".join(["(\n", *(f"    {part},\n" for part in parts), ")", returned])

    def format(self, **_: Any) -> str:
        return str(self)  # what ``help`` of Python 3.13 asks for


def readable(thing: F) -> F:
    """Have ``help`` show the signature of a function, or of the constructor of a class, so that it can be read."""
    function: Any = thing.__init__ if inspect.isclass(thing) else thing
    signature = inspect.signature(function)

    def shown(annotation: Any) -> Any:
        return _Text(annotation) if isinstance(annotation, str) else annotation

    parameters = [p.replace(annotation=shown(p.annotation)) for p in signature.parameters.values()]
    function.__signature__ = _Signature(parameters, return_annotation=shown(signature.return_annotation))
    return cast(F, thing)  # narrowed by isclass
