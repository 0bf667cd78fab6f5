"""A plan: the schedule, what it costs, and how it was found, as one value.

In: what ``api.plan`` found. Out: ``Plan``: applied to functions, printed, drawn, stored as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

from remat_plan.clock.steps import attached
from remat_plan.graph.fingerprint import Fingerprint, difference
from remat_plan.graph.schedule import Segment, is_planned, is_written
from remat_plan.graph.valid import check_schedule
from remat_plan.results.codec import Change, Signed
from remat_plan.results.decisions import Decision
from remat_plan.results.evidence import MemoryTrace, Search
from remat_plan.results.measurement import ROUNDS, Measurement, measure_program
from remat_plan.results.shown import Shown
from remat_plan.results.stored import read_plan, write_plan
from remat_plan.small.doors import Wrapper, door, integer
from remat_plan.traced.programs import EXISTING, Program, Traced, make_program, trace_function, trace_loss
from remat_plan.traced.reuse import Emissions, warn_where_undone

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

NO_BUDGET = "none"
"""What ``Plan.budget`` says where there was none."""


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """What is saved and what is recomputed in one program, to fit one budget.

    Fields that are None only on request (no budget, ``verify=False``) have the type ``int | Any``, like the result of
    ``re.Match.group``, so that type checkers do not ask for a test.

    Attributes:
        strategy: how it was found.
        target: the device it is for.
        budget: the budget as given, as text.
        budget_bytes: bytes that the compiled gradient step may need on the device; None without a budget.
        written_peak_bytes: the peak of the function as written, with its own ``jax.checkpoint`` regions in place
            (compiled, or predicted with ``verify=False``); budgets in percent refer to it.
        plain_peak_bytes: the peak if nothing is recomputed, not even in the function's own regions; equal to
            ``written_peak_bytes`` if it has none, or with ``existing="keep"``.
        predicted_peak_bytes: by remat_plan's model of the compiler.
        compiled_peak_bytes: by XLA for the target; None with ``verify=False``.
        host_bytes, compiled_host_bytes: what the planned step keeps in the host's memory, in addition to its peak: by
            the schedule, and by XLA; the latter None with ``verify=False``.
        overhead: predicted extra seconds as a share of the plain step's (0.1 is 10%); below 0 if the planned step is
            predicted to be faster.
        compiled_overhead: the same from the modules that XLA compiled for both steps: the compiler's own cycles on a
            TPU, a roofline over the kernels elsewhere. Below 0 if recomputing is faster; None with ``verify=False`` or
            if the modules do not tell (because of a loop of unknown length, say).
        lower_bound: what any schedule within this budget (without one, this peak) that runs no segment in slices has
            to run again, as a share of the plain step's seconds. Writing less may save some of it.
        fingerprint: identity of the program.
        schedule: the segments.
        decisions: the schedule as readable rows.
        plain_timeline, planned_timeline: predicted live bytes over the step.
        argnums, has_aux, static_argnums, existing: as given to ``rp.plan``; no ``argnums`` for a function that is not a
            loss, whose gradient step is its VJP with respect to what was differentiated (``program.differentiated``).
        written_overhead, written_flops: like ``overhead`` and ``step_flops``, of the function as written; None if it
            has no regions of its own.
        planning_seconds: how long planning took (not part of the plan's identity).
        function: the planned function, for ``measure``; only plans from ``rp.plan`` have it, and it is neither part of
            the plan's identity nor stored.
        search: the schedules that were compiled on the way, with their peaks and overheads; ``print`` it.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> loss = lambda w, x: jnp.sum(jax.lax.fori_loop(0, 8, lambda _, x: jnp.tanh(x @ w), x))
        >>> w, x = jnp.ones((128, 128)) / 128, jnp.ones((4096, 128))
        >>> plan = rp.plan(loss, w, x, budget="60%")
        >>> plan.compiled_peak_bytes <= plan.budget_bytes
        True
        >>> gradient = jax.jit(jax.grad(plan.apply(loss)))(w, x)
    """

    strategy: str
    target: str
    budget: str
    budget_bytes: int | Any
    written_peak_bytes: int
    plain_peak_bytes: int
    predicted_peak_bytes: int
    compiled_peak_bytes: int | Any
    overhead: Change
    compiled_overhead: Change | Any
    lower_bound: Change
    program: Fingerprint
    schedule: tuple[Segment, ...]
    decisions: tuple[Decision, ...]
    plain_timeline: MemoryTrace
    planned_timeline: MemoryTrace
    step_flops: float
    plain_flops: float
    argnums: tuple[Signed, ...]
    has_aux: bool
    static_argnums: tuple[Signed, ...]
    existing: Annotated[str, EXISTING]
    notes: tuple[str, ...] = ()
    written_overhead: Change | None = None
    written_flops: float | None = None
    planning_seconds: float = field(default=0.0, compare=False)
    function: Callable[..., Any] | None = field(default=None, compare=False)
    search: Search = field(default_factory=Search)
    host_bytes: int = 0
    compiled_host_bytes: int | Any = None

    @property
    def kept_on_host_bytes(self) -> int:
        """What is kept in the host's memory: by XLA, or by the schedule where nothing was compiled."""
        return self.host_bytes if self.compiled_host_bytes is None else self.compiled_host_bytes

    @property
    def fingerprint(self) -> str:
        """Digest of the program that this plan is for."""
        return self.program.digest

    @property
    def gap(self) -> float:
        """Overhead beyond what any schedule without slices has to run again within the budget."""
        return max(self.overhead - self.lower_bound, 0.0)

    @property
    def has_own_remat(self) -> bool:
        """Whether the function has ``jax.checkpoint`` regions of its own that were replanned."""
        return self.written_overhead is not None

    @property
    def is_identity(self) -> bool:
        """Whether the budget is met without recomputing anything."""
        return not (self.is_written or is_planned(self.schedule))

    @property
    def is_written(self) -> bool:
        """Whether the function is left as it was written, with ``jax.checkpoint`` regions of its own in place."""
        return is_written(self.schedule)

    @door
    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise ``TypeError``: a plan is not the function."""
        raise TypeError("a plan is not the planned function: plan.apply(fn) is. Write plan.apply(fn)(*args).")

    @door
    def apply(self, fn: Callable[P, R]) -> Applied[P, R]:
        """Return ``fn`` with this plan applied: same signature, values and derivatives.

        The result works under ``jax.jit``, ``grad``, ``value_and_grad``, ``vmap`` and their combinations.

        Raises (when called):
            ValueError: with these arguments the function is not the program that was planned; the message names the
                first equation that differs.
        """
        if not callable(fn) or isinstance(fn, Plan):
            raise TypeError(f"plan.apply needs the function that was planned, not {type(fn).__name__}.")
        return Applied(fn, self)

    @door
    def measure(
        self,
        *args: Any,
        fn: Callable[..., Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        rounds: int = ROUNDS,
    ) -> Measurement:
        """Run the plain and the planned gradient step in turns on the attached device, and return their seconds.

        Args:
            *args: arrays of the planned shapes, as in ``rp.plan``.
            fn: the function; needed if the plan was read from a file.
            kwargs: its keyword arguments.
            rounds: how often each step runs, after one run to compile and one to warm up.

        Returns:
            Medians and spread of the seconds, the overhead with an interval, peak bytes if the device reports them.

        Raises:
            TypeError: an argument is a shape without values.
            ValueError: the plan is for a device that is not attached or for another program, or has no function.

        Example:
            >>> import jax, jax.numpy as jnp, remat_plan as rp
            >>> loss = lambda w, x: jnp.sum(jax.lax.fori_loop(0, 8, lambda _, x: jnp.tanh(x @ w), x))
            >>> w, x = jnp.ones((64, 64)) / 64, jnp.ones((512, 64))
            >>> rp.plan(loss, w, x, budget="60%").measure(w, x, rounds=3).plain.seconds > 0
            True
        """
        fn = self.function if fn is None else fn
        if fn is None:
            raise ValueError(
                "this plan has lost its function, which only plans returned by rp.plan keep and which is not stored. "
                "Write plan.measure(*args, fn=loss_fn)."
            )
        rounds = integer("rounds", rounds)
        target = attached(self.target, "this plan")
        program = make_program(self.trace(fn, args, kwargs or {}), self.existing)
        self.check(program)
        return measure_program(program, self.schedule, target, rounds, self.overhead)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "function": None}  # functions often cannot be pickled

    def trace(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
        """Trace a call as the one was traced that was planned."""
        if self.argnums:
            traced = trace_loss(fn, args, kwargs, self.argnums, self.has_aux, self.static_argnums)
        else:
            traced = trace_function(fn, args, kwargs, self.static_argnums)
        moves = tuple([i in self.program.differentiated for i in range(len(traced.call.leaves))])
        return replace(traced, call=replace(traced.call, differentiated=moves))

    def schedule_of(self, program: Program) -> tuple[Segment, ...]:
        """The schedule, for the program that was planned.

        Raises:
            ValueError: ``program`` is another one; or the schedule, read from a file, cannot run it.
        """
        self.check(program)
        try:
            check_schedule(program.graph, self.schedule)
        except ValueError as error:
            raise ValueError(
                f"this plan was damaged after it was made: {error}. Plan again with rp.plan(...)."
            ) from None
        warn_where_undone(self.schedule)
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

    def to_json(self) -> str:
        """Return the plan as JSON text, equal for equal programs, budgets and devices."""
        return write_plan(self)

    @staticmethod
    @door
    def from_json(source: str) -> Plan:
        """Read a plan back: whole, or not at all.

        Raises:
            TypeError: ``source`` is not a string.
            ValueError: not a plan, or one in another format; the message names what is wrong.
        """
        return read_plan(Plan, source)


class Applied(Wrapper[P, R]):
    """A function run as it was planned.

    Attributes:
        fn: the function.
        plan: its plan.
    """

    def __init__(self, fn: Callable[P, R], plan: Plan):
        super().__init__(fn)
        self.plan = plan
        self.emissions = Emissions(plan.schedule_of, plan.existing)

    @door
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.emissions(self.plan.trace(self.fn, args, kwargs))

    def made_of(self) -> tuple[Any, ...]:
        return self.fn, self.plan

    def known_plans(self) -> tuple[Plan, ...]:
        return (self.plan,)
