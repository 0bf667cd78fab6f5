"""What schedules are chosen by: predicted seconds, and where these say nothing the work that is done.

In: seconds and FLOPs of a forward and backward pass, and of the plain one. Out: seconds to compare.

Seconds below the plain ones count: rates are held to a clock or to a compiler's own figures on every backend.
"""

from __future__ import annotations

_WORK = 1e-3
"""How much a second forward and backward pass weighs where predicted seconds are equal: a thousandth of its seconds."""


def price(seconds: float, flops: float, plain_seconds: float, plain_flops: float) -> float:
    """Return the price of a schedule, or of a part of one.

    >>> price(0.9, 15.0, 1.0, 10.0)
    0.9015
    """
    return seconds + _WORK * plain_seconds * flops / max(plain_flops, 1.0)
