"""The compiled loops of a table-driven schedule: advance, store, tape, reverse.

In: a ``Taped`` step, the table of splits, the inputs. Out: ``Sweep``, whose methods are the loops; its ``reverse`` is
the whole backward pass as one loop, whatever the length.

The backward pass always looks at one part of the loop: from the last stored carry to ``end``, the first step that is
reversed already. It restores that carry, walks to the last run of the part, storing carries where the table splits it,
runs it for its residuals, reverses it, and goes on with what is left. Inputs are read and gradients of xs written by
index, so nothing is copied for a part.

Source: Griewank and Walther 2000 (see ``solve.binomial``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from remat_plan import _compat
from remat_plan.loops.body import Body, Leaves
from remat_plan.loops.taped import Taped
from remat_plan.solve.binomial import Splits

Index = Any
"""An int32 scalar."""


def rows(stacked: Leaves, index: Index) -> Leaves:
    """Read one row of each array."""
    return [jax.lax.dynamic_index_in_dim(a, index, keepdims=False) for a in stacked]


def write(stacked: Leaves, values: Leaves, index: Index) -> Leaves:
    """Write one row of each array (in place where they are carried by a loop)."""
    return [
        jax.lax.dynamic_update_index_in_dim(a, v.astype(a.dtype), index, 0)
        for a, v in zip(stacked, values, strict=True)
    ]


class Stack(NamedTuple):
    """Stored carries: how many; before which step each was stored, ascending; which row of ``slots`` holds each.

    ``slots`` are the leaves of the carry, each with a leading axis of slots.
    """

    count: Index
    steps: Any
    where: Any
    slots: Leaves

    def push(self, carry: Leaves, step: Index) -> tuple[Stack, Leaves]:
        """Store a carry on top; return it too, to go on with.

        It is stored before it can be overwritten: saying so spares XLA a copy of it.
        """
        slots = write(self.slots, carry, self.where[self.count])
        slots, carry = _compat.in_order(slots, carry)
        return Stack(self.count + 1, self.steps.at[self.count].set(step), self.where, slots), carry

    def top(self) -> tuple[Leaves, Index]:
        """Return the top carry and its step; the stack must not be empty."""
        last = self.count - 1
        return rows(self.slots, self.where[last]), self.steps[last]


def empty_stack(body: Body, slots: int) -> Stack:
    """Return room for ``slots`` carries."""
    numbers = jnp.zeros(slots, jnp.int32)
    stored = [_compat.zeros(s, (slots,)) for s in body.carry.structs]
    return Stack(jnp.int32(0), numbers, jnp.arange(slots, dtype=jnp.int32), stored)


class Gradients(NamedTuple):
    """What the backward pass adds up: cotangents of the carry, of what is closed over, and of the rows of xs."""

    carry: Leaves
    closed: Leaves
    xs: Leaves


class Backward(NamedTuple):
    """Where the backward pass is: steps before ``end`` are left; ``tape`` is room for the residuals of a run."""

    end: Index
    stack: Stack
    tape: Leaves
    gradients: Gradients


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """A loop's steps, run forward. ``length`` is the trip count of loops that run from the last row of xs to the first;
    else None."""

    body: Body
    closed: Leaves
    xs: Leaves
    length: int | None

    def row(self, step: Index) -> Index:
        """The row of xs and ys that belongs to a step."""
        return step if self.length is None else self.length - 1 - step

    def x(self, step: Index) -> Leaves:
        """The input of a step."""
        return rows(self.xs, self.row(step))

    def run(
        self, carry: Leaves, start: Index, end: Index, ys: Any = None, taped: Taped | None = None, tape: Any = None
    ) -> tuple[Leaves, Any, Any]:
        """Run steps ``start .. end-1``; write their outputs and residuals, where there is room for these."""

        def one(step: Index, state: tuple[Leaves, Any, Any]) -> tuple[Leaves, Any, Any]:
            carry, ys, tape = state
            if taped is None:
                carry, y = self.body(self.closed, carry, self.x(step))
                return carry, ys and write(ys, y, self.row(step)), tape
            carry, y, kept = taped.forward(self.closed, carry, self.x(step))
            return carry, ys and write(ys, y, self.row(step)), write(tape, kept, step - start)

        return jax.lax.fori_loop(start, end, one, (carry, ys, tape))


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """A loop's steps, run backward under a table of splits.

    ``ys_ct`` are cotangents of the stacked floating-point outputs, ``once`` residuals that are the same at every step.
    """

    steps: Forward
    taped: Taped
    splits: Splits
    ys_ct: Leaves
    once: Leaves

    def left(self, length: Index, free: Index) -> Index:
        """``Splits.left`` on traced numbers."""
        table, tape = jnp.asarray(self.splits.table), np.int32(self.splits.tape)
        row = table[free]
        r = jnp.minimum(jnp.sum(row < length, dtype=jnp.int32), np.int32(table.shape[1] - 1))
        split = jnp.minimum(row[r - 1], length - table[free - 1, r - 1])
        return jnp.where(free == 1, length - tape, split)

    def reverse(self, state: Backward) -> Gradients:
        """Reverse all steps that are left."""
        return jax.lax.while_loop(lambda state: state.end > 0, self._reverse_part, state).gradients

    def _reverse_part(self, state: Backward) -> Backward:
        end, (carry, start) = state.end, state.stack.top()

        def is_long(walk: tuple[Stack, Leaves, Index]) -> Any:
            return end - walk[2] > self.splits.tape

        def split(walk: tuple[Stack, Leaves, Index]) -> tuple[Stack, Leaves, Index]:
            stack, carry, start = walk
            middle = start + self.left(end - start, self.splits.slots - stack.count)
            stack, carry = stack.push(carry, start)
            return stack, self.steps.run(carry, start, middle)[0], middle

        long = end - start > self.splits.tape
        # A part that is split keeps its first carry in its slot, for its left part; a run needs it no more.
        stack = state.stack._replace(count=state.stack.count - 1)
        middle = jnp.where(long, start + self.left(end - start, self.splits.slots - stack.count), start)
        walk = stack._replace(count=stack.count + long), self.steps.run(carry, start, middle)[0], middle
        stack, carry, start = jax.lax.while_loop(is_long, split, walk)
        if self.splits.tape == 1:  # its residuals need not go through memory
            _, _, kept = self.taped.forward(self.steps.closed, carry, self.steps.x(start))
            return Backward(start, stack, state.tape, self._pull_back(kept, start, state.gradients))
        tape = self.steps.run(carry, start, end, None, self.taped, state.tape)[2]
        return Backward(start, stack, tape, self.reverse_run(tape, start, end, state.gradients))

    def reverse_run(self, tape: Leaves, start: Index, end: Index, sums: Gradients) -> Gradients:
        """Reverse steps ``start .. end-1``, whose residuals are on the tape."""

        def one(done: Index, sums: Gradients) -> Gradients:
            step = end - 1 - done
            return self._pull_back(rows(tape, step - start), step, sums)

        return jax.lax.fori_loop(np.int32(0), end - start, one, sums)

    def _pull_back(self, kept: Leaves, step: Index, sums: Gradients) -> Gradients:
        row = self.steps.row(step)
        closed, carry, x = self.taped.backward(
            *(self.steps.closed, self.once, self.steps.x(step), kept), *(sums.carry, rows(self.ys_ct, row))
        )
        added = [total + more for total, more in zip(sums.closed, closed, strict=True)]
        return Gradients(carry, added, write(sums.xs, x, row))


def no_gradients(taped: Taped, closed: Leaves, carry_ct: Leaves, length: int) -> Gradients:
    """Return what the backward pass starts from: the cotangents of the last carry, and zeros."""
    closed_moves, _, x_moves = taped.moves
    return Gradients(
        carry_ct,
        [_compat.zeros(jax.typeof(c)) for c, m in zip(closed, closed_moves, strict=True) if m],
        [_compat.zeros(s, (length,)) for s, m in zip(taped.body.x.structs, x_moves, strict=True) if m],
    )
