"""The error of a training step without a mark: what to mark.

In: the trace of the step, the user's function. Out: ``ValueError``, which names the call in the step whose values take
the most bytes where most are alive.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from remat_plan import _compat
from remat_plan.small.budget import format_bytes
from remat_plan.training.sites import MARKED

_HOW = (
    "rp.fit plans functions marked by rp.mark: write jax.value_and_grad(rp.mark({name}), ...) "
    "where the gradient is taken."
)
_OUTSIDE = (
    "The mark goes on the loss, or on layers of it, inside the gradient: "
    "write jax.value_and_grad(rp.mark({name})), not rp.mark(jax.value_and_grad({name}))."
)


def no_mark(fn: Callable[..., Any], traced: Any) -> ValueError:
    """The error for a step in which no gradient is taken through a mark."""
    own = getattr(fn, "__name__", type(fn).__name__)
    jaxpr = _compat.open_jaxpr(traced.jaxpr)[0]
    how = _OUTSIDE if _calls_mark(jaxpr) else _HOW
    text = f"no gradient is taken through a marked function in {own}."
    found = _largest_call(jaxpr, own)
    if found is None:
        return ValueError(f"{text} {how.format(name='loss_fn')}")
    (name, called), size_bytes, all_bytes = found
    most = f"{format_bytes(size_bytes)} of {format_bytes(all_bytes)} are values of {name}, called at {called}."
    return ValueError(f"{text} Where memory peaks, {most} {how.format(name=name)}")


def _calls_mark(jaxpr: Any) -> bool:
    """Whether a mark runs in a step, at any depth: its inputs have a name."""
    inner = (_compat.open_jaxpr(sub)[0] for eqn in jaxpr.eqns for sub in _compat.sub_jaxprs(eqn.params))
    return any(_compat.name_of(eqn) == MARKED for eqn in jaxpr.eqns) or any(map(_calls_mark, inner))


def _largest_call(jaxpr: Any, own: str) -> tuple[tuple[str, str], int, int] | None:
    """Of the calls in a step (function, line in the step) the one with the most bytes alive at the peak; those bytes,
    and all that are."""
    eqns = list(_flat(jaxpr))
    last: dict[Any, int] = {}
    for position, eqn in enumerate(eqns):
        last.update({v: position for v in eqn.invars if not _compat.is_literal(v)})
    change: dict[int, int] = defaultdict(int)
    made = [(i, v) for i, eqn in enumerate(eqns) for v in eqn.outvars if last.get(v, i) > i]
    for position, value in made:
        change[position] += _compat.aval_bytes(value.aval)
        change[last[value]] -= _compat.aval_bytes(value.aval)
    live, peak, most = 0, 0, 0
    for position in sorted(change):
        live += change[position]
        if live > most:
            peak, most = position, live
    by_call: dict[tuple[str, str], int] = defaultdict(int)
    for position, value in made:
        if position <= peak < last[value] and (call := _call(eqns[position], own)) is not None:
            by_call[call] += _compat.aval_bytes(value.aval)
    if not by_call:
        return None
    largest = max(by_call, key=by_call.__getitem__)
    return largest, by_call[largest], most


def _flat(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr, those of a function that is only called among them."""
    for eqn in jaxpr.eqns:
        inner = [_compat.open_jaxpr(sub)[0] for sub in _compat.sub_jaxprs(eqn.params)]
        if len(inner) == 1 and eqn.primitive.name in ("jit", "pjit"):
            yield from _flat(inner[0])
        else:
            yield eqn


def _call(eqn: Any, own: str) -> tuple[str, str] | None:
    """The function that a step calls to make an equation, and the line of that call; None where it makes it itself."""
    frames = _compat.source_frames(eqn)
    for inner, outer in itertools.pairwise(frames):
        if outer[2].split(".")[-1] == own:
            return inner[2].split(".")[-1], f"{os.path.basename(outer[0])}:{outer[1]}"
    return None
