"""What waits for all that it reads: segments, and loops that take their memory when they run.

In: what a segment reads; a loop, as a function of arrays. Out: the same, so that nothing in it is computed before its
arguments are there.

A loop that stacks its outputs starts with zeros of their size. They depend on nothing, so XLA:CPU, which runs
everything as soon as it can, makes the zeros of all loops at the start of the program, and they are alive until the
loops run. Inside a branch of a ``cond`` they are made when the loop runs.

Limits: the outermost loop over groups of steps makes its zeros early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from remat_plan import _compat


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


def together(values: Sequence[Any]) -> list[Any]:
    """Return values none of which is there before all of them are.

    Nor are their cotangents: gradients of a segment's weights are made before the segment before it goes on. (The
    barrier of jax 0.10 takes values only that vary over the same axes of a ``shard_map``.) Mutable arrays are not held.
    """
    arrays = [value for value in values if not _compat.is_ref(jax.typeof(value))]
    kinds = {_compat.varying_axes(jax.typeof(value)) for value in arrays}
    if len(kinds) > 1 and _compat.drops_checkpoint_barriers():
        return list(values)
    held = iter(_together(*arrays) if arrays else ())
    return [value if _compat.is_ref(jax.typeof(value)) else next(held) for value in values]


@jax.custom_jvp
def _together(*values: Any) -> list[Any]:
    return list(jax.lax.optimization_barrier(values))


@partial(_together.defjvp, symbolic_zeros=True)
def _together_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Hold the tangents that there are.

    The barrier of jax 0.10 would make zeros for the others, and have gradients computed that nobody asks for.
    """
    moving = [t for t in tangents if not isinstance(t, SymbolicZero)]
    behind = iter(jax.lax.optimization_barrier(moving) if moving else ())
    return _together(*primals), [t if isinstance(t, SymbolicZero) else next(behind) for t in tangents]


def _true() -> jax.Array:
    return jax.numpy.asarray(True)


def _unknown_true() -> jax.Array:
    return jax.lax.optimization_barrier(_true())
