"""The error of a budget that cannot be met: what was reached, where the memory goes, what to try.

In: ``Graph``, the ``Timeline`` of the schedule that needs least, its peak. Out: ``BudgetError``.
"""

from __future__ import annotations

import copy
import math
from typing import Any

from remat_plan.cost.memory import Timeline
from remat_plan.graph.records import Graph
from remat_plan.results.places import effect_places, equation_text, value_text
from remat_plan.small.budget import BudgetError, format_bytes

UNSEEN_ADVICE = (
    "rp.fit for the whole step or rp.plan with sharded arguments if these are on several devices (a trace does not "
    "show shardings along automatic axes, so these bytes are totals of all devices), "
)
"""What to try where the arguments are traced and there are several devices."""


def below_minimum(
    graph: Graph,
    timeline: Timeline,
    least_bytes: int,
    budget_bytes: int,
    present_bytes: int,
    verified: bool,
    device: str,
    advice: str = "",
    held: str = "",
    where: str | None = None,
) -> BudgetError:
    """The error that names ``least_bytes``, the peak of ``timeline``, as what can be had.

    Args:
        present_bytes: the peak of the step as written, which shares are of.
        verified: whether the least peak is the compiler's.
        advice: what to try beside a larger budget.
        held: what is there whatever is recomputed; by default arguments and gradients.
        where: where the peak is, in words; by default as the timeline has it.
    """
    where = where or equation_text(timeline.equations[timeline.peak_step])
    largest = largest_values(graph)
    word = "compiled" if verified else "predicted"
    if places := effect_places(graph):
        effects = "taking out effects, which must happen exactly once and so cannot be recomputed"
        advice += f"{effects} ({', '.join(places[:3])}), "
    if not any(graph.active[v] for op in graph.ops for v in op.outputs):
        advice += "checking why no gradient reaches the arguments (stop_gradient, say), "
    owned = min(timeline.argument_bytes + timeline.output_bytes, least_bytes)  # jit drops arguments that are not read
    held = held or f"Arguments and gradients alone take {format_bytes(owned)}"
    present_bytes = max(present_bytes, 1)
    share = f"{budget_bytes / present_bytes:.1%} of the {format_bytes(present_bytes)} that the step needs as written"
    message = (
        f"budget {format_bytes(budget_bytes)} ({budget_bytes} bytes, {share}) is below the lowest {word} peak "
        f"found, {format_bytes(least_bytes)} ({least_bytes} bytes, {least_bytes / present_bytes:.1%}) for "
        f"{device}. {held}. At that minimum the peak is at {where}; the largest values of the program are "
        f"{'; '.join(largest)}. Try {_least_budget(least_bytes, present_bytes)}, {advice}a smaller batch, a lower "
        "precision, or donating and sharding the arguments."
    )
    return BudgetError(message, minimum_bytes=least_bytes, budget_bytes=budget_bytes, where=where, largest=largest)


def _least_budget(least_bytes: int, present_bytes: int) -> str:
    """What to type for the least that can be had.

    >>> _least_budget(592, 1000), _least_budget(1000, 1000)
    ('budget="60%" (or budget=592)', 'budget=1000')
    """
    share = math.ceil(100 * least_bytes / present_bytes)
    return f'budget="{share}%" (or budget={least_bytes})' if share < 100 else f"budget={least_bytes}"


def all_in_one(
    eqn: Any, share: float, has_rule: bool, budget: str, budget_bytes: int, plain_bytes: int, verified: bool
) -> BudgetError:
    """The error of a program all whose bytes are in one equation that is not planned inside.

    Args:
        share: of the plain peak that the equation needs beside its arguments and results, as predicted.
        has_rule: whether its gradient has a rule of its own.
        verified: whether the plain peak, which is the least, is the compiler's.
    """
    where = equation_text(eqn)
    word = "compiled" if verified else "predicted"
    why, rule, without = "", "", ""
    if has_rule:
        why = "Its gradient has its own rule, with its own residuals: "
        rule = (
            "a rule that saves less (for a differential equation solver, another adjoint or fewer checkpoints; in "
            "diffrax, adjoint=diffrax.DirectAdjoint() is a loop that can be planned), "
        )
        without = ", the function without its custom_vjp"
    inside = (
        "nothing inside it is planned" if has_rule else "Nothing inside it is planned (it may be a loop of one step)"
    )
    message = (
        f"budget {budget} cannot be met by recomputing: the minimum is the {format_bytes(plain_bytes)} ({word}) "
        f"that the step needs as written, {share:.0%} of which (predicted) belong to one equation, {where}. "
        f"{why}{inside}, and all of it exists during its backward pass, whatever is done around it. Try "
        f"{rule}jax.checkpoint or rp.checkpoint on the functions that it calls{without}, or a smaller batch."
    )
    return BudgetError(message, minimum_bytes=plain_bytes, budget_bytes=budget_bytes, where=where, largest=())


def own_budget(error: BudgetError) -> BudgetError:
    """The error of a function in a training step that has a budget of its own, which cannot be met."""
    message = (
        "rp.fit: a function in the step has its own budget (rp.remat or rp.checkpoint with budget=...), and it is "
        "that budget which cannot be met. Use rp.mark there instead, and the function is planned within the budget "
        f"of the whole step. The error of that function: {error}"
    )
    told = copy.copy(error)
    told.args = (message,)
    return told


def nothing_to_do(graph: Graph, least_bytes: int, budget_bytes: int) -> BudgetError:
    """The error of a budget for a program without equations."""
    message = (
        f"budget {format_bytes(budget_bytes)} ({budget_bytes} bytes) cannot be met: the function computes nothing "
        f"that could be recomputed; its arguments and gradients alone take {least_bytes} bytes."
    )
    largest = largest_values(graph)
    return BudgetError(message, minimum_bytes=least_bytes, budget_bytes=budget_bytes, where="", largest=largest)


def largest_values(graph: Graph) -> tuple[str, ...]:
    """Texts of the three largest values of a program."""
    order = sorted(graph.values, key=lambda v: (-v.size_bytes, v.index))[:3]
    return tuple(f"{value_text(graph, v.index)} ({format_bytes(v.size_bytes)})" for v in order)
