"""What messages have in common: how they show what a user gave, and what was perhaps meant.

In: any value; a name and the names that are known. Out: short texts.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

_MOST_CHARACTERS = 80


class _Short(reprlib.Repr):
    """Arrays are shown by type and shape, whatever is long is cut."""

    def repr1(self, x: Any, level: int) -> str:
        """One value, or one inside another."""
        shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
        if isinstance(shape, tuple) and dtype is not None:
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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest of the known names, after a space; nothing where none is near.

    >>> did_you_mean("memmory", ["memory", "speed"]), did_you_mean("magic", ["memory", "speed"])
    (" Did you mean 'memory'?", '')
    """
    known = list(known)
    inside = [k for k in known if len(name) > 2 and name.lower() in k]
    near = inside or difflib.get_close_matches(name.lower(), known, 1)
    return f" Did you mean {near[0]!r}?" if near else ""
