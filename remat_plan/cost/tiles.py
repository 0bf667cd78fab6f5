"""How much memory a TPU takes for an array: its two innermost dimensions are padded to tiles of 8 x 128 elements.

In: the type of an array, and which two dimensions are innermost, where that is known. Out: bytes.

XLA:TPU (``LayoutAssignment``) keeps arrays around convolutions with batch and features innermost, in the order that
pads less: 64 channels take the room of 128, and an image of three channels has its batch in the long side. Batches of
matrices have these innermost. For all other arrays it is free to choose, so the least padding is assumed.

Limits: vectors are taken as they are, though a vector is padded to 1024 elements; so are arguments and results.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

from remat_plan import _compat

LANES, SUBLANES = 128, 8
"""The tile: the innermost dimension is padded to lanes, the next one to sublanes, or to 1, 2 or 4 where it is short."""


def tiled_bytes(aval: Any, inner: tuple[int, int] | None = None) -> int:
    """Return the bytes of an array in tiles.

    Args:
        aval: its type.
        inner: its two innermost dimensions, in any order; None where the compiler may choose.

    >>> import jax
    >>> tiled_bytes(jax.ShapeDtypeStruct((16, 56, 56, 64), "bfloat16"), (0, 3)) / 2 / (16 * 56 * 56 * 64)
    2.0
    >>> tiled_bytes(jax.ShapeDtypeStruct((32, 6, 64, 197), "float32")) / 4 / (32 * 6 * 64 * 256)
    1.0
    """
    plain = _compat.aval_bytes(aval)
    shape = getattr(aval, "shape", ())
    if len(shape) < 2 or not plain:
        return plain
    return round(plain * _padding(tuple(shape), inner))


@functools.lru_cache(maxsize=4096)  # shapes: a large program has some hundreds
def _padding(shape: tuple[int, ...], inner: tuple[int, int] | None) -> float:
    """Return padded elements over elements, in the order of the innermost dimensions that pads least."""
    pairs = itertools.permutations(range(len(shape)) if inner is None else inner, 2)
    return min(_share(shape[minor], LANES) * _share(shape[second], _sublanes(shape[second])) for minor, second in pairs)


def _sublanes(length: int) -> int:
    return min(SUBLANES, 1 << max(length - 1, 0).bit_length())


def _share(length: int, multiple: int) -> float:
    return math.ceil(length / multiple) * multiple / length if length else 1.0
