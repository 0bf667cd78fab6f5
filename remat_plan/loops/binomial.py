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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from remat_plan import _compat
from remat_plan.loops.body import Body, Leaves, Prepared
from remat_plan.loops.nested import log_factors, nested_scan
from remat_plan.loops.sweep import Backward, Forward, Stack, Sweep, empty_stack, empty_tape, no_gradients, write
from remat_plan.loops.taped import Taped, make_taped
from remat_plan.solve.binomial import Splits, make_splits, useful_slots


class Inputs(NamedTuple):
    """What the loop depends on: values the body closes over, the first carry, the stacked inputs."""

    closed: Leaves
    init: Leaves
    xs: Leaves


class Kept(NamedTuple):
    """What the forward pass leaves for the backward pass."""

    stack: Stack
    tape: Leaves


class Cotangents(NamedTuple):
    """Cotangents of the floating-point leaves of the last carry and of the stacked outputs."""

    carry: Leaves
    ys: Leaves


@dataclass(frozen=True, slots=True, eq=False)
class BinomialScan:
    """A scan under a table.

    Attributes:
        body: one step.
        length: the trip count, at least 1.
        splits: the table; its slots and tape.
        backwards: run from the last row of xs to the first.
    """

    body: Body
    length: int
    splits: Splits
    backwards: bool

    def plain(self, inputs: Inputs) -> tuple[Leaves, Leaves]:
        """Run the loop where nothing is differentiated."""
        step = partial(_scanned, self.body, inputs.closed)
        return jax.lax.scan(step, inputs.init, inputs.xs, self.length, reverse=self.backwards)

    def nested(self, inputs: Inputs) -> tuple[Leaves, Leaves]:
        """Run the loop under nested ``jax.checkpoint``, for higher derivatives."""
        step = partial(_scanned, self.body, inputs.closed)
        factors = log_factors(self.length)
        return nested_scan(step, inputs.init, inputs.xs, self.length, factors, reverse=self.backwards)

    def steps(self, inputs: Inputs) -> Forward:
        """The loop's steps."""
        return Forward(self.body, inputs.closed, inputs.xs, self.length if self.backwards else None)

    def taped(self, inputs: Inputs, moves: Inputs) -> Taped:
        """One step with its pullback."""
        return make_taped(self.body, inputs.closed, moves.closed, moves.xs)

    def store(self, moves: Inputs, inputs: Inputs) -> tuple[Leaves, Leaves, Kept]:
        """Run forward, storing carries and the residuals of the last run.

        Args:
            moves: per leaf, whether it is differentiated.
            inputs: the loop's inputs.

        Returns:
            The last carry, the stacked outputs, and what is kept.
        """
        stored, last = self.splits.descend(0, self.length, self.splits.slots)
        borders = jnp.asarray([*stored, last], jnp.int32)
        steps, taped = self.steps(inputs), self.taped(inputs, moves)
        ys = [_compat.zeros(s, (self.length,)) for s in self.body.y.structs]
        stack = empty_stack(self.body, self.splits.slots)
        one = partial(_store_one, steps, borders)
        stack, carry, ys = jax.lax.fori_loop(0, len(stored), one, (stack, inputs.init, ys))
        tape = empty_tape(taped, min(self.splits.tape, self.length))
        final = partial(_tape_last, steps, taped, np.int32(last))
        carry, ys, tape = jax.lax.fori_loop(np.int32(last), np.int32(self.length), final, (carry, ys, tape))
        return carry, ys, Kept(stack, tape)

    def reverse(self, moves: Inputs, inputs: Inputs, kept: Kept, cotangents: Cotangents) -> Inputs:
        """Run backward and return gradients of the leaves that are differentiated."""
        taped = self.taped(inputs, moves)
        sweep = Sweep(self.steps(inputs), taped, self.splits, cotangents.ys, taped.compute_once(inputs.closed))
        last = self.splits.descend(0, self.length, self.splits.slots)[1]
        sums = no_gradients(taped, inputs.closed, cotangents.carry, self.length)
        sums = sweep.reverse_run(kept.tape, np.int32(last), np.int32(self.length), sums)
        found = sweep.reverse(Backward(jnp.int32(last), kept.stack, kept.tape if self.splits.tape > 1 else [], sums))
        return Inputs(found.closed, found.carry, found.xs)

    def nested_reverse(self, moves: Inputs, inputs: Inputs, cotangents: Cotangents) -> Inputs:
        """Compute what ``reverse`` does by nested ``jax.checkpoint``, which can be differentiated."""
        flat, tree = jax.tree.flatten(inputs)
        mask = jax.tree.leaves(moves)
        along = partial(self._floats_of, tree, flat, mask)
        gradients = iter(jax.vjp(along, [v for v, m in zip(flat, mask, strict=True) if m])[1](cotangents)[0])
        return Inputs(*([next(gradients) for m in part if m] for part in moves))

    def _floats_of(self, tree: Any, flat: Leaves, mask: Sequence[bool], values: Leaves) -> Cotangents:
        given = iter(values)
        full = [next(given) if m else v for v, m in zip(flat, mask, strict=True)]
        carry, ys = self.nested(jax.tree.unflatten(tree, full))
        return Cotangents(_only(carry, self.body.carry.floats), _only(ys, self.body.y.floats))

    # The rules ---------------------------------------------------------------------------------------------------

    def forward_rule(self, inputs: Any) -> tuple[tuple[Leaves, Leaves], tuple[Any, Inputs, Kept]]:
        """The first half of the derivative: run, and keep what the second half needs."""
        values = jax.tree.map(lambda x: x.value, inputs, is_leaf=_is_primal)
        moves = Inputs(
            *([p.perturbed and _compat.is_float(jax.typeof(p.value)) for p in part] for part in inputs)
        )._replace(init=list(self.body.carry.floats))
        store = jax.custom_jvp(partial(self.store, moves))
        store.defjvp(partial(self._store_jvp, moves))
        carry, ys, kept = store(values)
        # Truth values are told as structure: a None is no leaf.
        return (carry, ys), (jax.tree.map(lambda m: () if m else None, moves), values, kept)

    def backward_rule(self, saved: tuple[Any, Inputs, Kept], cotangents: tuple[Any, Any]) -> tuple[Inputs]:
        """The second half of the derivative: gradients of what is differentiated, None for the rest."""
        told, inputs, kept = saved
        moves = Inputs(*([m is not None for m in part] for part in told))
        given = Cotangents(
            _only([_instantiate(c) for c in cotangents[0]], self.body.carry.floats),
            _only([_instantiate(c) for c in cotangents[1]], self.body.y.floats),
        )
        reverse = jax.custom_jvp(partial(self.reverse, moves))
        reverse.defjvp(partial(self._reverse_jvp, moves))
        found = reverse(inputs, kept, given)
        return (Inputs(*(_spread(g, m) for g, m in zip(found, moves, strict=True))),)

    def _store_jvp(self, moves: Inputs, primals: tuple[Inputs], tangents: tuple[Inputs]) -> tuple[Any, Any]:
        carry, ys, kept = self.store(moves, *primals)
        moved = jax.jvp(self.nested, primals, tangents)[1]
        return (carry, ys, kept), (*moved, jax.tree.map(_compat.zero_tangent, kept))

    def _reverse_jvp(self, moves: Inputs, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        # What is kept depends on the inputs, whose tangents are there; its own tangents would count them twice.
        chosen = (primals[0], primals[2]), (tangents[0], tangents[2])
        return jax.jvp(partial(self.nested_reverse, moves), *chosen)


def binomial_scan(loop: Prepared, slots: int, tape: int, reverse: bool) -> tuple[Leaves, Leaves]:
    """Run a loop with binomial checkpointing.

    Args:
        loop: the loop, of at least one step.
        slots: how many carries may be stored, the first included.
        tape: how many steps in a row keep their residuals.
        reverse: run from the last row of xs to the first.

    Returns:
        Flat: the last carry, the stacked outputs.

    Raises:
        TypeError: under forward-mode differentiation.
    """
    splits = make_splits(loop.length, useful_slots(loop.length, slots, tape), tape)
    scan = BinomialScan(loop.body, loop.length, splits, reverse)
    run = jax.custom_vjp(scan.plain)
    run.defvjp(scan.forward_rule, scan.backward_rule, symbolic_zeros=True)
    return run(Inputs(loop.closed, loop.init, loop.xs))


def _scanned(body: Body, closed: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
    return body(closed, carry, x if x is not None else [])


def _store_one(steps: Forward, borders: Any, number: Any, state: tuple[Stack, Leaves, Leaves]) -> Any:
    stack, carry, ys = state
    stack, carry = stack.push(carry, borders[number])
    carry, ys = steps.advance_with_outputs(carry, ys, borders[number], borders[number + 1])
    return stack, carry, ys


def _tape_last(steps: Forward, taped: Taped, start: Any, step: Any, state: tuple[Leaves, Leaves, Leaves]) -> Any:
    carry, y, kept = taped.forward(steps.closed, state[0], steps.x(step))
    return carry, write(state[1], y, steps.row(step)), write(state[2], kept, step - start)


def _is_primal(x: Any) -> bool:
    return hasattr(x, "perturbed")


def _only(values: Sequence[Any], mask: Sequence[bool]) -> Leaves:
    return [v for v, m in zip(values, mask, strict=True) if m]


def _spread(values: Leaves, mask: Sequence[bool]) -> list[Any]:
    given = iter(values)
    return [next(given) if m else None for m in mask]


def _instantiate(cotangent: Any) -> Any:
    if not isinstance(cotangent, SymbolicZero):
        return cotangent
    return _compat.zeros(cotangent.aval)
