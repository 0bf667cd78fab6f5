"""What schedules are chosen by: predicted seconds, and where these say nothing the work that is done.

In: seconds and FLOPs of a forward and backward pass, and of the plain one. Out: seconds to compare.
"""

from __future__ import annotations

_WORK = 1e-3
"""How much a second forward and backward pass weighs where predicted seconds are equal: a thousandth of its seconds."""


def price(seconds: float, flops: float, plain_seconds: float, plain_flops: float) -> float:
    """Return the price of a schedule. Seconds below the plain ones are not counted upon: they were never timed.

    >>> price(0.9, 15.0, 1.0, 10.0), price(2.0, 15.0, 1.0, 10.0)
    (1.0015, 2.0015)
    """
    return max(seconds, plain_seconds) + _WORK * plain_seconds * flops / max(plain_flops, 1.0)
