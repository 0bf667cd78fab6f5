"""What users call: ``plan``, ``analyze``, ``tradeoff``, ``compiler_options``.

In: functions and budgets. Out: plans, functions, reports. Only wiring: each stage does its own work.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from remat_plan.clock.store import Cost, hardware_of
from remat_plan.cost.builder import Rules
from remat_plan.graph.argnums import positions
from remat_plan.graph.build import build
from remat_plan.graph.schedule import Schedule
from remat_plan.planning.constraints import make_constraints
from remat_plan.planning.inside import find_inside
from remat_plan.planning.limits import NO_LIMITS
from remat_plan.planning.strategies.records import NEEDED, Strategy
from remat_plan.planning.strategies.registry import check_budget, lookup
from remat_plan.planning.strategies.values import StrategyLike, resolve_strategy
from remat_plan.plans.one_program import make_plan, plan_program
from remat_plan.report.strategies import Strategies
from remat_plan.results.analysis import Analysis, analyze_graph
from remat_plan.results.curves import Tradeoff, TradeoffPoint
from remat_plan.results.plan import Plan
from remat_plan.search.candidates import CURVE_POINTS, MEMORY, TIME, Candidates, Goal, Request
from remat_plan.search.front import family
from remat_plan.search.judge import Judge
from remat_plan.search.seconds import check_time
from remat_plan.small import garbage
from remat_plan.small.budget import format_bytes, is_budget, parse_budget
from remat_plan.small.doors import door, integer
from remat_plan.small.progress import Progress
from remat_plan.small.wording import short
from remat_plan.solve.pareto import undominated
from remat_plan.traced.programs import Existing, trace_loss, trace_program
from remat_plan.traced.reuse import note_options_asked
from remat_plan.verify import compile as _compile
from remat_plan.verify.targets import resolve, traced_for_target

_POINTS = CURVE_POINTS + 1  # and the plain one


@door
@traced_for_target
def plan(
    fn: Callable[..., Any],
    *args: Any,
    budget: int | str | float | None = None,
    strategy: StrategyLike = "auto",
    must_save: Sequence[str] = (),
    must_recompute: Sequence[str] = (),
    never_recompute: Sequence[str] | None = None,
    never_split: Sequence[str] | Literal[True] = (),
    offload: bool = False,
    may_offload: Sequence[str] = (),
    host_budget: int | str | None = None,
    verify: bool = True,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    static_argnums: int | Sequence[int] = (),
    kwargs: Mapping[str, Any] | None = None,
    target: str | None = None,
    cost: Cost = "table",
    existing: Existing = "replan",
    goal: Goal = "memory",
    progress: bool | None = None,
) -> Plan:
    """Plan what to save and what to recompute so that the gradient step of ``fn`` fits in ``budget``.

    Args:
        fn: a loss function: returns a scalar, or ``(scalar, anything)``.
        *args: its arguments: pytrees of arrays or ``jax.ShapeDtypeStruct`` (nothing is computed).
        budget: bytes on one device for the compiled ``value_and_grad`` step (arguments + outputs + temporaries):
            an integer, ``"800MB"``, ``"8GiB"``, a share such as ``"60%"`` of what ``fn`` needs as written, or
            ``"device"``. None for strategies that need no budget (see ``rp.strategies()``).
        strategy: how to choose: ``"auto"`` or another name in ``rp.strategies()``; ``rp.Binomial(slots=8)``,
            ``rp.Collection(names=...)``, ``rp.Mirror(counts=...)``; or an explicit schedule, such as ``plan.schedule``.
        must_save: ``checkpoint_name`` names of values that are never recomputed.
        must_recompute: ``checkpoint_name`` names of values that are never saved for the backward pass.
        never_recompute: names of primitives that are never recomputed, such as ``"psum"`` or ``"dot_general"``. By
            default, for ``"auto"`` and ``"chain"``, the collectives of the program; ``()`` allows them.
        never_split: what never runs in slices: ``checkpoint_name`` names of values, or names of primitives such as
            ``"scan"``; True for no slices at all.
        offload: whether values may be kept in the host's memory between the passes, where that pays: what the steps of
            loops keep.
        may_offload: ``checkpoint_name`` names of the values that may be; with them ``offload`` is not needed.
        host_budget: so much of the host's memory may be used, such as ``"64GB"``; None for any amount.
        verify: compile and correct until the compiled peak is within the budget; False trusts the prediction.
        argnums, has_aux: as in ``jax.grad``. A pair that starts with a scalar counts as ``(loss, aux)`` without
            ``has_aux`` too, unless the rest could be a gradient or new parameters.
        static_argnums: positions of arguments that are not traced.
        kwargs: keyword arguments of ``fn``.
        target: the device to plan for, attached or not, such as ``"gpu:h100"`` or ``"tpu:v5e:1x1"``.
        cost: the rates that predict seconds: ``"table"``, from data sheets (of a CPU: by its cores), or ``"measured"``,
            of the attached device, measured once (about 20 seconds) and kept in the user's cache folder; plans then
            depend on that file.
        existing: ``"replan"`` replans the function's own ``jax.checkpoint`` regions, or leaves the whole function as
            written if nothing that fits is predicted to be faster; ``"keep"`` plans around them.
        goal: ``"memory"``, the least recomputation within the budget, or ``"time"``, the fastest step, whatever memory
            it needs: by the clock if ``args`` are arrays and the device is attached, else by the compiler's figures.
            ``"time"`` takes no budget and leaves the function unchanged unless another schedule is clearly faster.
        progress: show progress after two seconds and, on a terminal, a one-line summary at the end; by default if
            stderr is a terminal.

    Returns:
        The plan, to print and to apply (``plan.apply(fn)``).

    Raises:
        BudgetError: the budget is below the lowest peak found, which is ``.minimum_bytes``.
        TypeError, ValueError: an argument is wrong; the message names it.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.sum(x)
        >>> shapes = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")
        >>> plan = rp.plan(loss, *shapes, budget="60%")
        >>> plan.compiled_peak_bytes <= plan.budget_bytes < plan.written_peak_bytes
        True
    """
    started = time.perf_counter()
    row, settings = resolve_strategy(strategy)
    _check_keyword(budget, row, goal, args)
    kept = must_save, must_recompute, never_recompute, never_split
    constraints = make_constraints(*kept, offload, may_offload, host_budget)
    if goal == TIME:
        check_time(row, budget, verify)
    elif goal != MEMORY:
        raise ValueError(f"goal={goal!r}: choose {MEMORY!r} (the least recomputation within a budget) or {TIME!r}.")
    else:
        check_budget(row, budget is not None)
    parsed = None if budget is None else parse_budget(budget)
    device = resolve(target)
    static = positions(static_argnums, "static_argnums")
    program = trace_program(fn, args, kwargs or {}, argnums, has_aux, static_argnums, existing)
    request = Request(row, verify, positions(argnums), has_aux, static, existing, constraints, settings, goal)
    made = plan_program(program, device, parsed, request, cost, progress, started)
    return dataclasses.replace(made, function=fn)


def _check_keyword(budget: Any, row: Strategy, goal: Goal, args: Sequence[Any]) -> None:
    """Raise ``TypeError`` where a budget that is needed stands among the arguments of the function."""
    if budget is None and row.budget == NEEDED and goal != TIME:
        text = next((arg for arg in args if isinstance(arg, str) and is_budget(arg)), None)
        if text is not None:
            raise TypeError(
                f"{short(text)} was passed as an argument of the function. Pass the budget by keyword: "
                f"budget={short(text)}."
            )


def strategies() -> Strategies:
    """Return all strategies: iterate over the records, look one up by name, ``print`` the table.

    Each record has ``name``, ``source`` (paper and section), ``summary``, ``when_not_to_use``, ``budget``
    (``"needed"``, ``"searched"`` or ``"checked"``) and ``settings`` (the class to pass instead of the name).

    Example:
        >>> import remat_plan as rp
        >>> rp.strategies()["memory"].budget
        'searched'
        >>> [row.settings for row in rp.strategies() if row.settings]
        ['Binomial', 'Collection', 'Mirror']
    """
    return Strategies()


@door
def analyze(
    fn: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    static_argnums: int | Sequence[int] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Analysis:
    """List what plain JAX saves between the forward and the backward pass, by value; nothing is compiled.

    Of a program that is all inside one call, as under `jax.shard_map`, it lists what is in there: bytes of one device.

    Also tell at which equation the plain step needs most memory (``.peak``), along which axis it can run in slices
    there, and in how many at most.

    Args: as in ``plan``.

    Returns:
        Rows sorted by bytes (shape, dtype, primitive, source line, ``checkpoint_name``), totals, the peak.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> analysis = rp.analyze(lambda w, x: jnp.sum(jnp.tanh(x @ w)), jnp.ones((8, 8)), jnp.ones((4, 8)))
        >>> analysis.minimum_residual_bytes  # the output of tanh, from which 1 - y*y follows
        128
    """
    traced = trace_loss(fn, args, kwargs or {}, argnums, has_aux, static_argnums)
    graph = build(traced.jaxpr, traced.call.differentiated, keep_remat=True, merge=False, wanted=traced.wanted)
    rules = Rules(graph, hardware_of(resolve(None)))
    return analyze_graph(find_inside(rules, NO_LIMITS).rules)


@door
@traced_for_target
@garbage.seldom_in
def tradeoff(
    fn: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    static_argnums: int | Sequence[int] = (),
    kwargs: Mapping[str, Any] | None = None,
    target: str | None = None,
    cost: Cost = "table",
    existing: Existing = "replan",
    offload: bool = False,
    may_offload: Sequence[str] = (),
    host_budget: int | str | None = None,
    points: int = _POINTS,
    progress: bool | None = None,
) -> Tradeoff:
    """Return the whole curve of peak bytes against overhead, from one solve.

    Args: as in ``plan``; ``points`` is the number of budgets to find schedules for, the plain peak among them.

    Returns:
        The curve, with ``.points``, ``.plot()``, ``.plan(budget)``.
    """
    constraints = make_constraints(offload=offload, may_offload=may_offload, host_budget=host_budget)
    device, points = resolve(target), integer("points", points, 2)
    program = trace_program(fn, args, kwargs or {}, argnums, has_aux, static_argnums, existing)
    shown = Progress("remat_plan", progress)
    static = positions(static_argnums, "static_argnums")
    with shown:
        judge = Judge(program, device, shown, cost, host_bytes=constraints.host_bytes)
        candidates = Candidates(judge.rules, shown)
        request = Request(lookup("auto"), False, positions(argnums), has_aux, static, existing, constraints)
        found = [_point(judge, schedule) for schedule in family(judge, candidates, request, points)]
        plain = _point(judge, program.plain)
        found.append(plain)
        written = _point(judge, program.written) if program.has_own_remat else None

    def make(budget: Any, verify: bool) -> Plan:
        asked = dataclasses.replace(request, verify=verify)
        with shown:
            made = make_plan(judge, candidates, parse_budget(budget), asked, time.perf_counter())
        return dataclasses.replace(made, function=fn)

    best = undominated(found if written is None else [*found, written], lambda p: (p.peak_bytes, p.overhead))
    curve = _distinct(best, plain)
    return Tradeoff(curve, judge.device, make, written, plain)


def _distinct(points: Sequence[TradeoffPoint], plain: TradeoffPoint) -> tuple[TradeoffPoint, ...]:
    """Leave out points that look beaten where they are printed, whatever the digits behind say; not the plain step."""
    kept: list[TradeoffPoint] = []
    for point in reversed(points):  # from the fastest on
        if kept and format_bytes(kept[-1].peak_bytes) == format_bytes(point.peak_bytes):
            continue
        if kept and kept[-1] != plain and f"{kept[-1].overhead:.1%}" == f"{point.overhead:.1%}":
            kept.pop()
        kept.append(point)
    return tuple(reversed(kept))


def _point(judge: Judge, schedule: Schedule) -> TradeoffPoint:
    host_bytes = judge.timeline(schedule).host_bytes
    return TradeoffPoint(judge.predicted_bytes(schedule), judge.overhead(schedule), host_bytes)


def compiler_options(target: str | None = None) -> dict[str, str]:
    """Return options for ``jax.jit(..., compiler_options=...)`` that preserve savings on this jaxlib.

    Empty if none are needed. XLA:CPU up to jaxlib 0.11.0 drops the barriers of ``jax.checkpoint`` in unrolled code;
    plans are verified with these options.
    """
    note_options_asked()
    return _compile.compiler_options(resolve(target))
