"""Bytes as people write them, and the error of a budget that cannot be met.

In: ``"8GiB"``, ``"800MB"``, ``"60%"``, ``"device"``, an integer. Out: ``Budget``; text such as ``1.64 GB``.
"""

from __future__ import annotations

import functools
import math
import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_plan.small.wording import short

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}{b}": 10 ** (3 * power) for power, prefix in enumerate("kmgt", 1) for b in ("b", "")},
    **{f"{prefix}i{b}": 2 ** (10 * power) for power, prefix in enumerate("kmgt", 1) for b in ("b", "")},
}
_PATTERN = re.compile(r"\s*((?:[0-9]+(?:_[0-9]+)*)?\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z%]*)\s*")
_EXAMPLES = 'bytes as an integer, "800MB", "8GiB", "24G", a share of the current peak such as "60%", or "device"'

DEVICE_MARGIN = 0.05
"""Share of the device's memory that budget="device" leaves free (the runtime and fragmentation need some)."""


_MOST_PER_CENT = 100
"""A number from 2 to this one, without a unit, is meant as a share: no gradient step needs so few bytes. (A budget of
one byte asks for the least that can be had.)"""


class BudgetError(ValueError):
    """The budget is below the lowest peak that was found.

    Attributes:
        minimum_bytes: the lowest compiled (or, without verification, predicted) peak that was found; planning
            with this budget succeeds.
        budget_bytes: the budget.
        where: the equation at that minimum's peak, with its source line.
        largest: text lines for the largest values alive there.
    """

    __module__ = "remat_plan"  # where users import it from, which tracebacks name

    def __init__(self, message: str, *, minimum_bytes: int, budget_bytes: int, where: str, largest: tuple[str, ...]):
        super().__init__(message)
        self.minimum_bytes = minimum_bytes
        self.budget_bytes = budget_bytes
        self.where = where
        self.largest = largest

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the attributes when the error travels between processes."""
        facts = {name: getattr(self, name) for name in ("minimum_bytes", "budget_bytes", "where", "largest")}
        return functools.partial(BudgetError, **facts), (str(self),)


@dataclass(frozen=True, slots=True)
class Budget:
    """A parsed budget: exactly one of ``size_bytes``, ``fraction`` and ``device`` says what is meant."""

    text: str
    size_bytes: int | None = None
    fraction: float | None = None
    device: bool = False

    def resolve(self, baseline_bytes: int, device_bytes: int | None) -> int:
        """Return the budget in bytes, of the peak of the function as written, or of the memory of the device."""
        if self.size_bytes is not None:
            return self.size_bytes
        if self.fraction is not None:
            return int(self.fraction * baseline_bytes)
        if device_bytes is None:
            raise ValueError('budget="device": this device does not report its memory; give the budget in bytes.')
        return int(device_bytes * (1 - DEVICE_MARGIN))


def parse_budget(budget: Any, few: bool = False) -> Budget:
    """Parse what a user gives as ``budget``; ``few`` where so few bytes may be meant as a small loop stores.

    >>> parse_budget("1.5 GiB").size_bytes, parse_budget("2_000 kB").size_bytes
    (1610612736, 2000000)
    >>> parse_budget("60%").fraction
    0.6
    """
    if isinstance(budget, Budget):
        return budget
    number_like = isinstance(budget, numbers.Real) or hasattr(budget, "__index__")
    if isinstance(budget, (bool, list, tuple)) or not (isinstance(budget, str) or number_like):
        raise TypeError(f"budget={short(budget)}: a budget is {_EXAMPLES}, not {type(budget).__name__}.")
    if isinstance(budget, str):
        return _parse_text(budget, few)
    try:
        number = float(budget)
    except OverflowError:  # an integer beyond floats: refused below as infinite
        number = math.inf
    except TypeError:  # an array of several numbers
        raise TypeError(f"budget={short(budget)}: a budget is one number: {_EXAMPLES}.") from None
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"budget={short(budget)}: a budget must be a positive, finite number of bytes.")
    if number < 1:
        raise ValueError(
            f'budget={short(budget)}: less than one byte. For a share of the current peak write "{number:.0%}".'
        )
    if 1 < number <= _MOST_PER_CENT and not few:
        raise ValueError(
            f"budget={short(budget)}: a number means bytes, and {number:g} bytes are too few for any step. Did you "
            f'mean "{number:g}%" of what the step needs as written? Otherwise give a unit: "{number:g}GB".'
        )
    return Budget(str(int(number)), size_bytes=int(number))


def is_budget(text: str) -> bool:
    """Tell whether a string would do as a budget.

    >>> is_budget("60%"), is_budget("relu")
    (True, False)
    """
    try:
        return bool(parse_budget(text))
    except ValueError:  # it is the answer
        return False


def _parse_text(text: str, few: bool) -> Budget:
    if text.strip().lower() == "device":
        return Budget("device", device=True)
    match = _PATTERN.fullmatch(text)
    unit = match.group(2).lower() if match else None
    if match is None or (unit != "%" and unit not in _UNITS):
        raise ValueError(f"budget={short(text)} is not understood: a budget is {_EXAMPLES}.")
    number = float(match.group(1))
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"budget={short(text)}: a budget must be positive and finite.")
    if unit == "%":
        return Budget(text, fraction=number / 100.0)
    if not unit:
        return replace(parse_budget(number, few), text=text)
    if number * _UNITS[unit] < 1:
        raise ValueError(f"budget={short(text)} is less than one byte.")
    return Budget(text, size_bytes=int(number * _UNITS[unit]))


def format_bytes(size_bytes: float | None) -> str:
    """Return bytes in decimal units with three digits.

    >>> format_bytes(1_640_000_000)
    '1.64 GB'
    """
    return "-" if size_bytes is None else in_units(size_bytes, ("B", "kB", "MB", "GB", "TB"))


def on_host(size_bytes: int) -> str:
    """What goes behind a peak on the device: the bytes in the host's memory, if there are any."""
    return f", {format_bytes(size_bytes)} on the host" if size_bytes else ""


def in_units(size: float, units: Sequence[str]) -> str:
    """Return a number of the first unit in one that suits it, each of which is 1000 times the one before."""
    power = 0
    while abs(size) >= 999.5 and power < len(units) - 1:
        size, power = size / 1000.0, power + 1
    return f"{size:.3g} {units[power]}" if power else f"{size:.0f} {units[0]}"
