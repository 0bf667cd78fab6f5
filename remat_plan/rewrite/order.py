"""The order of recomputations: one segment after another, and nothing before its time.

In: ``Graph``, the segments of one level. Out: per segment, the values that pass through it so that its backward pass
waits for that of the next one; loops that take their memory when they run.

The backward pass of a segment starts when the cotangents of what it returns are there (``jax.checkpoint`` puts a barrier
over its inputs *and* these cotangents). In a chain the next segment makes them. Of branches side by side they are all
there at once, and a compiler is free to recompute every branch before it differentiates the first. So what the next
segment reads passes through this one: its cotangents, which the next segment's backward pass makes, then enter the
barrier. Nothing is computed for it, and all transformations know what it is: an identity inside ``jax.checkpoint``.

A loop that stacks its outputs starts with zeros of their size. They depend on nothing, so XLA:CPU, which runs
everything as soon as it can, makes the zeros of all recomputed loops at the start of the program, and they are alive
until the loops run. Inside a branch of a ``cond`` they are made when the loop runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.records import Graph, Op
from remat_plan.rewrite.segments import Segment, interface

Ordered = list[tuple[Segment, tuple[int, ...]]]


def ordered(graph: Graph, segments: Sequence[Segment], free: frozenset[int], last: Sequence[int]) -> Ordered:
    """Return each segment with the values that must pass through it for the sake of the order.

    Args:
        graph, segments: the program, and segments of it that follow each other.
        free: operations that every segment makes for itself.
        last: per value, the last operation that reads it.
    """
    found: Ordered = []
    following: Segment | None = None
    for segment in reversed(segments):
        waits: tuple[int, ...] = ()
        if segment.kind in ("save", "nest") and following is not None:
            waits = _waits(graph, segment, following, free, last)
        found.append((segment, waits))
        if segment.kind != "plain":
            following = segment
    return found[::-1]


def _waits(
    graph: Graph, segment: Segment, following: Segment, free: frozenset[int], last: Sequence[int]
) -> tuple[int, ...]:
    """Return the values by which a segment waits for the following one; none where their data is order enough."""
    _, leaves, through = interface(graph, segment, free, last)
    reached = {v for v in (*leaves, *through) if graph.active[v]}
    made: set[int] = {v for i in range(segment.start, segment.end) for v in graph.ops[i].outputs}
    read: dict[int, None] = {}
    for index in range(segment.end, following.end):
        op = graph.ops[index]
        if index in free:
            continue
        moving = [v for v in op.reads if graph.active[v]]
        if any(v in reached for v in moving):
            if index >= following.start:
                return ()
            reached.update(v for v in op.outputs if graph.active[v])
        read.update(dict.fromkeys(v for v in moving if v not in made))
        made.update(op.outputs)
    return tuple(read)


def starts_early(op: Op) -> bool:
    """Tell whether an operation begins with memory that depends on nothing: a differentiated loop."""
    return op.primitive == "scan" and op.differentiated and not op.effectful


def start_late(run: Callable[[Sequence[Any]], list[Any]], args: Sequence[Any]) -> list[Any]:
    """Run a function of arrays so that nothing in it is computed before its arguments are there.

    The predicate is always true; on a CPU the compiler cannot know that. Other backends do not run things early: there
    it is a constant, and the branch is all that remains.
    """
    closed = jax.make_jaxpr(lambda *xs: run(xs))(*args)
    if any(_compat.is_key(aval) for aval in closed.out_avals):
        return run(args)
    reached = jax.lax.platform_dependent(cpu=_unknown_true, default=_true)
    empty = lambda *_: [_compat.zeros(aval) for aval in closed.out_avals]  # noqa: E731
    return jax.lax.cond(reached, _compat.as_function(closed), empty, *args)


def _true() -> jax.Array:
    return jax.numpy.asarray(True)


def _unknown_true() -> jax.Array:
    return jax.lax.optimization_barrier(_true())
