"""Binomial checkpointing: the schedule that reverses a loop with the fewest forward steps.

In: the length of a loop, the number of carries that may be stored (slots), and how many steps in a row may keep
their residuals (tape). Out: the number of forward steps, and the table of splits that a compiled loop reads.

Source: Griewank and Walther 2000, Algorithm 799 (revolve). With beta(s, r) = (s + r)! / (s! r!), a loop of n steps
whose first carry is stored can be reversed with s slots (that one included) in

    t(n, s) = r n - beta(s + 1, r - 1)      where beta(s, r - 1) < n <= beta(s, r)

steps that advance without keeping anything, and n steps that keep residuals; no schedule needs fewer. With a tape of
m steps a run of m steps is what one step was: beta becomes m beta, and the same formulas hold.

The schedule is never written down: a part of ``length`` steps with ``slots`` free slots is split where its left part
has min(m beta(s, r-1), length - m beta(s-1, r-1)) steps. So the table has one entry for each (slots, repetitions),
whatever the length: 1,000,000 steps with 40 slots need 246 numbers.

Limits: steps of equal cost; slots of equal size.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

INT32_MAX = int(np.iinfo(np.int32).max)


def beta(slots: int, repetitions: int) -> int:
    """Return how many steps can be reversed with ``slots`` slots if none is advanced more than ``repetitions`` times.

    >>> beta(3, 2)
    10
    """
    return math.comb(slots + repetitions, slots) if repetitions >= 0 and slots >= 0 else 0


def repetitions(length: int, slots: int, tape: int = 1) -> int:
    """Return the r of the formula: the smallest with ``tape * beta(slots, r) >= length``.

    >>> repetitions(1_000_000, 40)
    5
    """
    check(length, slots, tape)
    runs = -(-length // tape)
    if slots == 1:
        return max(runs - 1, 0)
    return next(r for r in itertools.count() if beta(slots, r) >= runs)


def check(length: int, slots: int, tape: int) -> None:
    """Raise ``ValueError`` for numbers that describe no schedule."""
    if slots < 1:
        raise ValueError(f"slots={slots}: at least 1 slot is needed, for the first carry.")
    if tape < 1:
        raise ValueError(f"tape={tape}: at least 1 step must keep its residuals.")
    if not 0 <= length <= INT32_MAX:
        raise ValueError(f"length={length}: a loop has between 0 and {INT32_MAX} steps.")


def advances(length: int, slots: int, tape: int = 1) -> int:
    """Return t(n, s): the fewest steps that advance without keeping residuals.

    Every step runs once more to keep its residuals, so the body is evaluated ``advances(...) + length`` times.

    >>> advances(10, 3), advances(1024, 64)
    (15, 1982)
    """
    r = repetitions(length, slots, tape)
    return r * length - tape * beta(slots + 1, r - 1)


def useful_slots(length: int, slots: int, tape: int = 1) -> int:
    """Return ``slots``, or fewer where more would stay empty."""
    check(length, slots, tape)
    return min(slots, max(1, -(-length // tape) - 1))


def slots_for(length: int, most_repetitions: int) -> int:
    """Return the fewest slots with which no step is advanced more than ``most_repetitions`` times.

    >>> slots_for(1024, 2)
    44
    """
    return 1 + bisect_left(range(1, max(1, length)), length, key=lambda slots: beta(slots, most_repetitions))


@dataclass(frozen=True, slots=True)
class Splits:
    """The table that says where to split, for so many slots and a tape of so many steps.

    ``table`` is int32 of shape (slots + 1, repetitions + 1): ``tape * beta(s, r)``, at most ``INT32_MAX``.
    """

    table: np.ndarray
    slots: int
    tape: int

    def left(self, length: int, free: int) -> int:
        """Return the steps of the left part of a part of ``length`` > tape steps with ``free`` slots."""
        if free == 1:
            return length - self.tape
        r = min(int(np.sum(self.table[free] < length)), self.table.shape[1] - 1)
        return min(int(self.table[free, r - 1]), length - int(self.table[free - 1, r - 1]))

    def descend(self, start: int, end: int, free: int) -> tuple[tuple[int, ...], int]:
        """Return the steps whose carries are stored on the way to the last run of a part, and where that run starts."""
        stored = []
        while end - start > self.tape:
            stored.append(start)
            start += self.left(end - start, free)
            free -= 1
        return tuple(stored), start


def make_splits(length: int, slots: int, tape: int = 1) -> Splits:
    """Compute the table for loops of up to ``length`` steps."""
    most = max(repetitions(length, slots, tape), 1)
    width = np.arange(most + 1, dtype=np.float64)
    rows = [np.full(most + 1, float(tape))]
    for s in range(1, slots + 1):
        # beta(s, r) is the running sum of beta(s - 1, .). Doubles are exact beyond the largest 32-bit number.
        rows.append(np.minimum(np.cumsum(rows[-1]) if s > 1 else tape * (width + 1), INT32_MAX))
    return Splits(np.stack(rows).astype(np.int32), slots, tape)
