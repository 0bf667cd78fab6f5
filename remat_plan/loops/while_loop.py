"""``while_loop``: ``jax.lax.while_loop`` with a gradient, though its trip count is not known beforehand.

In: condition, body, first carry, the number of slots. Out: the last carry.

The forward pass stores carries online (``record``): after any number of steps they lie as the best schedule for that
number needs them. The backward pass knows the trip count and splits what lies between them by the table of
``solve.binomial``. Memory is that of ``slots`` carries and a constant number of working copies.

Source: Wang, Moin and Iaccarino 2009; Stumm and Walther 2010; Griewank and Walther 2000.

Limits: no forward mode; no reverse mode of the gradient (``jax.jvp`` of the gradient works).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from remat_plan import _compat
from remat_plan.loops.body import (
    Body,
    Leaves,
    Opened,
    forward_mode_explained,
    only_floats,
    opened,
    prepare,
    read_primals,
    spread,
)
from remat_plan.loops.scan import MOST_REPETITIONS
from remat_plan.loops.sweep import Backward, Forward, Stack, Sweep, empty_stack, no_gradients, write
from remat_plan.loops.taped import make_taped
from remat_plan.small.doors import door, integer
from remat_plan.solve.binomial import INT32_MAX, Splits, make_splits, slots_for, useful_slots

SLOTS = 64
"""Slots where neither ``slots`` nor ``max_steps`` is given."""

USUAL_STEPS = 2**24
"""Up to so many steps the table is exact where ``max_steps`` is not given; beyond, it splits a little unevenly."""

_NAME = "rp.while_loop"


@door
def while_loop(
    cond: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    max_steps: int | None = None,
    *,
    slots: int | None = None,
) -> Any:
    """Run ``body`` while ``cond`` holds, like ``jax.lax.while_loop``, with a gradient.

    Args:
        cond: carry -> boolean scalar.
        body: carry -> carry; pytrees of the same structure, shapes and types.
        init: the first carry.
        max_steps: stop after this many steps. If the condition still holds then, the result is invalid: outside
            ``jax.jit`` and its like an error is raised; inside, gradients and floating-point leaves of the result are
            NaN, integer leaves the smallest value of their type (the largest, if unsigned).
        slots: the number of carries that may be stored, including the first; by default as many as needed to advance no
            step more than twice in ``max_steps`` steps, or 64 without ``max_steps``.

    Returns:
        The last carry.

    Raises:
        RuntimeError: more than ``max_steps`` steps, outside of ``jax.jit``.
        TypeError: the carry changes its type; the condition is not a boolean scalar.
        ValueError: ``slots`` or ``max_steps`` below 1.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> def root(a):  # Newton's method
        ...     far = lambda x: jnp.abs(x * x - a) > 1e-6
        ...     return rp.while_loop(far, lambda x: (x + a / x) / 2, a, max_steps=50)
        >>> round(float(jax.jit(jax.grad(root))(4.0)), 4)
        0.25
    """
    if slots is not None:
        integer(f"{_NAME}: slots", slots, why=", the number of carries that may be stored")
    if max_steps is not None and integer(f"{_NAME}: max_steps", max_steps) >= INT32_MAX:
        raise ValueError(f"{_NAME}: max_steps={max_steps} must be below {INT32_MAX}.")
    loop = prepare(lambda carry, _: (body(carry), None), init, None, 1, _NAME)
    condition, closed = _condition(cond, loop.body)
    most = max_steps or USUAL_STEPS
    if slots is None:
        slots = slots_for(most, MOST_REPETITIONS) if max_steps else SLOTS
    splits = make_splits(most, useful_slots(most, slots), 1)
    online = OnlineLoop(loop.body, condition, max_steps or INT32_MAX, splits)
    run = jax.custom_vjp(online.plain)
    run.defvjp(online.forward_rule, online.backward_rule, symbolic_zeros=True)
    with forward_mode_explained(f"{_NAME} has no forward-mode derivative (jax.jvp, jax.jacfwd); use jax.grad."):
        leaves, exceeded = run(Inputs(loop.closed, closed, loop.init))
    if max_steps is not None and not _compat.is_tracer(exceeded) and bool(exceeded):
        raise RuntimeError(f"{_NAME}: the condition still holds after max_steps={max_steps} steps. Increase it.")
    return loop.body.carry.pack(leaves)


def _condition(cond: Callable[[Any], Any], body: Body) -> tuple[Opened, Leaves]:
    """The condition on flat lists, and what it closes over."""
    condition, closed = opened(lambda leaves: [cond(body.carry.pack(leaves))], body.carry.structs)
    types = [v.aval for v in condition.jaxpr.outvars]
    if len(types) != 1 or types[0].shape != () or types[0].dtype != np.bool_:
        told = ", ".join(t.str_short() for t in types)
        raise TypeError(f"{_NAME}: the condition must return one boolean scalar, not {told or 'nothing'}.")
    return condition, closed


class Inputs(NamedTuple):
    """What the loop depends on: values that body and condition close over, and the first carry."""

    closed: Leaves
    condition: Leaves
    init: Leaves


class Running(NamedTuple):
    """Where the forward pass is: steps done, the carry, what is stored, int32 (slots,) levels (-1: empty)."""

    step: Any
    carry: Leaves
    stack: Stack
    levels: Any


def record(state: Running) -> Running:
    """Store the carry of a step; two slots or more. (Wang, Moin and Iaccarino 2009, Algorithm 1.)

    Every stored carry has a level. A new one takes a free slot, at level 0; else the slot of the latest carry that is
    dispensable (a later one has a higher level), at level 0; else the slot of the latest carry, one level higher than
    that. The first stays for ever. So after n steps no step has to be advanced more often than in the best schedule for
    n steps, for every n at once. A step costs a copy of the carry more.
    """
    stack, levels = state.stack, state.levels
    slots = levels.shape[0]
    number = jnp.arange(slots, dtype=jnp.int32)
    full = stack.count == slots
    dispensable = levels < jax.lax.cummax(levels, reverse=True)
    latest = jnp.max(jnp.where(dispensable, number, -1))
    index = jnp.where(latest < 0, slots - 1, latest)
    level = jnp.where(full & (latest < 0), levels[slots - 1] + 1, 0)
    level = jnp.where(state.step == 0, INT32_MAX, level)
    place = jnp.where(full, slots - 1, stack.count)
    row = stack.where[jnp.where(full, index, stack.count)]
    source = jnp.minimum(number + (full & (number >= index)), slots - 1)
    moved = Stack(
        jnp.minimum(stack.count + 1, slots),
        stack.steps[source].at[place].set(state.step),
        stack.where[source].at[place].set(row),
        write(stack.slots, state.carry, row),
    )
    return state._replace(stack=moved, levels=levels[source].at[place].set(level))


@dataclass(frozen=True, slots=True, eq=False)
class OnlineLoop:
    """A while loop of at most so many steps that stores carries online, with the table of its backward pass."""

    body: Body
    condition: Opened
    most: int
    splits: Splits

    def plain(self, inputs: Inputs) -> tuple[Leaves, Any]:
        """Run the loop where nothing is differentiated; also tell whether it had to stop."""
        carry = self._run(inputs, lambda state: state, (jnp.int32(0), inputs.init))[1]
        exceeded = self.holds(inputs, carry)
        return _spoil(carry, exceeded), exceeded

    def store(self, inputs: Inputs) -> tuple[Running, Any]:
        """Run forward and store carries."""
        slots = self.splits.slots
        stack = empty_stack(self.body, slots)
        if slots == 1:
            stack, _ = stack.push(inputs.init, jnp.int32(0))
        start = jnp.int32(0), inputs.init, stack, jnp.full(slots, -1, jnp.int32)
        before = (lambda state: record(Running(*state))) if slots > 1 else lambda state: state
        done = Running(*self._run(inputs, before, start))
        return done, self.holds(inputs, done.carry)

    def holds(self, inputs: Inputs, carry: Leaves) -> Any:
        """Evaluate the condition."""
        return self.condition(inputs.condition, carry)[0]

    def _run(self, inputs: Inputs, before: Callable[[Any], Any], start: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run from (step, carry, ...) on, with something done before each step."""

        def goes_on(state: tuple[Any, ...]) -> Any:
            return (state[0] < self.most) & self.holds(inputs, state[1])

        def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
            number, carry, *rest = before(state)
            return number + 1, self.body(inputs.closed, carry, [])[0], *rest

        return jax.lax.while_loop(goes_on, step, start)

    def forward_rule(self, inputs: Any) -> tuple[tuple[Leaves, Any], tuple[Any, ...]]:
        """The first half of the derivative: run, and keep what the second half needs."""
        values, moves = read_primals(inputs)
        done, exceeded = self.store(values)
        # Truth values are told as structure: a None is no leaf.
        told = [() if m else None for m in moves.closed]
        return (_spoil(done.carry, exceeded), exceeded), (told, values.closed, done.step, done.stack, exceeded)

    def backward_rule(self, saved: tuple[Any, ...], cotangents: tuple[Any, Any]) -> tuple[Inputs]:
        """The second half of the derivative: gradients of what is differentiated, None for the rest."""
        told, closed, end, stack, exceeded = saved
        moves = [m is not None for m in told]
        given = only_floats(cotangents[0], self.body.carry)
        taped = make_taped(self.body, closed, moves, ())
        sums = no_gradients(taped, closed, _spoil(given, exceeded), 0)
        sweep = Sweep(Forward(self.body, closed, [], None), taped, self.splits, [], taped.compute_once(closed))
        found = sweep.reverse(Backward(end, stack, [], sums))
        unmoved = [None for c in self.condition.constants if c is None]
        return (Inputs(spread(found.closed, moves), unmoved, spread(found.carry, self.body.carry.floats)),)


def _spoil(leaves: Leaves, exceeded: Any) -> Leaves:
    """Return leaves that cannot be mistaken for a result where the loop had to stop; else as they are."""
    return [jnp.where(exceeded, _no_result(x), x) for x in leaves]


def _no_result(x: Any) -> Any:
    dtype = jax.typeof(x).dtype
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(jnp.nan, dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(jnp.iinfo(dtype).min or jnp.iinfo(dtype).max, dtype)
    return x
