"""What functions that plan themselves take, checked before anything is traced.

In: what a user gave to ``remat``, ``checkpoint`` or one of Flax. Out: a ``Request`` and ``PlanOptions``; the names and
types of the arguments, for editors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from remat_plan.clock.store import Cost, check_cost
from remat_plan.graph.argnums import positions
from remat_plan.planning.limits import make_constraints
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


def check_alone(policy: Any, budget: Any, strategy: Any, planning: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a policy where something is planned, options of planning where nothing is."""
    if policy is not None and (budget is not None or strategy is not None):
        other = "budget" if budget is not None else "strategy"
        raise ValueError(f"pass either policy or {other}: a policy says what to save, a {other} has it planned.")
    useless = sorted(set(planning) & set(Planning.__annotations__))
    if useless:
        raise ValueError(f"{useless[0]} is only for planning: pass a budget or a strategy too.")


def make_request(
    budget: Any,
    strategy: StrategyLike | None,
    argnums: tuple[int, ...],
    has_aux: bool,
    static_argnums: int | Sequence[int],
    **planning: Unpack[Planning],
) -> Request:
    """Check what a door was given, before anything is traced, and return what plans are asked for.

    Args:
        argnums: empty for a function that is no loss.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names it.
    """
    if unknown := sorted(set(planning) - set(Planning.__annotations__)):
        raise unknown_argument(unknown[0], RematOptions.__annotations__)
    row, settings = resolve_strategy(strategy or ("memory" if budget is None else "auto"))
    check_budget(row, settings, budget is not None)
    existing = planning.get("existing", "replan")
    check_existing(existing)
    constraints = make_constraints(
        planning.get("must_save", ()), planning.get("must_recompute", ()), planning.get("never_recompute")
    )
    verify, static = planning.get("verify", True), positions(static_argnums, "static_argnums")
    return Request(row, verify, argnums, has_aux, static, existing, constraints, settings)


def make_options(
    budget: int | str | float | None,
    request: Request,
    static_argnames: str | Sequence[str],
    prevent_cse: bool,
    **planning: Unpack[Planning],
) -> PlanOptions:
    """Put together what a self-planning function must know."""
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    parsed = None if budget is None else parse_budget(budget)
    target, cost = planning.get("target"), check_cost(planning.get("cost", "table"))
    return PlanOptions(parsed, request, target, names, prevent_cse, cost=cost, progress=planning.get("progress"))
