"""Poolings whose gradient goes to one element of each window, and what of their windows decides how it is made.

In: the equation of a pooling, or the parameters of its gradient. Out: ``Windows``; whether ``rewrite.pooling`` writes
that gradient, which the evaluator asks too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LARGEST = {"reduce_window_max": True, "reduce_window_min": False}

MOST_OFFSETS = 64
"""Windows of at most so many elements: each is a few equations, and one byte counts them. A gradient of 3 x 3 takes
half as long to trace and compile as XLA's own (0.2 s), one of 8 x 8 twice as long (0.7 s); larger ones are left to
XLA."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a pooling, dimension by dimension: their number ``n_out``, what is pooled has ``n_in`` elements.

    ``largest``: whether the largest element is chosen, not the smallest.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    n_in: tuple[int, ...]
    n_out: tuple[int, ...]
    largest: bool


def by_offsets(params: Mapping[str, Any]) -> bool:
    """Tell whether the gradient of a pooling is written with the offset of the chosen element in each window."""
    dilations = (*params.get("base_dilation", ()), *params.get("window_dilation", ()))
    return math.prod(params["window_dimensions"]) <= MOST_OFFSETS and all(d == 1 for d in dilations)


def windows_of(eqn: Any) -> Windows | None:
    """Return the windows of a pooling whose gradient is written so; None for all other equations."""
    largest = _LARGEST.get(eqn.primitive.name)
    if largest is None or not by_offsets(eqn.params):
        return None
    sizes, strides, padding = (eqn.params[name] for name in ("window_dimensions", "window_strides", "padding"))
    shapes = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return Windows(tuple(sizes), tuple(strides), tuple(map(tuple, padding)), *shapes, largest)
