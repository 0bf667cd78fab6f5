"""Which temporaries live in the memory of outputs that are not written yet, as ``BufferAssigner`` places them.

In: ``Buffer``s, free spans of outputs. Out: those that fit.

XLA assigns the buffers of all computations together, so that a body of a loop finds room there too: a gradient that is
added up in each step lies where it will be returned.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby

from remat_plan.cost.steps import Buffer, RegionCost

Span = tuple[int, int, int]
"""Free memory: its bytes, the step that it begins with and the one that it ends before."""


def place(buffers: Mapping[Hashable, Buffer], spans: Sequence[Span]) -> set[Hashable]:
    """Return the buffers that fit into spans.

    They are placed largest first, those of one size in order of birth, each into the span that ends soonest after it.
    """
    order = {key: number for number, key in enumerate(buffers)}
    waiting = sorted(buffers, key=lambda key: (-buffers[key][0], buffers[key][1], order[key]))
    left, found = sorted(span for span in spans if span[1] < span[2]), set[Hashable]()
    for size, group in groupby(waiting, key=lambda key: buffers[key][0]):
        cut = bisect_left(left, (size, -1, -1))
        smaller, coming = left[:cut], [(start, end, room) for room, start, end in left[cut:]]
        heapify(coming)
        ready: list[tuple[int, int, int]] = []  # (end, start, room) of spans that have begun
        unused: list[Span] = []  # for smaller buffers
        for key in group:
            _, begin, end = buffers[key]
            while coming and coming[0][0] <= begin:
                start, stop, room = heappop(coming)
                insort(ready, (stop, start, room))
            at = bisect_left(ready, (end + 1, -1, -1))
            if at < len(ready):
                stop, start, room = ready.pop(at)
                found.add(key)
                unused.append((room, start, begin))
                heappush(coming, (end + 1, stop, room))
        unused.extend((room, start, stop) for stop, start, room in ready)
        unused.extend((room, start, stop) for start, stop, room in coming)
        left = sorted(smaller + [span for span in unused if span[1] < span[2]])
    return found


def bytes_without(region: RegionCost, numbers: Iterable[int]) -> int:
    """Return what a region needs inside where some of its buffers are elsewhere."""
    live = list(region.live_bytes)
    for number in numbers:
        size, first, last = region.buffers[number]
        for step in range(first, last + 1):
            live[step] -= size
    return max(live)
