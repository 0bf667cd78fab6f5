"""A scan with binomial checkpointing: one compiled loop over a schedule, with a derivative of its own.

In: a ``Prepared`` loop, the number of slots and the tape. Out: the last carry and the stacked outputs, flat.

The forward pass runs each step once; on its way it stores the carries that the schedule stores first, and keeps the
residuals of its last run of steps, so the backward pass starts without recomputing anything. In all the body is
evaluated ``advances(length, slots, tape) + length`` times, the optimum of Griewank and Walther 2000 (see
``solve.binomial``), and memory is that of ``slots`` carries, the residuals of ``tape`` steps, and a constant number of
working copies. Code size does not depend on the length. Gradients are computed for what is differentiated only; those
of xs are written in place into one buffer.

Derivatives of these gradients, forward or reverse, are those of the same loop under nested ``jax.checkpoint`` (the
"log" schedule), since loops over a table cannot be differentiated in reverse. The loop itself has no forward-mode
derivative.

Limits: the "log" memory and time of higher derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from remat_plan import _compat
from remat_plan.loops.body import Body, Leaves, Prepared, only_floats, read_primals, spread
from remat_plan.loops.nested import log_factors, nested_scan
from remat_plan.loops.sweep import Backward, Forward, Stack, Sweep, empty_stack, no_gradients
from remat_plan.loops.taped import Taped, make_taped
from remat_plan.solve.binomial import Splits, make_splits, useful_slots


class Inputs(NamedTuple):
    """What the loop depends on: values the body closes over, the first carry, the stacked inputs."""

    closed: Leaves
    init: Leaves
    xs: Leaves


Kept = tuple[Stack, Leaves]
"""What the forward pass leaves for the backward pass: carries, and the residuals of the last run."""

Pair = tuple[Leaves, Leaves]
"""The last carry and the stacked outputs, or cotangents of those of their leaves that are of floating point."""


@dataclass(frozen=True, slots=True, eq=False)
class BinomialScan:
    """A scan of at least one step under a table; ``backwards``: from the last row of xs to the first."""

    body: Body
    length: int
    splits: Splits
    backwards: bool

    def plain(self, inputs: Inputs) -> Pair:
        """Run the loop where nothing is differentiated."""
        return jax.lax.scan(self.step(inputs), inputs.init, inputs.xs, self.length, reverse=self.backwards)

    def nested(self, inputs: Inputs) -> Pair:
        """Run the loop under nested ``jax.checkpoint``, for higher derivatives."""
        factors = log_factors(self.length)
        return nested_scan(self.step(inputs), inputs.init, inputs.xs, self.length, factors, reverse=self.backwards)

    def step(self, inputs: Inputs) -> Callable[[Leaves, Any], tuple[Leaves, Leaves]]:
        """One step as ``jax.lax.scan`` takes it."""
        return lambda carry, x: self.body(inputs.closed, carry, x if x is not None else [])

    def steps(self, inputs: Inputs) -> Forward:
        """The loop's steps."""
        return Forward(self.body, inputs.closed, inputs.xs, self.length if self.backwards else None)

    def taped(self, inputs: Inputs, moves: Inputs) -> Taped:
        """One step with its pullback."""
        return make_taped(self.body, inputs.closed, moves.closed, moves.xs)

    def floats(self, pair: tuple[Any, Any]) -> Pair:
        """The leaves of floating point of a pair."""
        return only_floats(pair[0], self.body.carry), only_floats(pair[1], self.body.y)

    def store(self, moves: Inputs, inputs: Inputs) -> tuple[Leaves, Leaves, Kept]:
        """Run forward; return the last carry, the outputs, and the carries and residuals of the last run for later."""
        stored, last = self.splits.descend(0, self.length, self.splits.slots)
        borders = jnp.asarray([*stored, last], jnp.int32)
        steps, taped = self.steps(inputs), self.taped(inputs, moves)
        ys = [_compat.zeros(s, (self.length,)) for s in self.body.y.structs]

        def one(number: Any, state: tuple[Stack, Leaves, Leaves]) -> tuple[Stack, Leaves, Leaves]:
            stack, carry, ys = state
            stack, carry = stack.push(carry, borders[number])
            return stack, *steps.run(carry, borders[number], borders[number + 1], ys)[:2]

        start = empty_stack(self.body, self.splits.slots), inputs.init, ys
        stack, carry, ys = jax.lax.fori_loop(0, len(stored), one, start)
        tape = [_compat.zeros(s, (min(self.splits.tape, self.length),)) for s in taped.tape]
        carry, ys, tape = steps.run(carry, np.int32(last), np.int32(self.length), ys, taped, tape)
        return carry, ys, (stack, tape)

    def reverse(self, moves: Inputs, inputs: Inputs, kept: Kept, cotangents: Pair) -> Inputs:
        """Run backward and return gradients of the leaves that are differentiated."""
        (stack, tape), (carry_ct, ys_ct) = kept, cotangents
        taped = self.taped(inputs, moves)
        sweep = Sweep(self.steps(inputs), taped, self.splits, ys_ct, taped.compute_once(inputs.closed))
        last = self.splits.descend(0, self.length, self.splits.slots)[1]
        sums = no_gradients(taped, inputs.closed, carry_ct, self.length)
        sums = sweep.reverse_run(tape, np.int32(last), np.int32(self.length), sums)
        found = sweep.reverse(Backward(jnp.int32(last), stack, tape if self.splits.tape > 1 else [], sums))
        return Inputs(found.closed, found.carry, found.xs)

    def nested_reverse(self, moves: Inputs, inputs: Inputs, cotangents: Pair) -> Inputs:
        """Compute what ``reverse`` does by nested ``jax.checkpoint``, which can be differentiated."""
        flat, tree = jax.tree.flatten(inputs)
        mask = jax.tree.leaves(moves)
        fixed, moving = _compat.partition_list(mask, flat)

        def along(values: Leaves) -> Pair:
            return self.floats(self.nested(jax.tree.unflatten(tree, _compat.merge_lists(mask, fixed, values))))

        gradients = iter(jax.vjp(along, moving)[1](cotangents)[0])
        return Inputs(*([next(gradients) for m in part if m] for part in moves))

    # The rules ---------------------------------------------------------------------------------------------------

    def forward_rule(self, inputs: Any) -> tuple[Pair, tuple[Any, Inputs, Kept]]:
        """The first half of the derivative: run, and keep what the second half needs."""
        values, moves = read_primals(inputs)
        moves = moves._replace(init=list(self.body.carry.floats))
        store = jax.custom_jvp(partial(self.store, moves))
        store.defjvp(partial(self._store_jvp, moves))
        carry, ys, kept = store(values)
        # Truth values are told as structure: a None is no leaf.
        return (carry, ys), (jax.tree.map(lambda m: () if m else None, moves), values, kept)

    def backward_rule(self, saved: tuple[Any, Inputs, Kept], cotangents: tuple[Any, Any]) -> tuple[Inputs]:
        """The second half of the derivative: gradients of what is differentiated, None for the rest."""
        told, inputs, kept = saved
        moves = Inputs(*([m is not None for m in part] for part in told))
        reverse = jax.custom_jvp(partial(self.reverse, moves))
        reverse.defjvp(partial(self._reverse_jvp, moves))
        found = reverse(inputs, kept, self.floats(cotangents))
        return (Inputs(*(spread(g, m) for g, m in zip(found, moves, strict=True))),)

    def _store_jvp(self, moves: Inputs, primals: tuple[Inputs], tangents: tuple[Inputs]) -> tuple[Any, Any]:
        carry, ys, kept = self.store(moves, *primals)
        moved = jax.jvp(self.nested, primals, tangents)[1]
        return (carry, ys, kept), (*moved, jax.tree.map(_compat.zero_tangent, kept))

    def _reverse_jvp(self, moves: Inputs, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        # What is kept depends on the inputs, whose tangents are there; its own tangents would count them twice.
        chosen = (primals[0], primals[2]), (tangents[0], tangents[2])
        return jax.jvp(partial(self.nested_reverse, moves), *chosen)


def binomial_scan(loop: Prepared, slots: int, tape: int, reverse: bool) -> tuple[Leaves, Leaves]:
    """Run a loop with binomial checkpointing, storing up to ``slots`` carries and the residuals of ``tape`` steps in a
    row; return the last carry and the stacked outputs, flat. ``TypeError`` under forward-mode differentiation."""
    splits = make_splits(loop.length, useful_slots(loop.length, slots, tape), tape)
    scan = BinomialScan(loop.body, loop.length, splits, reverse)
    run = jax.custom_vjp(scan.plain)
    run.defvjp(scan.forward_rule, scan.backward_rule, symbolic_zeros=True)
    return run(Inputs(loop.closed, loop.init, loop.xs))
