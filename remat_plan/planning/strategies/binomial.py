"""The strategy ``binomial``: the fewest forward steps for a number of states kept, on the chain of blocks.

In: ``Task`` (``settings.slots``, or none: a spread of slots to choose from by the budget). Out: ``Found``.

Griewank & Walther 2000 (revolve; ``solve.binomial``): with s states kept at a time, the first one among them, a chain
of n equal steps is reversed with r n - beta(s+1, r-1) steps that only advance and n that keep residuals, where beta(s,
r) = (s + r)! / (s! r!) and beta(s, r-1) < n <= beta(s, r); no schedule needs fewer. As nested segments: the part in
front of a stored state is a segment that is run again as a whole, under as many slots as were there when it began; what
follows has one less.

Limits: segments are nested as deep as a block is advanced over, so few slots for many blocks are refused. It counts
blocks, so it is optimal where blocks cost the same; where they do not, ``chain`` is better. Where a
block may not run again, the part around it is not nested.
"""

from __future__ import annotations

from remat_plan.graph.schedule import Segment
from remat_plan.planning.strategies.chains import block_segment, make_chain
from remat_plan.planning.strategies.records import Found, Schedule, Task
from remat_plan.planning.strategies.sublinear import nested
from remat_plan.solve.binomial import Splits, advances, make_splits, repetitions, slots_for

_SPREAD = 12
_LONG_OPS = 4000
_FEW = 5
"""How many numbers of slots are tried, and how many for programs longer than ``_LONG_OPS`` equations."""

DEEPEST = 24
_DEEP = 6
"""How deep segments may be nested when slots are given, and when they are searched for: a block is in the code as
often as it may be run."""


def find_binomial(task: Task) -> Found:
    """Return the schedule for the slots that were asked for, or one each for a spread of slots."""
    n = make_chain(task).n
    if task.settings.slots is not None:
        slots = min(task.settings.slots, max(n - 1, 1))
        if repetitions(n, slots) > DEEPEST:
            raise ValueError(
                f"slots={slots}: {n} blocks would be nested {repetitions(n, slots)} deep, and JAX traces nested "
                f"checkpoints recursively. Give slots={slots_for(n, DEEPEST)} or more (at most {DEEPEST} deep), or "
                "write the layers as a lax.scan."
            )
        again = advances(n, slots)
        note = f"{n} blocks with {slots} slots: {again} blocks are recomputed to advance, the minimum"
        return Found((_schedule(task, n, slots),), (note,))
    count = _FEW if len(task.graph.ops) > _LONG_OPS else _SPREAD
    tried = _spread(slots_for(n, _DEEP), max(n - 1, 1), count)
    note = f"{n} blocks with {', '.join(map(str, tried))} slots were tried"
    return Found(tuple(dict.fromkeys(_schedule(task, n, slots) for slots in tried)), (note,))


def _spread(least: int, most: int, count: int) -> tuple[int, ...]:
    """Return numbers from ``least`` to ``most``, equally far apart as ratios.

    >>> _spread(1, 100, 5)
    (1, 3, 10, 32, 100)
    """
    return tuple(sorted({round(least * (most / least) ** (i / (count - 1))) for i in range(count)}))


def _schedule(task: Task, n: int, slots: int) -> Schedule:
    return _reversed(task, make_splits(n, slots), 0, n, slots)


def _reversed(task: Task, splits: Splits, start: int, end: int, free: int) -> Schedule:
    """Return blocks ``start .. end-1`` so that they are reversed with ``free`` states kept, that of ``start`` among
    them."""
    segments: list[Segment] = []
    while end - start > 1:
        middle = start + splits.left(end - start, free)
        segments += nested(task, start, middle, _reversed(task, splits, start, middle, free))
        start, free = middle, free - 1
    segments.append(block_segment(task, start, True))
    return tuple(segments)
