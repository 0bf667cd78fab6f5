"""A scan in groups, with its steps under schedules of their own.

In: ``Loop``, trip counts of the scans around it, functions that run one step each. Out: ``PlannedLoop``, which computes
what the scan computes: operands to outputs.

    groups (k1, k2)              ``loops.nested``: k1 segments of k2 segments of steps
    stretches (n1, a), (n2, b)   two scans, one after the other: n1 steps run by ``a``, then n2 run by ``b``

Stretches copy their rows; groups do not. Source: Chen et al. 2016, arXiv 1604.06174, sections 4.1 and 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.loops import Loop
from remat_plan.loops.nested import nested_scan
from remat_plan.rewrite.order import start_late

Step = Callable[[Sequence[Any]], list[Any]]


class PlannedLoop:
    """A scan under a plan; holds no values.

    Args:
        loop: the scan.
        groups: how many groups there are at each level, the outermost first.
        stretches: how many steps are run by what, in the order of the rows; only one where there are groups.
    """

    def __init__(self, loop: Loop, groups: tuple[int, ...], stretches: tuple[tuple[int, Step], ...]):
        self.loop, self.groups, self.stretches = loop, groups, stretches

    def __call__(self, args: Sequence[Any], *, late: bool = False) -> list[Any]:
        """Run the scan.

        Args:
            args: constants, first carry, inputs with one row a step, as the equation has them.
            late: whether the loop takes its memory when it runs (see ``rewrite.order``); stretches do anyway.

        Returns:
            The last carry and the stacked outputs.
        """
        loop = self.loop
        first_row = loop.n_consts + loop.n_carry
        consts, rows = args[: loop.n_consts], args[first_row:]
        carry = [jax.numpy.asarray(x) for x in args[loop.n_consts : first_row]]
        if self.groups:
            ((size, step),) = self.stretches
            body = _Body(step, consts, loop.n_carry)
            factors = (*self.groups, size)
            carry, stacked = nested_scan(body, carry, list(rows), loop.length, factors, reverse=loop.reverse)
            return [*carry, *stacked]
        several = len(self.stretches) > 1 and _compat.cond_forwards_residuals()
        made: list[list[Any]] = []
        order = list(self.parts(rows))
        for (count, step), part in reversed(order) if loop.reverse else order:
            run = partial(self.stretch, count, step)
            operands = [*consts, *carry, *part]
            outputs = start_late(run, operands) if late or several else run(*operands)
            carry = outputs[: loop.n_carry]
            made.append(outputs[loop.n_carry :])
        pieces = made[::-1] if loop.reverse else made
        return [*carry, *(ys[0] if len(ys) == 1 else jax.numpy.concatenate(ys) for ys in zip(*pieces, strict=True))]

    def stretch(self, count: int, step: Step, *args: Any) -> list[Any]:
        """Run steps that are run alike: constants, carry and their rows to the next carry and the stacked outputs."""
        loop = self.loop
        first_row = loop.n_consts + loop.n_carry
        body = _Body(step, args[: loop.n_consts], loop.n_carry)
        carry, rows = list(args[loop.n_consts : first_row]), list(args[first_row:])
        carry, stacked = jax.lax.scan(body, carry, rows, count, reverse=loop.reverse)
        return [*carry, *stacked]

    def parts(self, rows: Sequence[Any]) -> Iterator[tuple[tuple[int, Step], list[Any]]]:
        """Yield each stretch with its rows."""
        start = 0
        for count, step in self.stretches:
            whole = count == self.loop.length
            part = list(rows) if whole else [jax.lax.slice_in_dim(x, start, start + count) for x in rows]
            yield (count, step), part
            start += count


class _Body:
    """One step as ``jax.lax.scan`` wants it: (carry, row) to (next carry, outputs)."""

    def __init__(self, step: Step, consts: Sequence[Any], n_carry: int):
        self.step, self.consts, self.n_carry = step, consts, n_carry
        self.__name__ = "step"

    def __call__(self, carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        outputs = self.step((*self.consts, *carry, *row))
        return outputs[: self.n_carry], outputs[self.n_carry :]
