"""What the arguments of a training step are: parameters, optimizer state, batch.

In: the trace of a step with its marks noted (``sites.find_sites``), the shapes of its arguments. Out: ``Arguments``:
bytes on one device of each kind.

Told apart by what the step does with them. An argument that a marked function reads and that comes back in a new
version (of the same shape and type) is a parameter, or state of the model such as batch statistics; one that comes back
and is read by no mark belongs to the optimizer; what does not come back is the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.training.sites import MARKED
from remat_plan.verify.place import device_bytes


@dataclass(frozen=True, slots=True)
class Arguments:
    """Bytes of a step's arguments on one device, by what they are.

    Attributes:
        parameter_bytes: the model's parameters and state.
        gradient_bytes: what of the parameters is of floating point; their gradients are as large.
        optimizer_bytes: the optimizer's state.
        batch_bytes: everything else.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    batch_bytes: int


def sort_arguments(traced: Any, structs: Any) -> Arguments:
    """Sort the arguments of a traced step.

    Args:
        traced: of ``find_sites``.
        structs: the shapes that it was traced with.
    """
    jaxpr = _compat.open_jaxpr(traced.jaxpr)[0]
    leaves = jax.tree.leaves(structs)
    read = {v for v in _read_by_marks(jaxpr) if not _compat.is_literal(v)}
    back = Counter((v.aval.shape, v.aval.dtype) for v in jaxpr.outvars)
    parameters, optimizer, batch = [], [], []
    for var, leaf in zip(jaxpr.invars, leaves, strict=True):
        key = (var.aval.shape, var.aval.dtype)
        back[key] -= 1
        kind = batch if back[key] < 0 else parameters if var in read else optimizer
        kind.append(leaf)
    floats = [x for x in parameters if _compat.is_float(x)]
    return Arguments(*map(device_bytes, (parameters, floats, optimizer, batch)))


def _read_by_marks(jaxpr: Any) -> set[Any]:
    """Variables of a jaxpr that a mark in it reads, directly or through other equations."""
    found: set[Any] = set()
    for eqn in reversed(jaxpr.eqns):
        inner = [_compat.open_jaxpr(sub)[0] for sub in _compat.sub_jaxprs(eqn.params)]
        if _is_mark(eqn) or any(v in found for v in eqn.outvars):
            found |= _variables(eqn.invars)
        elif len(inner) == 1 and len(inner[0].invars) == len(eqn.invars):
            reads = _read_by_marks(inner[0])
            found |= _variables([v for v, own in zip(eqn.invars, inner[0].invars, strict=True) if own in reads])
        elif any(map(_holds_mark, inner)):
            found |= _variables(eqn.invars)
    return found


def _is_mark(eqn: Any) -> bool:
    return _compat.name_of(eqn) == MARKED


def _holds_mark(jaxpr: Any) -> bool:
    inner = (sub for eqn in jaxpr.eqns for sub in _compat.sub_jaxprs(eqn.params))
    return any(map(_is_mark, jaxpr.eqns)) or any(_holds_mark(_compat.open_jaxpr(sub)[0]) for sub in inner)


def _variables(atoms: Sequence[Any]) -> set[Any]:
    return {v for v in atoms if not _compat.is_literal(v)}
