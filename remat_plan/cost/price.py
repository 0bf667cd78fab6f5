"""What schedules are chosen by: predicted seconds, and where these say nothing the work that is done.

In: seconds and FLOPs of a forward and backward pass, and of the plain one. Out: seconds to compare.

Schedules of the whole program and ways to run a loop's step are chosen by ``price``. Parts of a program are added up:
there a part may gain what another loses, so theirs is ``unbounded_price``.
"""

from __future__ import annotations

from collections.abc import Callable

from remat_plan.cost.hardware import Hardware
from remat_plan.cost.platforms import backend_for

_WORK = 1e-3
"""How much a second forward and backward pass weighs where predicted seconds are equal: a thousandth of its seconds."""

Pricing = Callable[[float, float, float, float], float]
"""Seconds and FLOPs of a schedule, seconds and FLOPs of the plain one, to a price."""


def counts_gains(hardware: Hardware) -> bool:
    """Tell whether seconds below the plain ones are counted upon: rates were measured, or are held to a compiler."""
    return hardware.measured or backend_for(hardware).counts_gains


def pricing(hardware: Hardware) -> Pricing:
    """Return how schedules of whole programs and steps of loops are priced by rates of a device.

    >>> from remat_plan.cost.hardware import hardware_for
    >>> pricing(hardware_for("tpu:v5e:1x1", "tpu")) is unbounded_price, pricing(hardware_for("cpu", "cpu")) is price
    (True, True)
    """
    return unbounded_price if counts_gains(hardware) else price


def price(seconds: float, flops: float, plain_seconds: float, plain_flops: float) -> float:
    """Return the price of a schedule. Seconds below the plain ones are not counted upon: nobody held them to a clock.

    >>> price(0.9, 15.0, 1.0, 10.0), price(2.0, 15.0, 1.0, 10.0)
    (1.0015, 2.0015)
    """
    return unbounded_price(max(seconds, plain_seconds), flops, plain_seconds, plain_flops)


def unbounded_price(seconds: float, flops: float, plain_seconds: float, plain_flops: float) -> float:
    """Return the price of a part of a schedule, with seconds below the plain ones counted too.

    >>> unbounded_price(0.9, 15.0, 1.0, 10.0)
    0.9015
    """
    return seconds + _WORK * plain_seconds * flops / max(plain_flops, 1.0)
