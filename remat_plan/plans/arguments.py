"""What functions that plan themselves take, checked before anything is traced.

In: what a user gave to ``remat``, ``checkpoint`` or one of Flax. Out: ``PlanOptions``; the names and types of the
arguments, for editors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from remat_plan.clock.store import Cost, check_cost
from remat_plan.graph.argnums import positions
from remat_plan.planning.constraints import make_constraints
from remat_plan.planning.strategies.registry import check_budget
from remat_plan.planning.strategies.values import StrategyLike, resolve_strategy
from remat_plan.plans.book import PlanOptions
from remat_plan.search.candidates import Request
from remat_plan.small.budget import parse_budget
from remat_plan.small.doors import unknown_argument
from remat_plan.traced.programs import Existing, check_existing


class Planning(TypedDict, total=False):
    """What every door takes beside a budget and a strategy; ``plan`` explains them."""

    verify: bool
    target: str | None
    cost: Cost
    existing: Existing
    must_save: Sequence[str]
    must_recompute: Sequence[str]
    never_recompute: Sequence[str] | None
    never_split: Sequence[str] | Literal[True]
    offload: bool
    may_offload: Sequence[str]
    host_budget: int | str | None
    progress: bool | None


class _Options(Planning, total=False):
    budget: int | str | float | None
    strategy: StrategyLike | None
    static_argnums: int | Sequence[int]
    static_argnames: str | Sequence[str]


class RematOptions(_Options, total=False):
    """What ``remat`` takes where there is no policy."""

    argnums: int | Sequence[int] | None
    has_aux: bool
    prevent_cse: bool


class CheckpointOptions(_Options, total=False):
    """What ``checkpoint`` takes: the arguments of ``jax.checkpoint``, and those of planning."""

    policy: Callable[..., Any] | None
    prevent_cse: bool | Sequence[bool]
    concrete: bool


_CONSTRAINTS = inspect.signature(make_constraints).parameters
"""Those of them that say what is kept, recomputed, split and moved."""


def asks_for_plans(policy: Any, budget: Any, strategy: Any, planning: Mapping[str, Any]) -> bool:
    """Tell whether something is to be planned: there is a budget or a strategy.

    ``ValueError`` for a policy where something is planned, and options of planning where nothing is.
    """
    if budget is None and strategy is None:
        if useless := sorted(planning.keys() & Planning.__annotations__.keys()):
            raise ValueError(f"{useless[0]} is only for planning: pass a budget or a strategy too.")
        return False
    if policy is not None:
        other = "budget" if budget is not None else "strategy"
        raise ValueError(f"pass either policy or {other}: a policy says what to save, a {other} has it planned.")
    return True


def make_options(
    budget: int | str | float | None,
    strategy: StrategyLike | None,
    static_argnums: int | Sequence[int],
    prevent_cse: bool,
    static_argnames: str | Sequence[str] = (),
    argnums: tuple[int, ...] = (),
    has_aux: bool = False,
    /,
    **planning: Unpack[Planning],
) -> PlanOptions:
    """Check what a door was given, before anything is traced; ``argnums`` are empty for a function that is no loss."""
    if unknown := sorted(set(planning) - set(Planning.__annotations__)):
        raise unknown_argument(unknown[0], RematOptions.__annotations__)
    told: Mapping[str, Any] = planning
    row, settings = resolve_strategy(strategy or ("memory" if budget is None else "auto"))
    check_budget(row, budget is not None)
    existing = told.get("existing", "replan")
    check_existing(existing)
    constraints = make_constraints(**{name: told[name] for name in _CONSTRAINTS if name in told})
    verify, static = told.get("verify", True), positions(static_argnums, "static_argnums")
    request = Request(row, verify, argnums, has_aux, static, existing, constraints, settings)
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    parsed = None if budget is None else parse_budget(budget)
    target, cost = told.get("target"), check_cost(told.get("cost", "table"))
    return PlanOptions(parsed, request, target, names, prevent_cse, cost=cost, progress=told.get("progress"))
