"""How results find what shows them: by type.

In: nothing. Out: ``Shown``, what results inherit so that ``print``, notebooks, rich, ``.plot()`` and JSON show them.
Results import no rendering: ``report.renderers``, where the renderers of all types are, is found by its name when the
first result is shown.
"""

from __future__ import annotations

import importlib
import json
import re
from typing import TYPE_CHECKING, Any

from remat_plan.results.codec import encode_fields

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def renderer_of(thing: object) -> Any:
    """Return what shows a result: the renderer of the nearest of its types."""
    known = importlib.import_module("remat_plan.report.renderers").RENDERERS
    for base in type(thing).__mro__:
        if base in known:
            return known[base]
    raise TypeError(f"nothing shows a {type(thing).__name__}: register a renderer for it.")


class Shown:
    """A result that is shown by the renderer of its type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return renderer_of(self).line(self)

    def __str__(self) -> str:
        return renderer_of(self).text(self)

    def __rich__(self) -> Any:
        return renderer_of(self).rich(self)

    def _repr_html_(self) -> str:
        return renderer_of(self).html(self)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the result with matplotlib: ``result.plot().figure.savefig("picture.png")``.

        Plans show live memory over the step, plain and planned, with the budget; analyses the largest residuals;
        curves, comparisons and searches overheads against peaks; batch sizes these against overheads; fitted steps
        and measurements the bytes or seconds of both steps.

        Args:
            ax: axes to draw on; by default a new figure's.

        Returns:
            The axes.

        Raises:
            ImportError: matplotlib is not installed.
        """
        return renderer_of(self).plot(self, ax)

    def to_json(self) -> str:
        """Return all figures as JSON text, with the ``kind`` of the result."""
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()
        return json.dumps({"kind": kind, **encode_fields(self)}, sort_keys=True)
