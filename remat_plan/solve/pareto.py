"""What no other beats: the one filter of all fronts.

In: things, and what each costs in several respects. Out: those of them that are worth having.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import le
from typing import TypeVar

T = TypeVar("T")


def undominated(things: Iterable[T], costs: Callable[[T], tuple[float, ...]]) -> list[T]:
    """Return the things of which no other costs as little in every respect, from the least first cost up.

    Of those that cost the same in every respect the first is kept.

    >>> undominated([(3, 1), (1, 3), (2, 2), (2, 4), (1, 3)], lambda pair: pair)
    [(1, 3), (2, 2), (3, 1)]
    """
    kept: list[tuple[T, tuple[float, ...]]] = []
    for thing in sorted(things, key=costs):
        own = costs(thing)
        if not any(all(map(le, other, own)) for _, other in kept):
            kept.append((thing, own))
    return [thing for thing, _ in kept]
