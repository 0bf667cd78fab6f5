"""The equations of a segment run slice by slice, as a function.

In: ``Graph``, ``Apart``, a number of slices. Out: a function of what the segment reads, with a ``lax.scan`` over
slices, and the parts that it is made of (``graph.slice_loss`` makes another one of them).

Where the slices do not divide the axis the last one is shorter and runs behind the loop. Sums are carried from slice to
slice in 32 bits at least, also the gradients of values that every slice reads: these enter the loop in that type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from remat_plan import _compat
from remat_plan.graph.apart import Apart
from remat_plan.graph.flatten import run_equations
from remat_plan.graph.needs import SLICES
from remat_plan.graph.records import Graph
from remat_plan.graph.slice_equation import Slice, cut, run_slice

Made = Callable[[dict[int, Any]], dict[int, Any]]
"""What is made of values, by their numbers."""


class Slicer:
    """Runs the equations of a segment, those that are apart in slices."""

    def __init__(self, graph: Graph, apart: Apart, value: int, slices: int):
        self.graph, self.apart, self.value = graph, apart, value
        self.part = apart.part(slices)
        self.count, self.rest = divmod(apart.units, self.part)

    def run(self, reads: Sequence[int], leaves: Sequence[int]) -> Callable[..., list[Any]]:
        """The segment as a function of what it reads."""

        def run(*args: Any) -> list[Any]:
            env = dict(zip(reads, args, strict=True))
            self.run_whole(self.apart.before, env)
            self.loop(env)
            self.run_whole(self.apart.after, env)
            return [env[v] for v in leaves]

        return run

    def run_whole(self, ops: Sequence[int], env: dict[int, Any]) -> None:
        """Run operations on whole values."""
        run_equations([self.graph.ops[index] for index in ops], self.graph.literals, env)

    def loop(self, env: dict[int, Any], sums: Sequence[int] | None = None, behind: Made | None = None) -> None:
        """Run the slices; add what they make to the values.

        ``sums``: those to add up, by default all; ``behind``: of a loss, what is made of each slice beside its own
        values. Its gradients are added up with it; others are by JAX, in the type of what every slice reads.
        """
        apart, values = self.apart, self.graph.values
        sums = apart.sums if sums is None else sums
        whole = [env[v] if behind else self.widened(v, env[v]) for v in apart.whole]
        rows = [env[v] for v, _ in apart.rows]

        def run(piece: Slice, rows: Sequence[Any]) -> dict[int, Any]:
            made = self.piece(piece, whole, rows)
            return made | behind(made) if behind else made

        def step(totals: list[Any], xs: tuple[Any, list[Any]]) -> tuple[list[Any], list[Any]]:
            made = run(self.slice(xs[0]), xs[1])
            return self.added(sums, totals, made), [made[v] for v, _ in apart.stacked]

        zeros = [_compat.zeros(_compat.wide(values[v].aval)) for v in sums]
        equal = Slice(self.count * self.part, apart.units, 0)
        stacked_rows = [_rows(cut(x, d, equal), self.count, d) for x, (_, d) in zip(rows, apart.rows, strict=True)]
        with jax.named_scope(SLICES):
            totals, stacked = lax.scan(step, zeros, (jnp.arange(self.count), stacked_rows))
        results = [_unrows(y, d) for y, (_, d) in zip(stacked, apart.stacked, strict=True)]
        if self.rest:
            made = run(self.last, [cut(x, d, self.last) for x, (_, d) in zip(rows, apart.rows, strict=True)])
            totals = self.added(sums, totals, made)
            joined = zip(results, apart.stacked, strict=True)
            results = [jnp.concatenate([y, made[v]], axis=d) for y, (v, d) in joined]
        env.update((v, s.astype(values[v].aval.dtype)) for v, s in zip(sums, totals, strict=True))
        env.update((v, y) for (v, _), y in zip(apart.stacked, results, strict=True))

    def slice(self, number: Any) -> Slice:
        """One of the slices that are equal."""
        return Slice(self.part, self.apart.units, number * self.part)

    @property
    def last(self) -> Slice:
        """The slice behind the loop."""
        return Slice(self.rest, self.apart.units, self.count * self.part)

    def widened(self, v: int, x: Any) -> Any:
        """A value that every slice reads, in the type that its gradient is added up in."""
        return x.astype(_compat.wide(self.graph.values[v].aval).dtype) if self.graph.moving[v] else x

    def added(self, sums: Sequence[int], totals: Sequence[Any], made: dict[int, Any]) -> list[Any]:
        """The totals of sums with a slice's parts of them."""
        return [total + made[v].astype(total.dtype) for v, total in zip(sums, totals, strict=True)]

    def piece(self, piece: Slice, whole: Sequence[Any], rows: Sequence[Any]) -> dict[int, Any]:
        """Run one slice; return what it makes."""
        graph, apart = self.graph, self.apart
        read = {v: x.astype(graph.values[v].aval.dtype) for v, x in zip(apart.whole, whole, strict=True)}
        sliced = dict(zip(apart.rows, rows, strict=True))
        made: dict[int, Any] = {}
        for index, axis in apart.axes:
            op = graph.ops[index]
            args = [
                graph.literals[-1 - v] if v < 0 else made[v] if v in made else read[v] if d is None else sliced[v, d]
                for v, d in zip(op.operands, axis.operands, strict=True)
            ]
            made.update(zip(op.outputs, run_slice(op.eqn, args, axis, piece), strict=True))
        return made


def _rows(x: Any, count: int, dimension: int) -> Any:
    """The slices of an array, stacked along a first dimension."""
    x = jnp.moveaxis(x, dimension, 0)
    x = x.reshape(count, x.shape[0] // count, *x.shape[1:])
    return jnp.moveaxis(x, 1, dimension + 1)


def _unrows(x: Any, dimension: int) -> Any:
    """Stacked slices side by side."""
    x = jnp.moveaxis(x, dimension + 1, 1)
    return jnp.moveaxis(x.reshape(-1, *x.shape[2:]), 0, dimension)
