"""The ways to run a scan: what each step keeps, in which stretches and groups.

In: a scan, schedules of its body. Out: ``Choice``s. The evaluator says what each costs.

    alike      every step by one schedule; none of those is taken that another beats in bytes and seconds
    mixed      first steps that keep less, then steps that keep more
    grouped    one carry kept for each group of k steps, the group run again for its backward pass
    partly     first steps in groups, then steps that are not
    deep       groups in groups, for long loops

Limits: mixtures are made of neighbours, and at ``_TRIED`` places only; the search moves the border to any step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from remat_plan.graph.schedule import Choice, Part, Schedule
from remat_plan.loops.nested import LOG_BASE
from remat_plan.structures.regions import Way

_SMALL_GROUP = 6
"""Groups of groups are made while there are more steps than this."""

_TRIED = 6
"""So many places of mixtures, and sizes of groups, are tried."""

_INNER_POINTS = 3
"""Of so many ways at most every one is tried in groups; of more the first, the last and their ``knee``."""


def divisors(n: int) -> list[int]:
    """Return the divisors of ``n`` that are neither 1 nor ``n``, increasing.

    >>> divisors(12)
    [2, 3, 4, 6]
    """
    small = [d for d in range(2, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def group_sizes(length: int, carry_bytes: int, step_bytes: int) -> list[int]:
    """Return how many steps groups may have: about the number with the least memory, divisors first.

    Groups of k steps keep ``length / k`` carries and, one group at a time, k steps.

    >>> group_sizes(12, 1, 1), group_sizes(61, 1, 1), group_sizes(64, 1, 16)
    ([2, 3, 4, 6], [4, 8, 16], [2, 4, 8])
    """
    best = math.sqrt(length * max(carry_bytes, 1) / max(step_bytes, 1))
    best = min(max(best, 2.0), length / 2)
    near = {min(max(round(best * factor), 2), max(length // 2, 2)) for factor in (0.5, 1, 2)}
    found = [d for d in divisors(length) if best / 4 <= d <= best * 4]
    sizes = found if len(found) >= len(near) else sorted({*found, *near})
    return sorted(sorted(sizes, key=lambda k: (abs(math.log(k / best)), k))[:_TRIED])


def alike(length: int, schedule: Schedule) -> Choice:
    """Every step by one schedule."""
    return Choice((Part(length, schedule),))


def grouped(length: int, size: int, schedule: Schedule) -> Choice:
    """Groups of ``size`` steps."""
    return Choice((Part(length, schedule, (-(-length // size),)),))


def partly_grouped(length: int, size: int, schedule: Schedule, count: int) -> Choice:
    """Groups of ``size`` steps, but for the last ``count`` steps."""
    return Choice((*grouped(length - count, size, schedule).parts, Part(count, schedule)))


def deep_groups(length: int) -> Iterator[tuple[int, ...]]:
    """Yield groups of two levels and more.

    As many at each level as a small divisor, for want of one ``LOG_BASE``.

    >>> list(deep_groups(64))
    [(4, 4)]
    """
    groups: list[int] = []
    while length > _SMALL_GROUP:
        groups.append(max((d for d in divisors(length) if d <= _SMALL_GROUP), default=LOG_BASE))
        length = -(-length // groups[-1])
        if len(groups) > 1:
            yield tuple(groups)


def knee(steps: Sequence[Way]) -> Way:
    """Return the way between the first and the last that is furthest below the line from one to the other.

    Bytes that are kept go to the right, the price up: what is kept beyond it saves less for its bytes.

    >>> knee([Way((), 0, 0, 9.0), Way((), 1, 0, 8.9), Way((), 2, 0, 1.0), Way((), 9, 0, 0.9)]).kept_bytes
    2
    """
    first, last = steps[0], steps[-1]
    width, height = max(last.kept_bytes - first.kept_bytes, 1), first.price - last.price

    def above_line(step: Way) -> float:
        return step.price - first.price + height * (step.kept_bytes - first.kept_bytes) / width

    return min(steps[1:-1], key=above_line)


def scan_choices(length: int, carry_bytes: int, row_bytes: int, steps: Sequence[Way]) -> Iterator[Choice]:
    """Yield the ways to run a scan.

    ``row_bytes`` are those of the inputs of one step; ``steps`` are the ways to run a step that no other one beats,
    from fewest kept bytes to most.
    """
    for step in steps:
        yield alike(length, step.schedule)
    counts = sorted({round(length * i / _TRIED) for i in range(1, _TRIED)} - {0, length})
    for less, more in itertools.pairwise(steps):
        for count in counts:
            yield Choice((Part(length - count, less.schedule), Part(count, more.schedule)))
    most = steps[-1]
    for count in counts:
        sizes = group_sizes(length - count, carry_bytes, most.kept_bytes + row_bytes) if length - count > 3 else []
        if sizes:
            yield partly_grouped(length, sizes[len(sizes) // 2], most.schedule, count)
    for step in steps if len(steps) <= _INNER_POINTS else (steps[0], knee(steps), steps[-1]):
        for size in group_sizes(length, carry_bytes, step.kept_bytes + row_bytes):
            if 1 < size < length:
                yield grouped(length, size, step.schedule)
    for groups in deep_groups(length):
        yield Choice((Part(length, steps[0].schedule, groups),))
