"""Strategies that keep some frontiers and compute the blocks between them again: ``memory``, ``budgeted``, ``log``.

In: ``Task``. Out: ``Found``.

``memory`` (Chen et al. 2016, arXiv 1604.06174, Algorithm 1; OpenAI gradient-checkpointing "memory"): with segments of
at most b bytes, the frontiers with the fewest bytes in all are found by a shortest path over the cuts; b runs over a
spread of values, and the evaluator takes the least peak of the few for which frontiers + b is least. On a chain of n
equal blocks that is about sqrt(n) frontiers. No articulation points are needed: a frontier may have several values,
and a value that crosses several kept cuts is counted once.

``budgeted`` (Algorithm 3): one greedy walk that keeps a frontier whenever more than b bytes have gathered, for a spread
of b. Linear time, so it is there for very long programs and for comparison.

``log`` (section 4.4): recursive halving with nested segments. Each half is run again as a whole, so about
log2(n) frontiers are there at a time and at most n log2(n) blocks run.

Limits: a nested schedule of n blocks makes JAX trace and XLA compile about n log2(n) blocks; equal ones are traced
once, but compiling takes what it takes. Loops of equal steps belong into ``lax.scan``.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

from remat_plan.graph.schedule import Segment, around
from remat_plan.planning.strategies.chains import Chain, block_segment, make_chain, nestable, segments_between
from remat_plan.planning.strategies.records import Found, Schedule, Task
from remat_plan.small.budget import format_bytes

_LIMITS = 24
_CANDIDATES = 6
_WALKS = 12
_WIDE = 192
"""The most cuts that the shortest path looks back from one."""


def find_memory(task: Task) -> Found:
    """Keep the frontiers for which frontiers + largest segment is least."""
    chain = make_chain(task)
    best: dict[tuple[int, ...], tuple[float, float]] = {}
    for limit in _limits(chain, _LIMITS):
        numbers, kept, largest = _lightest_path(chain, limit)
        best.setdefault(numbers, (kept + largest, kept))
    ranked = sorted(best, key=lambda numbers: (best[numbers], numbers))[:_CANDIDATES]
    total, kept = best[ranked[0]]
    note = (
        f"about {len(ranked[0]) - 2} of {chain.n - 1} cuts are saved, {format_bytes(kept)} of frontiers, with "
        f"segments of up to {format_bytes(total - kept)}; chosen from {len(ranked)} such schedules"
    )
    return Found(tuple(dict.fromkeys(segments_between(task, numbers) for numbers in ranked)), (note,))


def _limits(chain: Chain, count: int) -> list[float]:
    """Return sizes of segments from the largest block to the whole chain, equally far apart as ratios."""
    low, high = max(chain.block_bytes, default=0), sum(chain.block_bytes)
    if low <= 0 or high <= low:
        return [float(high)]
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)]


def _lightest_path(chain: Chain, limit: float) -> tuple[tuple[int, ...], float, float]:
    """Return the cuts with the fewest frontier bytes between which no segment exceeds ``limit``.

    Returns:
        The cuts (both ends among them), bytes of their frontiers, bytes of the largest segment.
    """
    sums = [0, *accumulate(chain.block_bytes)]
    cost = [0.0] + [math.inf] * chain.n
    back = [0] * (chain.n + 1)
    for end in range(1, chain.n + 1):
        start = end - 1
        while start >= 0 and (start == end - 1 or sums[end] - sums[start] <= limit * (1 + 1e-9)):
            # The frontier at the end of the program is its outputs: nobody keeps them for the backward pass.
            new = cost[start] + (chain.frontier_bytes(start, end) if end < chain.n else 0)
            if new < cost[end]:
                cost[end], back[end] = new, start
            if end - start >= _WIDE:
                break
            start -= 1
    path = [chain.n]
    while path[-1] > 0:
        path.append(back[path[-1]])
    path.reverse()
    largest = max((sums[b] - sums[a] for a, b in pairwise(path)), default=0)
    return tuple(path), cost[chain.n], float(largest)


def find_budgeted(task: Task) -> Found:
    """Walk through the blocks and keep a frontier whenever more than b bytes have gathered, for a spread of b."""
    chain = make_chain(task)
    walks = dict.fromkeys(_walk(chain, limit) for limit in _limits(chain, _WALKS))
    note = f"local budgets from {format_bytes(max(chain.block_bytes, default=0))} to the whole were tried"
    return Found(tuple(dict.fromkeys(segments_between(task, numbers) for numbers in walks)), (note,))


def _walk(chain: Chain, limit: float) -> tuple[int, ...]:
    kept, gathered = [0], 0
    for number in range(chain.n):
        gathered += chain.block_bytes[number]
        if gathered > limit and number + 1 < chain.n:
            kept.append(number + 1)
            gathered = 0
    return (*kept, chain.n)


def find_log(task: Task) -> Found:
    """Halve recursively."""
    chain = make_chain(task)
    depth = math.ceil(math.log2(chain.n)) if chain.n > 1 else 0
    note = f"{chain.n} blocks halved {depth} times: at most {depth} frontiers are kept at a time"
    return Found((_halved(task, chain, 0, chain.n),), (note,))


def _halved(task: Task, chain: Chain, start: int, end: int) -> Schedule:
    """Return blocks ``start .. end-1`` with all but the last behind nested segments.

    The last block is left as it is: its backward pass follows at once.
    """
    segments: list[Segment] = []
    while end - start > 1:
        middle = _middle(chain, start, end)
        segments += nested(task, start, middle, _halved(task, chain, start, middle))
        start = middle
    segments.append(block_segment(task, start, True))
    return tuple(segments)


def nested(task: Task, start: int, end: int, children: Schedule) -> list[Segment]:
    """Return blocks ``start .. end-1`` to be run again as a whole, then as ``children``.

    A block by itself is one segment. Where something inside may not run again, its blocks are segments each.
    """
    if end - start == 1:
        return [block_segment(task, start, False)]
    if not nestable(task, start, end):
        return [block_segment(task, number, False) for number in range(start, end)]
    return [around(task.cuts.positions[start], task.cuts.positions[end], children)]


def _middle(chain: Chain, start: int, end: int) -> int:
    """Return the lightest cut in the middle third of a range, the middle one where they are equal."""
    third = (end - start) // 6
    middle = (start + end) // 2
    near = range(max(middle - third, start + 1), min(middle + third, end - 1) + 1)
    return min(near, key=lambda cut: (chain.frontier_bytes(start, cut), abs(cut - middle), cut))
