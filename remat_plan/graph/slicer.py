"""The equations of a segment run slice by slice, as a function.

In: ``Graph``, ``Apart``, a number of slices. Out: functions of what the segment reads: one with a ``lax.scan`` over
slices, and, where the segment ends in a scalar that is linear in its sums, one that makes its gradient meanwhile.

Where the slices do not divide the axis the last one is shorter and runs behind the loop. Sums are carried from slice to
slice in 32 bits at least, also the gradients of values that every slice reads: these enter the loop in that type.

With the gradient made in the forward pass nothing runs twice: the loss is a sum of what slices make, so that a slice's
part of the gradient is known together with its part of the loss, but for the factor that is the loss's cotangent. It is
the derivative rule of a ``jax.custom_jvp``, so that forward mode, second derivatives and any cotangent are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from remat_plan import _compat
from remat_plan.graph.apart import Apart
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.slice_equation import Slice, cut, run_slice

SCOPE = "remat_plan_slices"
"""The named scope that tells the loop over slices from other loops."""

_LINEAR = frozenset(
    {"neg", "convert_element_type", "reshape", "squeeze", "broadcast_in_dim", "reduce_sum", "copy", "name"}
)
_ADDITIONS = frozenset({"add", "sub", "add_any"})


class Slicer:
    """Runs the equations of a segment, those that are apart in slices."""

    def __init__(self, graph: Graph, apart: Apart, value: int, slices: int):
        self.graph, self.apart, self.value = graph, apart, value
        self.part = -(-apart.units // slices)
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

    def run_with_gradient(self, reads: Sequence[int], leaves: Sequence[int]) -> Callable[..., list[Any]] | None:
        """The segment as such a function, whose gradient is made in the forward pass.

        None unless all that leaves it is one scalar, linear in those sums of slices that depend on the value that it is
        split by. What else there is behind the loop (how many labels count, say) is made before it.
        """
        tail = None if len(leaves) != 1 or self.apart.stacked else self.linear_tail(leaves[0])
        if tail is None:
            return None
        moving = {v for i in tail for v in self.graph.ops[i].outputs}.union(self.apart.sums)
        read = [v for i in tail for v in self.graph.ops[i].reads if v not in moving or v not in self.depending]
        fixed = tuple(dict.fromkeys(read))
        before = self.makers(fixed + tuple([v for i in self.apart.before for v in self.graph.ops[i].outputs]), reads)

        def run(*args: Any) -> list[Any]:
            env = dict(zip(reads, args, strict=True))
            self.run_whole(before, env)
            return [self.loss(env, leaves[0], fixed, tail)]

        return run

    def linear_tail(self, loss: int) -> list[int] | None:
        """The operations behind the loop that depend on the value; None unless a scalar is linear in its sums."""
        graph, found = self.graph, []
        moving = self.depending.intersection(self.apart.sums)
        for index in self.apart.after:
            op = graph.ops[index]
            moves = [v in moving for v in op.operands]
            if any(moves):
                if not _is_linear(op, moves):
                    return None
                moving.update(op.outputs)
                found.append(index)
        return found if loss in moving and graph.values[loss].aval.shape == () else None

    @cached_property
    def depending(self) -> set[int]:
        """The values that are made of the one that the segment is split by."""
        found = {self.value}
        for index in sorted([i for i, _ in self.apart.axes] + list(self.apart.after)):
            if not found.isdisjoint(self.graph.ops[index].reads):
                found.update(self.graph.ops[index].outputs)
        return found

    def makers(self, values: Sequence[int], reads: Sequence[int]) -> list[int]:
        """The operations that make values of what the segment reads, in order."""
        stack, given, found = list(values), set(reads), set[int]()
        while stack:
            v = stack.pop()
            index = self.graph.values[v].producer
            if v not in given and index not in found:
                found.add(index)
                stack += self.graph.ops[index].reads
        return sorted(found)

    def run_whole(self, ops: Sequence[int], env: dict[int, Any]) -> None:
        """Run operations on whole values."""
        for index in ops:
            op = self.graph.ops[index]
            args = [self.graph.literals[-1 - v] if v < 0 else env[v] for v in op.operands]
            env.update(zip(op.outputs, _compat.bind(op.eqn, args), strict=True))

    def loop(self, env: dict[int, Any]) -> None:
        """Run the slices; add what they make to the values."""
        apart, values = self.apart, self.graph.values
        whole = [self.widened(v, env[v]) for v in apart.whole]
        rows = [env[v] for v, _ in apart.rows]

        def step(sums: list[Any], xs: tuple[Any, list[Any]]) -> tuple[list[Any], list[Any]]:
            made = self.piece(self.slice(xs[0]), whole, xs[1])
            return self.added(sums, made), [made[v] for v, _ in apart.stacked]

        zeros = [_zeros(values[v].aval) for v in apart.sums]
        xs = self.stacked_rows(rows)
        with jax.named_scope(SCOPE):
            sums, stacked = lax.scan(step, zeros, xs)
        results = [_unrows(y, d) for y, (_, d) in zip(stacked, apart.stacked, strict=True)]
        if self.rest:
            made = self.piece(self.last, whole, self.last_rows(rows))
            sums = self.added(sums, made)
            joined = zip(results, apart.stacked, strict=True)
            results = [jnp.concatenate([y, made[v]], axis=d) for y, (v, d) in joined]
        env.update((v, s.astype(values[v].aval.dtype)) for v, s in zip(apart.sums, sums, strict=True))
        env.update((v, y) for (v, _), y in zip(apart.stacked, results, strict=True))

    def loss(self, env: dict[int, Any], loss: int, fixed: Sequence[int], tail: Sequence[int]) -> Any:
        """The scalar that a segment ends in; its gradient is made with it.

        ``tail``: the operations behind the loop; ``fixed``: what they read and the loop does not make.
        """
        apart, values = self.apart, self.graph.values
        dtype = values[loss].aval.dtype
        names = [*apart.whole, *fixed]
        n, m = len(names), len(apart.whole)

        def part(piece: Slice, whole: Sequence[Any], rows: Sequence[Any]) -> Any:
            made = self.piece(piece, whole[:m], rows) | dict(zip(fixed, whole[m:], strict=True))
            self.run_whole(tail, made)
            return made[loss].astype(_wide(dtype))

        @jax.custom_jvp
        def total(*args: Any) -> Any:
            whole, rows = args[:n], args[n:]

            def step(carry: Any, xs: tuple[Any, list[Any]]) -> tuple[Any, None]:
                return carry + part(self.slice(xs[0]), whole, xs[1]), None

            made, _ = lax.scan(step, _zeros(values[loss].aval), self.stacked_rows(rows))
            if self.rest:
                made += part(self.last, whole, self.last_rows(rows))
            return made.astype(dtype)

        @partial(total.defjvp, symbolic_zeros=True)
        def derivative(args: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
            whole, rows = list(args[:n]), list(args[n:])
            pairs = zip(args, tangents, strict=True)  # what no derivative is taken by needs no gradient
            moves = [_compat.is_float(jax.typeof(x)) and not isinstance(t, SymbolicZero) for x, t in pairs]
            own, others = moves[:n], moves[n:]

            def both(piece: Slice, rows: Sequence[Any]) -> Any:
                fixed_whole, moving_whole = _compat.partition_list(own, whole)
                fixed_rows, moving_rows = _compat.partition_list(others, list(rows))

                def of(a: list[Any], b: list[Any]) -> Any:
                    merge = _compat.merge_lists
                    return part(piece, merge(own, fixed_whole, a), merge(others, fixed_rows, b))

                return jax.value_and_grad(of, (0, 1))(moving_whole, moving_rows)

            def step(carry: tuple[Any, list[Any]], xs: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
                made, (grads, by_row) = both(self.slice(xs[0]), xs[1])
                return (carry[0] + made, [a + g.astype(a.dtype) for a, g in zip(carry[1], grads, strict=True)]), by_row

            moving = _compat.partition_list(own, whole)[1]
            zeros = _zeros(values[loss].aval), [_zeros(jax.typeof(x)) for x in moving]
            (made, grads), stacked = lax.scan(step, zeros, self.stacked_rows(rows))
            lines = [d for (_, d), moves in zip(apart.rows, others, strict=True) if moves]
            by_row = [_unrows(y, d) for y, d in zip(stacked, lines, strict=True)]
            if self.rest:
                added, (last, last_rows) = both(self.last, self.last_rows(rows))
                made += added
                grads = [a + g.astype(a.dtype) for a, g in zip(grads, last, strict=True)]
                by_row = [jnp.concatenate([a, b], axis=d) for a, b, d in zip(by_row, last_rows, lines, strict=True)]
            given = _compat.partition_list(moves, list(tangents))[1]
            shift = _zeros(values[loss].aval)
            for g, t in zip([*grads, *by_row], given, strict=True):
                shift += jnp.vdot(g.astype(t.dtype), t).astype(shift.dtype)
            return made.astype(dtype), shift.astype(dtype)

        return total(*[env[v] for v in names], *[env[v] for v, _ in apart.rows])

    def slice(self, number: Any) -> Slice:
        """One of the slices that are equal."""
        return Slice(self.part, self.apart.units, number * self.part)

    @property
    def last(self) -> Slice:
        """The slice behind the loop."""
        return Slice(self.rest, self.apart.units, self.count * self.part)

    def stacked_rows(self, rows: Sequence[Any]) -> tuple[Any, list[Any]]:
        """What the loop over equal slices runs over: their numbers, and their rows."""
        equal = Slice(self.count * self.part, self.apart.units, 0)
        lines = [d for _, d in self.apart.rows]
        return jnp.arange(self.count), [
            _rows(cut(x, d, equal), self.count, d) for x, d in zip(rows, lines, strict=True)
        ]

    def last_rows(self, rows: Sequence[Any]) -> list[Any]:
        """The rows of the slice behind the loop."""
        return [cut(x, d, self.last) for x, (_, d) in zip(rows, self.apart.rows, strict=True)]

    def widened(self, v: int, x: Any) -> Any:
        """A value that every slice reads, in the type that its gradient is added up in."""
        return x.astype(_wide(x.dtype)) if self.graph.moving[v] else x

    def added(self, sums: Sequence[Any], made: dict[int, Any]) -> list[Any]:
        """The sums with a slice's parts of them."""
        return [s + made[v].astype(s.dtype) for v, s in zip(self.apart.sums, sums, strict=True)]

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


