"""Equal equations as one.

In: ``Flat``. Out: the same program in which an equation that computes again what one shortly before it computed is
left out, as XLA's common subexpression elimination leaves it out.

``x - mean(x)`` stands twice in a normalisation: once in the variance, once beside it. XLA merges the two in the plain
program, but no longer where a plan saves one of them, and then both are kept. So they are one value before planning.

"Shortly": with no product, convolution, loop or call between them. Merging across these would keep a value from layer
to layer that each layer makes for itself, such as a transposed weight, and what is kept is for the planner to choose.
"""

from __future__ import annotations

from typing import Any

from remat_plan import _compat
from remat_plan.graph.flatten import Flat, FlatEqn
from remat_plan.graph.records import MATRIX_PRIMITIVES

APART = frozenset({"optimization_barrier", "rng_uniform"})
"""Equations whose purpose is not to be merged, or that give other numbers each time."""


def identity(eqn: Any) -> Any | None:
    """Return primitive and parameters as a key; None where functions or jaxprs in them forbid comparing.

    Equal keys are the same computation: parameters are compared with their types, floats to the sign of zero.
    """
    if any(callable(v) and not isinstance(v, type) for v in eqn.params.values()) or _compat.sub_jaxprs(eqn.params):
        return None
    values = [(k, type(v), repr(v) if isinstance(v, float) else v) for k, v in eqn.params.items()]
    key = (eqn.primitive, tuple(sorted(values, key=lambda item: item[0])))
    try:
        hash(key)
    except TypeError:  # a parameter that cannot be hashed: the equation is taken as unlike any other
        return None
    return key


def merge_equal(flat: Flat) -> Flat:
    """Return a program without equations that repeat one of their stretch.

    Example:
        >>> import jax
        >>> from remat_plan.graph.flatten import flatten
        >>> twice = flatten(jax.make_jaxpr(lambda x: jax.numpy.sin(x) * jax.numpy.sin(x))(1.0))
        >>> len(twice.eqns), len(merge_equal(twice).eqns)
        (3, 2)
    """
    first: dict[int, int] = {}  # of a value left out: the value that stands for it
    known: dict[Any, tuple[int, ...]] = {}
    eqns = []
    for item in flat.eqns:
        operands = tuple([first.get(o, o) for o in item.operands])
        name = identity(item.eqn)
        if name is None or item.eqn.primitive.name in MATRIX_PRIMITIVES:
            known.clear()
        elif not _compat.has_effects(item.eqn) and item.eqn.primitive.name not in APART:
            key = name, _operands(item.eqn, operands, flat), tuple([v.aval for v in item.eqn.outvars]), item.eqn.ctx
            if key in known:
                first.update(zip(item.outputs, known[key], strict=True))
                continue
            known[key] = item.outputs
        eqns.append(FlatEqn(item.eqn, operands, item.outputs))
    outputs = tuple([first.get(o, o) for o in flat.outputs])
    return Flat(eqns, flat.avals, flat.inputs, flat.constants, flat.literals, outputs)


def _operands(eqn: Any, operands: tuple[int, ...], flat: Flat) -> tuple[Any, ...]:
    """What an equation reads, as a key: values by their numbers, literals (scalars) by type and value."""
    return tuple(
        [o if o >= 0 else (a.aval, repr(flat.literals[-1 - o])) for a, o in zip(eqn.invars, operands, strict=True)]
    )
