"""The order of recomputations: one segment after another, and nothing before its time.

In: ``Graph``, the segments of one level. Out: per segment, the values that pass through it so that its backward pass
waits for that of the next one; loops that take their memory when they run.

The backward pass of a segment starts when the cotangents of what it returns are there (``jax.checkpoint`` puts a
barrier over its inputs *and* these cotangents). In a chain the next segment makes them. Of branches side by side they
are all there at once, and a compiler is free to recompute every branch before it differentiates the first. So what the
next segment reads passes through this one: its cotangents, which the next segment's backward pass makes, then enter the
barrier. Nothing is computed for it, and all transformations know what it is: an identity inside ``jax.checkpoint``.

A loop that stacks its outputs starts with zeros of their size. They depend on nothing, so XLA:CPU, which runs
everything as soon as it can, makes the zeros of all loops at the start of the program, and they are alive until the
loops run. Inside a branch of a ``cond`` they are made when the loop runs.

Limits: planned loops have no barrier of their own, so one does not wait for what follows it; the outermost loop over
groups of steps makes its zeros early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.records import Graph, Op
from remat_plan.rewrite.segments import Segment

Ordered = list[tuple[Segment, tuple[int, ...]]]


def ordered(graph: Graph, segments: Sequence[Segment], free: frozenset[int]) -> Ordered:
    """Return each segment with the values that must pass through it for the sake of the order.

    Args:
        graph, segments: the program, and segments of it that follow each other.
        free: operations that every segment makes for itself.
    """
    found: Ordered = []
    following: Segment | None = None
    for segment in reversed(segments):
        waits: tuple[int, ...] = ()
        if segment.kind in ("save", "nest") and following is not None:
            waits = _waits(graph, segment, following, free)
        found.append((segment, waits))
        if segment.kind != "plain":
            following = segment
    return found[::-1]


def _waits(graph: Graph, segment: Segment, following: Segment, free: frozenset[int]) -> tuple[int, ...]:
    """Return the values by which a segment waits for the following one.

    What the following segment computes from this one's results needs none: its backward pass makes the cotangents that
    enter this one's barrier. What it computes beside them does, if its backward pass reads anything.
    """
    inside = [graph.ops[i] for i in range(segment.start, segment.end) if i not in free]
    made = {v for op in inside for v in op.outputs}
    downstream = {v for v in made if graph.active[v]}
    downstream.update(v for op in inside for v in op.reads if graph.active[v] and graph.values[v].producer >= 0)
    beside: list[Op] = []
    for op in graph.ops[segment.end : following.end]:
        if op.index in free or not op.differentiated:
            continue
        made.update(op.outputs)
        if any(v in downstream for v in op.reads):
            downstream.update(v for v in op.outputs if graph.active[v])
        else:
            beside.append(op)
    wanted: dict[int, None] = {}
    for op in reversed(beside):
        need = graph.needs[op.kind]
        recomputed = op.index >= following.start and (need.operands or need.outputs)
        if recomputed or any(v in wanted for v in op.outputs):
            wanted.update((v, None) for v in op.reads if graph.active[v])
    return tuple(v for v in wanted if v not in made)


def starts_early(op: Op) -> bool:
    """Tell whether an operation begins with memory that depends on nothing: a differentiated loop."""
    return op.primitive == "scan" and op.differentiated and not op.effectful


def start_late(run: Callable[..., list[Any]], args: Sequence[Any]) -> list[Any]:
    """Run a function of arrays so that nothing in it is computed before its arguments are there.

    The predicate is always true; on a CPU the compiler cannot know that. Other backends do not run things early: there
    it is a constant, and the branch is all that remains.
    """
    closed = jax.make_jaxpr(run)(*args)
    if any(_compat.is_key(aval) for aval in closed.out_avals):
        return run(*args)
    reached = jax.lax.platform_dependent(cpu=_unknown_true, default=_true)
    empty = lambda *_: [_compat.zeros(aval) for aval in closed.out_avals]  # noqa: E731
    return jax.lax.cond(reached, _compat.as_function(closed), empty, *args)


def _true() -> jax.Array:
    return jax.numpy.asarray(True)


def _unknown_true() -> jax.Array:
    return jax.lax.optimization_barrier(_true())