def _is_linear(op: Op, moving: Sequence[bool]) -> bool:
    """Whether an operation behind the loop is linear in those of its operands that are made of sums."""
    name = op.primitive
    if name == "mul":
        return not all(moving)
    kinds = [_compat.is_float(a.aval) for a in (*op.eqn.invars, *op.eqn.outvars)]
    if name == "div":
        return not moving[1] and all(kinds)
    if name == "convert_element_type" and not kinds[-1]:
        return False
    return all(moving) if name in _ADDITIONS else name in _LINEAR


def _wide(dtype: Any) -> Any:
    """The type in which values of a type are summed."""
    is_low = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.float32 if is_low else dtype


def _zeros(aval: Any) -> Any:
    return _compat.zeros(aval).astype(_wide(aval.dtype))


def _rows(x: Any, count: int, dimension: int) -> Any:
    """The slices of an array, stacked along a first dimension."""
    x = jnp.moveaxis(x, dimension, 0)
    x = x.reshape(count, x.shape[0] // count, *x.shape[1:])
    return jnp.moveaxis(x, 1, dimension + 1)


def _unrows(x: Any, dimension: int) -> Any:
    """Stacked slices side by side."""
    x = jnp.moveaxis(x, dimension + 1, 1)
    return jnp.moveaxis(x.reshape(-1, *x.shape[2:]), 0, dimension)
