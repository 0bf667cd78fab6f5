"""A memory timeline small enough to keep in a plan.

In: ``cost.memory.Timeline``. Out: ``MemoryTrace``: at most ``POINTS`` points of live bytes, the peak among them.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan.cost.memory import Timeline

POINTS = 600


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """Live bytes over a gradient step.

    Attributes:
        positions: step numbers, from 0 to ``steps - 1``.
        live_bytes: bytes needed at each of them, arguments and outputs included.
        steps: how many steps the program has.
        peak_bytes: the largest of all steps.
        owned_bytes: arguments and outputs, there all the time.
    """

    positions: tuple[int, ...]
    live_bytes: tuple[int, ...]
    steps: int
    peak_bytes: int
    owned_bytes: int


def reduce_timeline(timeline: Timeline) -> MemoryTrace:
    """Keep the highest step of each of at most ``POINTS`` equal stretches."""
    live = timeline.live_bytes
    width = max(1, -(-len(live) // POINTS))
    positions = []
    for start in range(0, len(live), width):
        stretch = range(start, min(start + width, len(live)))
        positions.append(max(stretch, key=live.__getitem__))
    return MemoryTrace(
        tuple(positions),
        tuple(live[p] for p in positions),
        len(live),
        timeline.peak_bytes,
        timeline.argument_bytes + timeline.output_bytes,
    )
