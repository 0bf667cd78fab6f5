"""Equal groups that follow each other, as one group with a count.

In: a sequence of numbers, equal where rows are equal. Out: ``Run``: where, how many rows a group has,
how many equal groups follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 64
"""Groups of more rows than this are not looked for."""


@dataclass(frozen=True, slots=True)
class Run:
    """``count`` equal groups of ``period`` rows each, the first of them at ``start``."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """One past the last row."""
        return self.start + self.period * self.count

    @property
    def spared(self) -> int:
        """Lines that showing one group spares; a group of several rows takes a line more, for its count."""
        return self.period * (self.count - 1) - (self.period > 1 and self.count > 1)


def fold(ids: Sequence[int], longest: int = LONGEST) -> tuple[Run, ...]:
    """Cover all rows by runs.

    From the first row on, the run that spares the most lines is taken, unless a better one starts a row later
    (as matches are chosen in LZ77): few lines, not always the fewest. Takes O(rows * longest).

    >>> fold([1, 2, 3, 2, 3, 2, 3, 4])
    (Run(start=0, period=1, count=1), Run(start=1, period=2, count=3), Run(start=7, period=1, count=1))
    """
    ids = list(ids)
    runs: list[Run] = []
    start = 0
    while start < len(ids):
        best = _best(ids, start, longest)
        if best.count > 1 and best.end < len(ids) and _best(ids, start + 1, longest).spared > best.spared:
            best = Run(start, 1, 1)
        runs.append(best)
        start = best.end
    return tuple(runs)


def _best(ids: list[int], start: int, longest: int) -> Run:
    """The run from here on that spares the most lines; among equals the one of the shortest group."""
    best = Run(start, 1, 1)
    for period in range(1, min(longest, (len(ids) - start) // 2) + 1):
        run = Run(start, period, _repeats(ids, start, period))
        if run.spared > best.spared:
            best = run
        if best.end == len(ids):
            break  # a longer group cannot spare more
    return best


def _repeats(ids: list[int], start: int, period: int) -> int:
    if ids[start] != ids[start + period]:
        return 1
    group, count = ids[start : start + period], 1
    while ids[start + count * period : start + (count + 1) * period] == group:
        count += 1
    return count
