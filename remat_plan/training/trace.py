"""What the trace of a training step tells: what its arguments are, what it needs outside of its marks, what to mark.

In: a trace with marks noted (``sites.find_sites``), the shapes of its arguments; or a step and a runner of its marks.
Out: ``Arguments``, bytes of each kind; the largest equation outside of all marks; the error where nothing is marked.

Arguments are told apart by what the step does with them. One that a marked function reads and that comes back in a new
version (of the same shape and type) is a parameter, or state of the model such as batch statistics; one that comes back
and is read by no mark belongs to the optimizer; what does not come back is the batch.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import evaluate
from remat_plan.results.places import line_text
from remat_plan.search.candidates import Request
from remat_plan.small.budget import format_bytes
from remat_plan.small.wording import name_of
from remat_plan.traced.marks import MarkRunner
from remat_plan.traced.programs import Traced
from remat_plan.training.sites import holds_mark, is_mark
from remat_plan.training.step import TrainingStep
from remat_plan.verify.place import device_bytes

_SCOPE = "remat_plan_mark"
_HOW = (
    "rp.fit plans functions marked by rp.mark: write jax.value_and_grad(rp.mark({name}), ...) "
    "where the gradient is taken."
)
_OUTSIDE = (
    "The mark goes on the loss, or on layers of it, inside the gradient: "
    "write jax.value_and_grad(rp.mark({name})), not rp.mark(jax.value_and_grad({name}))."
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Bytes of a step's arguments on one device, by what they are; those of gradients are of floating parameters."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    batch_bytes: int


def sort_arguments(traced: Any, structs: Any) -> Arguments:
    """Sort the arguments of a step: of its trace by ``find_sites``, and the shapes that it was traced with."""
    jaxpr = _compat.open_jaxpr(traced.jaxpr)[0]
    read = _read_by_marks(jaxpr)
    back = Counter((v.aval.shape, v.aval.dtype) for v in jaxpr.outvars)
    parameters, optimizer, batch = [], [], []
    for var, leaf in zip(jaxpr.invars, jax.tree.leaves(structs), strict=True):
        key = (var.aval.shape, var.aval.dtype)
        back[key] -= 1
        kind = batch if back[key] < 0 else parameters if var in read else optimizer
        kind.append(leaf)
    floats = [x for x in parameters if _compat.is_float(x)]
    return Arguments(*map(device_bytes, (parameters, floats, optimizer, batch)))


def donates_inside(traced: Any) -> bool:
    """Whether a step is a function that was jitted and gives up arguments: inside another ``jit`` it gives up none."""
    equations = _compat.open_jaxpr(traced.jaxpr)[0].eqns
    return any(any(eqn.params.get("donated_invars", ())) for eqn in equations)


def _read_by_marks(jaxpr: Any) -> set[Any]:
    """Variables of a jaxpr that a mark in it reads, directly or through other equations."""
    found: set[Any] = set()
    for eqn in reversed(jaxpr.eqns):
        inner = [_compat.open_jaxpr(sub)[0] for sub in _compat.sub_jaxprs(eqn.params)]
        if is_mark(eqn) or any(v in found for v in eqn.outvars):
            found |= _variables(eqn.invars)
        elif len(inner) == 1 and len(inner[0].invars) == len(eqn.invars):
            reads = _read_by_marks(inner[0])
            found |= _variables([v for v, own in zip(eqn.invars, inner[0].invars, strict=True) if own in reads])
        elif any(map(holds_mark, inner)):
            found |= _variables(eqn.invars)
    return found


def _variables(atoms: Sequence[Any]) -> set[Any]:
    return {v for v in atoms if not _compat.is_literal(v)}


@dataclass(frozen=True)
class _Scoped:
    """Runs marks as another runner does, in a scope by which their equations, backward ones too, can be told."""

    runner: MarkRunner

    def run_mark(self, trace: Callable[[], Traced], request: Request) -> Any:
        with jax.named_scope(_SCOPE):
            return self.runner.run_mark(trace, request)


def largest_outside(step: TrainingStep, runner: MarkRunner, hardware: Hardware) -> tuple[str, float] | None:
    """The equation outside of all marks at which most bytes are alive; None where there is none.

    Told are its primitive and the user's line, and what is alive there as a share of the peak of the step.
    """
    jaxpr = step.trace(_Scoped(runner)).jaxpr
    timeline = evaluate(jaxpr, hardware)
    lines = dict(_outside(_compat.open_jaxpr(jaxpr)[0], ""))
    pairs = zip(timeline.live_bytes, timeline.equations, strict=True)
    rows = [(live, eqn) for live, eqn in pairs if id(eqn) in lines]
    if not rows:
        return None
    most, eqn = max(rows, key=lambda row: row[0])
    return f"{eqn.primitive.name} {lines[id(eqn)]}".strip(), most / timeline.peak_bytes


def _outside(jaxpr: Any, line: str) -> Iterator[tuple[int, str]]:
    """The equations outside of marks, by ``id``, with the user's line; a function of JAX has that of its call. A loop
    around a mark is none: what is alive there is the mark's too."""
    for eqn in jaxpr.eqns:
        if _is_in_scope(eqn):
            continue
        own, inner = line_text(eqn) or line, [_compat.open_jaxpr(sub)[0] for sub in _compat.sub_jaxprs(eqn.params)]
        if not any(holds_mark(body, _is_in_scope) for body in inner):
            yield id(eqn), own
        for body in inner:
            yield from _outside(body, own)


def _is_in_scope(eqn: Any) -> bool:
    return _SCOPE in str(eqn.source_info.name_stack)


def no_mark(fn: Callable[..., Any], traced: Any) -> ValueError:
    """The error for a step in which no gradient is taken through a mark."""
    own = name_of(fn)
    jaxpr = _compat.open_jaxpr(traced.jaxpr)[0]
    how = _OUTSIDE if holds_mark(jaxpr) else _HOW
    text = f"no gradient is taken through a marked function in {own}."
    found = _largest_call(jaxpr, own)
    if found is None:
        return ValueError(f"{text} {how.format(name='loss_fn')}")
    (name, called), size_bytes, all_bytes = found
    most = f"{format_bytes(size_bytes)} of {format_bytes(all_bytes)} are values of {name}, called at {called}."
    return ValueError(f"{text} Where memory peaks (predicted), {most} {how.format(name=name)}")


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
