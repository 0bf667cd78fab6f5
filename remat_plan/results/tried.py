"""What a search tried: each schedule with its peak and its seconds, by the evaluator, the compiler, the clock.

In: figures of schedules that were compiled. Out: ``Tried`` rows of ``Search``: printed, shown, stored with the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan.results.codec import Change
from remat_plan.results.shown import Shown


@dataclass(frozen=True, slots=True)
class Tried:
    """A schedule that a search compiled with default options; those compiled with little optimisation are not told.

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
