"""Several strategies and budgets on one program, side by side: ``compare``.

In: a loss function, budgets, strategies. Out: ``results.curves.Comparison``. The program is traced once, and every
schedule compiled at most once for all of them.

Limits: strategies are used with their default settings; what needs more (``"mirror"`` needs counts) gets a line that
says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from remat_plan.clock.steps import attached, run_of
from remat_plan.clock.store import Cost
from remat_plan.clock.turns import time_in_turns
from remat_plan.graph.argnums import positions
from remat_plan.graph.schedule import Segment
from remat_plan.planning.constraints import make_constraints
from remat_plan.planning.strategies.records import CHECKED
from remat_plan.planning.strategies.values import StrategyLike, resolve_strategy
from remat_plan.plans.one_program import make_plan
from remat_plan.results.curves import Comparison, ComparisonRow
from remat_plan.results.measurement import ROUNDS, Measurement, step_values
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.judge import Judge
from remat_plan.small import garbage
from remat_plan.small.budget import Budget, parse_budget
from remat_plan.small.doors import door
from remat_plan.small.progress import Progress
from remat_plan.small.wording import short
from remat_plan.traced.programs import Existing, trace_program
from remat_plan.verify.targets import resolve, traced_for_target


@door
@traced_for_target
@garbage.seldom_in
def compare(
    fn: Callable[..., Any],
    *args: Any,
    budgets: int | str | float | Iterable[int | str | float],
    strategies: StrategyLike | Iterable[StrategyLike] = ("auto",),
    verify: bool = True,
    measure: bool = False,
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
    progress: bool | None = None,
) -> Comparison:
    """Plan one function by several strategies for several budgets, and show the plans side by side.

    Args:
        budgets: as ``budget`` of ``plan``, one or more.
        strategies: as ``strategy`` of ``plan``, one or more. One that has a single schedule, whatever the budget, is
            planned once, without a budget (``rp.strategies()`` calls these "checked").
        measure: run the gradient steps of all plans and the plain one in turns on the attached device; the arguments
            must be arrays. Results are in ``row.measurement``.
        fn, args, verify, argnums, has_aux, static_argnums, kwargs, target, cost, existing, progress: as in ``plan``.
        offload, may_offload, host_budget: as in ``plan``; strategies other than ``"auto"`` and ``"chain"`` keep values
            where they kept them.

    Returns:
        One row per strategy and budget, with the plan, or the lowest peak found if none fits, or the reason why the
        strategy cannot plan this program. ``print`` or ``.plot()`` it; ``.rows[i].plan`` is an ordinary plan.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> def loss(w, x):
        ...     for _ in range(8):
        ...         x = jnp.tanh(x @ w)
        ...     return jnp.sum(x)
        >>> shapes = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")
        >>> found = rp.compare(loss, *shapes, budgets=["75%", "60%"], verify=False)
        >>> [row.plan.overhead < 1 for row in found.rows]
        [True, True]
    """
    parsed = [parse_budget(budget) for budget in _several("budgets", budgets)]
    static = positions(static_argnums, "static_argnums")
    found = [resolve_strategy(strategy) for strategy in _several("strategies", strategies)]
    constraints = make_constraints(offload=offload, may_offload=may_offload, host_budget=host_budget)
    requests = [
        Request(row, verify, positions(argnums), has_aux, static, existing, constraints, settings)
        for row, settings in found
    ]
    if measure:
        attached(target or "default", "this comparison")
    program = trace_program(fn, args, kwargs or {}, argnums, has_aux, static_argnums, existing)
    values = step_values(program) if measure else []
    with Progress("remat_plan", progress) as shown:
        judge = Judge(program, resolve(target), shown, cost, host_bytes=constraints.host_bytes)
        candidates = Candidates(judge.rules, shown)
        rows = tuple(
            _row(judge, candidates, row, budget)
            for row in requests
            # none at all if budgets would make no difference
            for budget in ([None] if row.strategy.budget == CHECKED else parsed)
        )
        verified = verify and not judge.mapped
        peak = judge.compiled_bytes if verified else judge.predicted_bytes
        written, plain = peak(judge.baseline), peak(judge.unplanned)
        rows = _measured(judge, rows, values) if measure else rows
    return Comparison(rows, judge.device, verified, written, plain, program.has_own_remat)


def _several(name: str, given: Any) -> Sequence[Any]:
    """Budgets or strategies as they were given, one or more: what is no collection of them is one."""
    is_schedule = isinstance(given, tuple) and bool(given) and isinstance(given[0], Segment)
    one = is_schedule or isinstance(given, str) or not isinstance(given, Iterable)
    if not (several := [given] if one else list(given)):
        raise ValueError(f"{name}={short(given)}: give at least one.")
    return several


def _row(judge: Judge, candidates: Candidates, request: Request, budget: Budget | None) -> ComparisonRow:
    name, text = request.strategy.name, "" if budget is None else budget.text
    try:
        return ComparisonRow(name, text, make_plan(judge, candidates, budget, request, time.perf_counter()))
    except ValueError as error:  # a budget that cannot be met, or it lacks a setting, or cannot plan this program
        return ComparisonRow(name, text, None, getattr(error, "minimum_bytes", None), str(error))


def _measured(judge: Judge, rows: Sequence[ComparisonRow], values: Sequence[Any]) -> tuple[ComparisonRow, ...]:
    """The rows with measurements: the step of each schedule that there is a plan for, once, and the plain step."""
    plans = {row.plan.schedule: row.plan for row in rows if row.plan is not None}
    schedules = [judge.unplanned, *plans]
    runs = [run_of(judge.step(schedule), values, judge.target) for schedule in schedules]

    def say(done: int) -> None:
        judge.progress.say("running all steps in turns", done=done, total=ROUNDS)

    plain, *samples = time_in_turns(runs, ROUNDS, say)
    found = dict(zip(plans, samples, strict=True))

    def measured(row: ComparisonRow) -> ComparisonRow:
        if row.plan is None:
            return row
        samples = found[row.plan.schedule]
        return replace(row, measurement=Measurement.of(row.strategy, plain, samples, row.plan.overhead, judge.target))

    return tuple(map(measured, rows))
