"""What a plan keeps of how it was found: memory over the step, and the schedules that were tried.

In: ``cost.memory.Timeline``; figures of schedules that were compiled. Out: ``MemoryTrace``, small enough to keep;
``Tried`` rows of ``Search``: printed, shown, stored with the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan.cost.memory import Timeline
from remat_plan.results.codec import Change
from remat_plan.results.shown import Shown

POINTS = 600
"""Most points of a trace: more than a chart has pixels for would only make stored plans larger."""


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """Live bytes at some of the steps (from 0 to ``steps - 1``) of a gradient step.

    They include ``owned_bytes``: arguments and outputs, which are always live.
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
    stretches = (range(start, min(start + width, len(live))) for start in range(0, len(live), width))
    positions = tuple(max(stretch, key=live.__getitem__) for stretch in stretches)
    return MemoryTrace(
        positions,
        tuple(live[p] for p in positions),
        len(live),
        timeline.peak_bytes,
        timeline.argument_bytes + timeline.output_bytes,
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """A schedule that a search compiled.

    Attributes:
        what: the schedule in a few words.
        predicted_peak_bytes, compiled_peak_bytes: of its gradient step.
        overhead: predicted, as ``Plan.overhead``.
        compiled_overhead: by the compiler's own figures, as ``Plan.compiled_overhead``; None where it gives none.
        measured_overhead: by the clock; None where it was not run.
        fits: whether its peak is within the budget; True without one.
        chosen: whether it is the plan.
    """

    what: str
    predicted_peak_bytes: int
    compiled_peak_bytes: int
    overhead: Change
    compiled_overhead: Change | None
    measured_overhead: Change | None
    fits: bool
    chosen: bool


@dataclass(frozen=True, slots=True, repr=False)
class Search(Shown):
    """The log of a search: ``plan.search``.

    Attributes:
        rows: in the order of compiled peaks.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> loss = lambda w, x: jnp.sum(jax.lax.fori_loop(0, 8, lambda _, x: jnp.tanh(x @ w), x))
        >>> shapes = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")
        >>> plan = rp.plan(loss, *shapes, budget="60%")
        >>> [row.compiled_peak_bytes == plan.compiled_peak_bytes for row in plan.search.rows if row.chosen]
        [True]
    """

    rows: tuple[Tried, ...] = ()
