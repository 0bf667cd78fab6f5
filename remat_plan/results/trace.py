"""A memory timeline small enough to keep in a plan.

In: ``cost.memory.Timeline``. Out: ``MemoryTrace``: at most ``POINTS`` points of live bytes, the peak among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from remat_plan.cost.memory import Timeline
from remat_plan.results.reading import Fields

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

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "positions": list(self.positions),
            "live_bytes": list(self.live_bytes),
            "steps": self.steps,
            "peak_bytes": self.peak_bytes,
            "owned_bytes": self.owned_bytes,
        }

    @staticmethod
    def from_data(fields: Fields) -> MemoryTrace:
        """Read back what ``to_data`` returned.

        Raises:
            ValueError: a field is wrong; the message names it.
        """
        positions, live = fields.counts("positions"), fields.counts("live_bytes")
        steps, peak, owned = fields.count("steps"), fields.count("peak_bytes"), fields.count("owned_bytes")
        fields.finish()
        if len(positions) != len(live):
            raise ValueError(f"{fields.at('live_bytes')} has {len(live)} numbers for {len(positions)} positions")
        if any(b <= a for a, b in pairwise((-1, *positions, steps))):
            raise ValueError(f"{fields.at('positions')} do not rise from 0 to below {fields.at('steps')}, {steps}")
        return MemoryTrace(positions, live, steps, peak, owned)


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
