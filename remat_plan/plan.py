"""A plan: the schedule, what it costs, and how it was found, as one value.

In: what ``api.plan`` found. Out: ``Plan``: applied to functions, printed, drawn, stored as JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remat_plan.graph.fingerprint import Fingerprint, difference
from remat_plan.program import Program, Traced, trace_function, trace_loss
from remat_plan.report.decisions import Decision
from remat_plan.report.trace import MemoryTrace
from remat_plan.reuse import Emissions
from remat_plan.rewrite.segments import Segment, check_cover, is_written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 1

NO_BUDGET = "none"
"""What ``Plan.budget`` says where there was none."""


@dataclass(frozen=True)
class Plan:
    """What is saved and what is recomputed in one program, to fit one budget.

    Attributes:
        strategy: how it was found.
        target: the device it is for.
        budget: what was asked for, as text.
        budget_bytes: bytes that the compiled gradient step may need on the device; None without a budget.
        baseline_peak_bytes: what the step of the function as written needs, with ``jax.checkpoint`` regions of its own
            in place (compiled, or predicted with ``verify=False``); a budget in per cent is of this.
        predicted_peak_bytes: by the evaluator.
        compiled_peak_bytes: by XLA for the target; None with ``verify=False``.
        overhead: recomputed seconds over seconds of the plain step, by the evaluator (0.1 is ten percent).
        lower_bound: overhead that no schedule within this budget (without one: this peak) can go below.
        fingerprint: identity of the program.
        schedule: the segments.
        decisions: the schedule as rows for people.
        before, after: live bytes over the step, plain and planned.
        argnums, has_aux, static_argnums, existing: as given to ``rp.plan``; no ``argnums`` for a function that is no
            loss, whose gradient step is its VJP with respect to every array of floating point.
        plain_peak_bytes: what the step needs where nothing is recomputed, the function's own regions dissolved; None
            where it has none, so that this is ``baseline_peak_bytes``.
        written_overhead, written_flops: of the function as written, as ``overhead`` and ``step_flops`` are of the plan;
            None where it has no regions of its own.
        planning_seconds: how long it took (not part of the plan's identity).

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.sum(x)
        >>> w, x = jnp.ones((128, 128)) / 128, jnp.ones((4096, 128))
        >>> plan = rp.plan(loss, w, x, budget="60%")
        >>> plan.compiled_peak_bytes <= plan.budget_bytes
        True
        >>> gradient = jax.jit(jax.grad(plan.apply(loss)))(w, x)
    """

    strategy: str
    target: str
    budget: str
    budget_bytes: int | None
    baseline_peak_bytes: int
    predicted_peak_bytes: int
    compiled_peak_bytes: int | None
    overhead: float
    lower_bound: float
    program: Fingerprint
    schedule: tuple[Segment, ...]
    decisions: tuple[Decision, ...]
    before: MemoryTrace
    after: MemoryTrace
    step_flops: float
    plain_flops: float
    argnums: tuple[int, ...]
    has_aux: bool
    static_argnums: tuple[int, ...]
    existing: str
    notes: tuple[str, ...] = ()
    plain_peak_bytes: int | None = None
    written_overhead: float | None = None
    written_flops: float | None = None
    planning_seconds: float = field(default=0.0, compare=False)

    @property
    def fingerprint(self) -> str:
        """Digest of the program that this plan is for."""
        return self.program.digest

    @property
    def gap(self) -> float:
        """Overhead above the certified lower bound: no schedule can recompute less by more than this share."""
        return max(self.overhead - self.lower_bound, 0.0)

    @property
    def is_identity(self) -> bool:
        """Whether the budget is met without recomputing anything."""
        return len(self.schedule) == 1 and self.schedule[0].kind == "plain"

    @property
    def is_written(self) -> bool:
        """Whether the function is left as it was written, with ``jax.checkpoint`` regions of its own in place."""
        return is_written(self.schedule)

    def apply(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``fn`` with this plan in it: same signature, values and derivatives.

        The result works under ``jax.jit``, ``grad``, ``value_and_grad``, ``vmap`` and their combinations.

        Raises (when called):
            ValueError: the function, traced on these arguments, is another program than the one planned; the
                message names the first equation that differs.
        """
        if not callable(fn):
            raise TypeError(f"plan.apply needs the function that was planned, not {type(fn).__name__}.")

        emissions = Emissions(self.schedule_of, self.existing)

        @functools.wraps(fn)
        def planned(*args: Any, **kwargs: Any) -> Any:
            return emissions(self.trace(fn, args, kwargs))

        return planned

    def trace(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
        """Trace a call as the one was traced that was planned."""
        if self.argnums:
            return trace_loss(fn, args, kwargs, self.argnums, self.has_aux, self.static_argnums)
        return trace_function(fn, args, kwargs, self.static_argnums)

    def schedule_of(self, program: Program) -> tuple[Segment, ...]:
        """The schedule, for the program that was planned.

        Raises:
            ValueError: ``program`` is another one.
        """
        self.check(program)
        return self.schedule

    def check(self, program: Program) -> None:
        """Raise ``ValueError`` if ``program`` is not the one that was planned."""
        if program.fingerprint.digest != self.program.digest:
            raise ValueError(
                "this plan was made for another program: "
                + difference(self.program, program.fingerprint)
                + ". A plan holds for one function and one set of argument shapes; make a new one with "
                "rp.plan(...), or use rp.remat(fn, budget=...), which plans again for every new shape."
            )

    def timeline(self) -> tuple[MemoryTrace, MemoryTrace]:
        """Live bytes over the gradient step, (plain, planned), by the evaluator."""
        return self.before, self.after

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw live bytes over the step, before and after, with the budget line (needs matplotlib)."""
        from remat_plan.report import plots

        return plots.plot_plan(self, ax)

    def __str__(self) -> str:
        from remat_plan.report import text

        return text.plan_text(self)

    def __repr__(self) -> str:
        from remat_plan.report import text

        return f"<Plan {self.strategy} {self.fingerprint}: {text.summary_line(self)}>"

    def __rich__(self) -> Any:
        from remat_plan.report import tables, terminal

        return terminal.render(tables.plan_table(self))

    def _repr_html_(self) -> str:
        from remat_plan.report import html

        return html.plan_html(self)

    def to_json(self) -> str:
        """Return the plan as JSON text, equal for equal programs, budgets and devices."""
        data = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in ("schedule", "decisions", "before", "after", "program", "planning_seconds")
        }
        data["format"] = FORMAT
        data["program"] = dataclasses.asdict(self.program)
        data["schedule"] = [s.to_data() for s in self.schedule]
        data["decisions"] = [d.to_data() for d in self.decisions]
        data["before"], data["after"] = self.before.to_data(), self.after.to_data()
        return json.dumps(data, sort_keys=True)

    @staticmethod
    def from_json(source: str) -> Plan:
        """Read a plan back.

        Raises:
            ValueError: not a plan, or one of another format.
        """
        try:
            data = json.loads(source)
        except json.JSONDecodeError as error:
            raise ValueError(f"Plan.from_json: this is not JSON ({error}).") from None
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(
                f"Plan.from_json: not a plan of format {FORMAT}; write plans with plan.to_json() of this version."
            )
        try:
            plan = Plan(
                **{
                    **data,
                    "program": Fingerprint(**{k: _tuples(v) for k, v in data["program"].items()}),
                    "schedule": tuple(Segment.from_data(s) for s in data["schedule"]),
                    "decisions": tuple(Decision.from_data(d) for d in data["decisions"]),
                    "before": MemoryTrace.from_data(data["before"]),
                    "after": MemoryTrace.from_data(data["after"]),
                    "argnums": tuple(data["argnums"]),
                    "static_argnums": tuple(data["static_argnums"]),
                    "notes": tuple(data["notes"]),
                }
            )
            check_cover(plan.schedule, 0, len(plan.program.equations))
            return plan
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"Plan.from_json: the text is not a complete plan ({error}).") from None


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
