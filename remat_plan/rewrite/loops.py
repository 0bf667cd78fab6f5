"""A scan in groups, with its steps under schedules of their own.

In: ``Loop``, trip counts of the scans around it, functions that run one step each. Out: ``PlannedLoop``, which computes
what the scan computes: operands to outputs.

    groups (k1, k2), stretches ((n1, a), (n2, b))    k1 turns, each a segment of k2 turns, each a segment of two scans:
                                                     n1 steps run by ``a``, then n2 run by ``b``

Rows are grouped by reshaping, which copies nothing; stretches copy their rows. Source: Chen et al. 2016, arXiv
1604.06174, sections 4.1 and 4.4.

Limits: trip counts that do not divide the length cannot be grouped; the planner does not propose them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from remat_plan.graph.loops import Loop

Step = Callable[[Sequence[Any]], list[Any]]


class PlannedLoop:
    """A scan under a plan; holds no values."""

    def __init__(self, loop: Loop, groups: tuple[int, ...], stretches: tuple[tuple[int, Step], ...]):
        self.loop, self.groups, self.stretches = loop, groups, stretches

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Run the scan.

        Args:
            args: constants, first carry, inputs with one row a step, as the equation has them.

        Returns:
            The last carry and the stacked outputs.
        """
        first, rows_start = self.loop.n_consts, self.loop.n_consts + self.loop.n_carry
        carry = [jax.numpy.asarray(x) for x in args[first:rows_start]]
        return self.level(0, self.loop.length, list(args[:first]), carry, list(args[rows_start:]))

    def level(self, depth: int, length: int, consts: list[Any], carry: list[Any], rows: list[Any]) -> list[Any]:
        """Run the steps of one turn of level ``depth - 1``: scan over its groups, or over turns of steps."""
        if depth == len(self.groups):
            return self.innermost(consts, carry, rows)
        groups = self.groups[depth]
        size = length // groups
        inner = jax.checkpoint(_Level(self, depth + 1, size), prevent_cse=False)
        n = len(carry)

        def group(state: list[Any], part: list[Any]) -> tuple[list[Any], list[Any]]:
            outputs = inner(consts, state, part)
            return outputs[:n], outputs[n:]

        parts = [x.reshape(groups, size, *x.shape[1:]) for x in rows]
        last, stacked = jax.lax.scan(group, carry, parts, groups, reverse=self.loop.reverse)
        return [*last, *(y.reshape(length, *y.shape[2:]) for y in stacked)]

    def innermost(self, consts: list[Any], carry: list[Any], rows: list[Any]) -> list[Any]:
        """Run the stretches, each as one scan over its rows."""
        if len(self.stretches) == 1:
            ((count, step),) = self.stretches
            carry, stacked = self.scan(step, count, consts, carry, rows)
            return [*carry, *stacked]
        parts = []
        start = 0
        for count, step in self.stretches:
            parts.append((count, step, [jax.lax.slice_in_dim(x, start, start + count) for x in rows]))
            start += count
        made = []
        for count, step, part in reversed(parts) if self.loop.reverse else parts:
            carry, stacked = self.scan(step, count, consts, carry, part)
            made.append(stacked)
        if self.loop.reverse:
            made.reverse()
        return [*carry, *(jax.numpy.concatenate(pieces) for pieces in zip(*made, strict=True))]

    def scan(
        self, step: Step, count: int, consts: list[Any], carry: list[Any], rows: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Scan ``count`` steps; return the last carry and the stacked outputs."""
        n = len(carry)

        def turn(state: list[Any], part: list[Any]) -> tuple[list[Any], list[Any]]:
            outputs = step((*consts, *state, *part))
            return outputs[:n], outputs[n:]

        return jax.lax.scan(turn, carry, rows, count, reverse=self.loop.reverse)


class _Level:
    """One level of a loop as a function of constants, carry and rows."""

    def __init__(self, planned: PlannedLoop, depth: int, length: int):
        self.planned, self.depth, self.length = planned, depth, length
        self.__name__ = f"group_of_{length}"

    def __call__(self, consts: list[Any], carry: list[Any], rows: list[Any]) -> list[Any]:
        return self.planned.level(self.depth, self.length, consts, carry, rows)
