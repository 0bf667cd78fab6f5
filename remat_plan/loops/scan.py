"""``scan``: ``jax.lax.scan`` with a choice of what its backward pass stores and what it recomputes.

In: a body, the first carry, stacked inputs, the name of a schedule. Out: what ``jax.lax.scan`` returns.

The body is traced once, on the way to every schedule, so that bad input gets the same message under each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax

from remat_plan import _compat
from remat_plan.loops.binomial import binomial_scan
from remat_plan.loops.body import Prepared, forward_mode_explained, prepare
from remat_plan.loops.choose import Schedule, Sizes, choose
from remat_plan.loops.nested import check_factors, log_factors, nested_scan, sqrt_factors
from remat_plan.loops.taped import make_taped
from remat_plan.small.budget import parse_budget
from remat_plan.small.doors import door, integer
from remat_plan.solve.binomial import slots_for

ScheduleName = Literal["plain", "each", "sqrt", "log", "binomial", "auto"]
ScheduleLike = ScheduleName | tuple[Literal["nested"], tuple[int, ...]]
"""What ``schedule=`` takes."""

SCHEDULES = get_args(ScheduleName)
MOST_REPETITIONS = 2
"""Slots that nobody gives are enough for no step to be advanced more often than this."""

_NAME = "rp.scan"


@door
def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    schedule: ScheduleLike = "auto",
    slots: int | None = None,
    budget: int | str | float | None = None,
    reverse: bool = False,
    unroll: int = 1,
) -> tuple[Any, Any]:
    """Run a loop like ``jax.lax.scan``, with a schedule for its gradient.

    Args:
        body: (carry, x) -> (carry, y); pytrees, the carry of the same structure, shapes and types each time.
        init: the first carry.
        xs: pytree of arrays with one row for each step, or None if ``length`` is given.
        length: the trip count; may be omitted if there are ``xs``.
        schedule: ``"plain"`` stores the residuals of every step, as ``jax.lax.scan`` does. ``"each"`` stores the
            carry of every step. ``"sqrt"`` stores about sqrt(length) carries, ``"log"`` about 2 log2(length), and
            ``("nested", (k1, ..., kd))`` k1 + ... + k(d-1), by nested ``jax.checkpoint``. ``"binomial"`` stores
            ``slots`` carries and recomputes as little as possible with them. ``"auto"`` takes the cheapest that fits
            in ``budget``; without a budget, ``"binomial"`` if ``slots`` are given, else ``"sqrt"``.
        slots: the number of carries that ``"binomial"`` may store, including the first; by default as many as needed to
            advance no step more than twice, about sqrt(2 length).
        budget: for ``"auto"`` and ``"binomial"``: bytes for what the loop stores between its forward and its backward
            pass and needs while it runs, such as ``"100MB"``, or a share of what the plain loop needs, such as
            ``"25%"``. Predicted. Gradients of weights and of xs are outputs and not counted.
        reverse: run from the last row to the first.
        unroll: as in ``jax.lax.scan``; ``"binomial"`` ignores it.

    Returns:
        The last carry and the stacked outputs.

    All schedules have all derivatives, except that ``"binomial"`` has no forward mode (``jax.jvp``). Its gradients can
    be differentiated again, in both modes.

    Raises:
        BudgetError: no schedule is predicted to fit the budget; ``minimum_bytes`` is the smallest that works.
        TypeError: the carry changes its type; the body does not return a pair; ``jax.jvp`` of ``"binomial"``.
        ValueError: unknown schedule, bad slots or factors, inputs of different lengths.

    Source: Chen et al. 2016 (``"sqrt"``, ``"log"``); Griewank and Walther 2000 (``"binomial"``).

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> def loss(w, xs):
        ...     step = lambda h, x: (jnp.tanh(w * h + x), None)
        ...     return rp.scan(step, jnp.float32(0), xs, schedule="binomial", slots=8)[0]
        >>> jax.jit(jax.grad(loss))(0.5, jnp.ones(1000)).shape
        ()
    """
    _check_options(schedule, slots, budget)
    count = trip_count(xs, length)
    if count == 0:
        return jax.lax.scan(body, init, xs, 0, reverse=reverse)
    loop = prepare(body, init, xs, count, _NAME)
    chosen = resolve(loop, schedule, slots, budget)
    if chosen.kind == "binomial":
        message = (
            f"{_NAME}: schedule='binomial' has no forward-mode derivative (jax.jvp, jax.jacfwd). Use schedule='log', "
            "'sqrt' or 'plain', which have all derivatives."
        )
        with forward_mode_explained(message):
            carry, ys = binomial_scan(loop, chosen.slots, chosen.tape, reverse)
        return loop.body.carry.pack(carry), loop.body.y.pack(ys)
    init = loop.body.carry.pack(loop.init)
    if chosen.kind == "nested":
        return nested_scan(body, init, xs, count, chosen.factors, reverse=reverse, unroll=unroll)
    step = jax.checkpoint(body, prevent_cse=False) if chosen.kind == "each" else body
    return jax.lax.scan(step, init, xs, length, reverse=reverse, unroll=unroll)  # as given: xs may have symbolic rows


def resolve(loop: Prepared, schedule: Any, slots: int | None, budget: Any) -> Schedule:
    """Return the schedule that a user's words mean for a loop."""
    if schedule == "auto" and budget is None:
        schedule = "sqrt" if slots is None else "binomial"
    if schedule in ("plain", "each"):
        return Schedule(schedule)
    if not isinstance(loop.length, int):
        raise TypeError(
            f"{_NAME}: a loop of {loop.length} steps has no schedule, since these are for lengths that are numbers. "
            "With jax.export, export the function once for each length, or take schedule='each' or 'plain'."
        )
    if schedule == "sqrt":
        sizes = loop_sizes(loop)
        ratio = (sizes.residual_bytes + sizes.x_bytes) / max(sizes.carry_bytes, 1)
        return Schedule("nested", sqrt_factors(loop.length, ratio))
    if schedule == "log":
        return Schedule("nested", log_factors(loop.length))
    if isinstance(schedule, (tuple, list)):
        return Schedule("nested", check_factors(schedule[1], loop.length, _NAME))
    if budget is None:
        return Schedule("binomial", (), slots or slots_for(loop.length, MOST_REPETITIONS), 1)
    sizes = loop_sizes(loop)
    budget_bytes = parse_budget(budget, few=True).resolve(sizes.plain_bytes, None)
    return choose(sizes, budget_bytes, _NAME, tabled=schedule == "binomial")


