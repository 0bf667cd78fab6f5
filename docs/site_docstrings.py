"""Reads the docstrings of this package as Griffe reads them: ``Example:`` is its section ``Examples:``.

An extension of mkdocstrings (``mkdocs.yml``). Without it the sessions would be taken for Markdown.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class Sections(griffe.Extension):
    """Renames sections, once for each object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called when an object was read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
