"""Small faithful versions of published models, each with the rematerialisation that its authors wrote for it.

``AUTHORS`` maps a name to ``make(size)``, which returns ``Made``: the loss without rematerialisation, the same loss
under each policy of the authors, and the shapes of its arguments. Sizes: ``tiny`` (tests), ``small``, ``full`` (the
published sizes, to be compiled only).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from benchmarks.authors.record import SIZES, Made

__all__ = ["AUTHORS", "SIZES", "Made"]


def _make(module: str, function: str) -> Callable[[str], Made]:
    """A maker that imports its module (and with it Flax, for some) when it is called."""
    return lambda size: getattr(importlib.import_module(f"benchmarks.authors.{module}"), function)(size)


AUTHORS: dict[str, Callable[[str], Made]] = {
    "llama": _make("llama", "make"),
    "gpt2_nested": _make("gpt2_nested", "make"),
    "vit": _make("vit", "make"),
    "moe": _make("moe", "make"),
    "moe_cond": _make("moe", "make_interleaved"),
    "unet": _make("unet", "make"),
    "resnet": _make("resnet", "make"),
    "stochastic_depth": _make("conditional", "make_stochastic_depth"),
    "early_exit": _make("conditional", "make_early_exit"),
}
