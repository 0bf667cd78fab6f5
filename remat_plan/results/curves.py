"""Peaks against overheads: the trade-off curve of a program, and plans of it side by side.

In: points by the evaluator; per strategy and budget a ``Plan``, or the ``BudgetError`` that there was instead. Out:
``Tradeoff``, which is a source of plans too, and ``Comparison``: printed, shown, drawn, stored as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from remat_plan.results.codec import encode_fields
from remat_plan.results.measurement import Measurement
from remat_plan.results.plan import Plan
from remat_plan.results.shown import Shown
from remat_plan.small.doors import door


@dataclass(frozen=True, slots=True)
class TradeoffPoint:
    """One schedule: predicted peak bytes of the step, and predicted overhead.

    ``host_bytes`` are what it keeps in the host's memory, in addition to the peak.
    """

    peak_bytes: int
    overhead: float
    host_bytes: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Tradeoff(Shown):
    """Peak bytes against overhead, from least memory to most; the last point is the plain step, or what beats it.

    If recomputation is predicted to be free (arithmetic that fits between transfers), the plain step is not a point of
    the curve. It is then named next to it, and shares still refer to it.

    Attributes:
        points: predicted; none is beaten by another in both memory and time.
        target: the device.
        planner: makes a plan for a budget, from the same solve; None after unpickling.
        written: the function as written, if it has ``jax.checkpoint`` regions of its own; else None.
        plain: the step without recomputation; None if the curve has no points.
    """

    points: tuple[TradeoffPoint, ...]
    target: str
    planner: Callable[..., Any] | None = field(default=None, compare=False)
    written: TradeoffPoint | None = None
    plain: TradeoffPoint | None = None

    @property
    def written_peak_bytes(self) -> int:
        """Predicted peak of the function as written, to which shares and budgets in percent refer."""
        step = self.written or self.plain
        return max((p.peak_bytes for p in (self.points if step is None else (step,))), default=1) or 1

    @property
    def free(self) -> TradeoffPoint | None:
        """The point that replaces the plain step on the curve, with less memory and no more time; None without one."""
        beaten = self.plain is not None and self.points and self.plain not in self.points
        return self.points[-1] if beaten else None

    @door
    def plan(self, budget: Any, *, verify: bool = True) -> Any:
        """Return the ``Plan`` for a budget (as in ``rp.plan``), without solving again.

        Raises:
            ValueError: the curve was unpickled, so its program is gone.
            BudgetError: the budget is below the lowest peak found.
        """
        if self.planner is None:
            raise ValueError(
                "this curve was unpickled without its program: call rp.tradeoff(...) again, or rp.plan(..., "
                "budget=...). Plans themselves can be stored."
            )
        return self.planner(budget, verify)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tradeoff, (self.points, self.target, None, self.written, self.plain)

    def __deepcopy__(self, memo: Any) -> Tradeoff:
        return self  # nothing in it can be changed


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """The result of one strategy at one budget.

    Attributes:
        strategy: its name.
        budget: as given; "" for none.
        plan: the plan; None if the strategy cannot meet the budget.
        minimum_bytes: the lowest peak found; None if there is a plan.
        problem: why there is no plan; "" if there is one.
        measurement: seconds of its step and the plain one, with ``measure=True``.
    """

    strategy: str
    budget: str
    plan: Plan | None
    minimum_bytes: int | None = None
    problem: str = ""
    measurement: Measurement | None = None

    @property
    def peak_bytes(self) -> int | None:
        """The compiled peak; without verification the predicted one; None without a plan."""
        if self.plan is None:
            return None
        compiled = self.plan.compiled_peak_bytes
        return self.plan.predicted_peak_bytes if compiled is None else compiled

    @property
    def host_bytes(self) -> int | None:
        """What its step keeps in the host's memory, compiled or predicted as the peak is; None without a plan."""
        return None if self.plan is None else self.plan.kept_on_host_bytes


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Plans of one program for one device, by strategy and budget.

    Attributes:
        rows: in the order of the arguments.
        target: the device.
        verified: whether peaks are compiled or else predicted.
        written_peak_bytes: of the function as written, to which shares refer.
        plain_peak_bytes: of the plain step, in which nothing is recomputed.
        has_own_remat: whether the function has ``jax.checkpoint`` regions of its own that were replanned; if not, the
            two peaks are equal.
        offloads: whether a plan keeps values in the host's memory.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> loss = lambda w, x: jnp.sum(jax.lax.fori_loop(0, 8, lambda _, x: jnp.tanh(x @ w), x))
        >>> shapes = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")
        >>> found = rp.compare(loss, *shapes, budgets=["75%", "65%"], verify=False)
        >>> [row.plan is not None for row in found.rows]
        [True, True]
    """

    rows: tuple[ComparisonRow, ...]
    target: str
    verified: bool
    written_peak_bytes: int
    plain_peak_bytes: int
    has_own_remat: bool = False

    @property
    def offloads(self) -> bool:
        """Whether a plan keeps values in the host's memory."""
        return any(row.host_bytes for row in self.rows)

    @property
    def footnotes(self) -> tuple[str, ...]:
        """What to know about the figures."""
        word = "compiled" if self.verified else "predicted"
        told = [f"Peaks are {word}; overhead (of seconds) and FLOPs (planned over plain) are predicted."]
        if self.verified:
            told.append("Compiled overhead is read from the modules that XLA compiled.")
        if self.offloads:
            told.append(f"On host: bytes in the host's memory ({word}), in addition to the peak on the device.")
        measured = next((row.measurement for row in self.rows if row.measurement is not None), None)
        if measured is not None:
            told.append(
                f"Measured: median of {measured.rounds} rounds, plain {1e3 * measured.plain.seconds:.4g} ms, all steps "
                f"in turns; in brackets, {measured.interval}. {measured.device}; {measured.versions}"
            )
        return tuple(told)

    def to_json(self) -> str:
        """Return the comparison as JSON text; each row has its whole plan, readable by ``Plan.from_json``."""
        rows = []
        for row in self.rows:
            plan, measured = row.plan, row.measurement
            figures = {
                "peak_bytes": row.peak_bytes,
                "host_bytes": row.host_bytes,
                "overhead": None if plan is None else plan.overhead,
                "compiled_overhead": None if plan is None else plan.compiled_overhead,
                "plan": None if plan is None else json.loads(plan.to_json()),
                "measurement": None if measured is None else json.loads(measured.to_json()),
            }
            rows.append({**encode_fields(replace(row, plan=None, measurement=None)), **figures})
        return json.dumps({"kind": "comparison", **encode_fields(replace(self, rows=())), "rows": rows}, sort_keys=True)
