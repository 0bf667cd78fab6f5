"""Reads the docstrings of this package as Griffe reads them.

An extension of mkdocstrings (``mkdocs.yml``). ``Example:`` is its section ``Examples:``; otherwise sessions become
Markdown. Parameters that share a description (``argnums, has_aux: ...``) are listed one by one; otherwise they have
neither types nor defaults.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SHARED = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)$", re.MULTILINE)


class Sections(griffe.Extension):
    """Renames sections and takes lists of parameters apart, once for each object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called when an object was read."""
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = _SHARED.sub(_one_by_one, text)


def _one_by_one(shared: re.Match[str]) -> str:
    """A line for each of the parameters that one line describes."""
    indent, names, text = shared.groups()
    return "\n".join(f"{indent}{name}: {text}" for name in names.split(", "))