def loop_sizes(loop: Prepared) -> Sizes:
    """Return a loop in numbers, as if everything in it were differentiated that can be."""
    body = loop.body
    closed = [_compat.is_float(jax.typeof(c)) for c in loop.closed]
    taped = make_taped(body, loop.closed, closed, body.x.floats)
    return Sizes(loop.length, body.carry.size_bytes, taped.tape_bytes, body.x.size_bytes)


def trip_count(xs: Any, length: int | None) -> int:
    """Return how many steps a loop has.

    ``ValueError`` for inputs of different lengths, or none and no ``length``; ``TypeError`` if that is no integer, or
    an input has no rows.
    """
    named = [(f"xs{jax.tree_util.keystr(p)}", jax.typeof(x).shape) for p, x in jax.tree_util.tree_leaves_with_path(xs)]
    for name, shape in named:
        if not shape:
            raise TypeError(f"{_NAME}: {name} is a scalar; every input needs one row for each step.")
    lengths = {name: shape[0] for name, shape in named}
    if length is not None:
        lengths["length"] = integer(f"{_NAME}: length", length, 0, ", known when the loop is traced")
    if not lengths:
        raise ValueError(f"{_NAME}: pass xs or length; without either, the number of steps is unknown.")
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in lengths.items())
        raise ValueError(f"{_NAME}: all inputs must have the same number of rows: {told}.")
    return next(iter(lengths.values()))


def _check_options(schedule: Any, slots: Any, budget: Any) -> None:
    nested = isinstance(schedule, (tuple, list)) and len(schedule) == 2 and schedule[0] == "nested"
    if not nested and schedule not in SCHEDULES:
        known = ", ".join(map(repr, SCHEDULES))
        raise ValueError(
            f"{_NAME}: schedule={schedule!r} is unknown. Choose one of {known}, or ('nested', (k1, k2, ...)); "
            "slots, for 'binomial', are an argument of their own."
        )
    if slots is not None:
        integer(f"{_NAME}: slots", slots, why=", the number of carries that may be stored")
    if slots is not None and schedule not in ("binomial", "auto"):
        raise ValueError(f"{_NAME}: slots={slots} goes with schedule='binomial', not with {schedule!r}.")
    if budget is not None and schedule not in ("binomial", "auto"):
        raise ValueError(f"{_NAME}: budget={budget!r} goes with schedule='auto' or 'binomial', not with {schedule!r}.")
    if budget is not None and slots is not None:
        raise ValueError(f"{_NAME}: pass either slots={slots} or budget={budget!r}: each says how much to store.")
