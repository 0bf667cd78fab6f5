"""Equal equations as one; views and casts of arguments, where they are read.

In: ``Flat``. Out: the same program in which an equation that computes again what one shortly before it computed is
left out, as XLA's common subexpression elimination leaves it out; that in which what is made of one argument alone
stands right before its only reader. In: ``Graph``. Out: which operations these are.

``x - mean(x)`` stands twice in a normalisation: once in the variance, once beside it. XLA merges the two in the plain
program, but no longer where a plan saves one of them, and then both are kept. So they are one value before planning.

"Shortly": with no product, convolution, loop or call between them. Merging across these would keep a value from layer
to layer that each layer makes for itself, such as a transposed weight, and what is kept is for the planner to choose.

``params = jax.tree.map(lambda p: p.astype(bf16), params)``, or the slices of stacked parameters for all layers, often
stand before the first layer. There, a segment around the first layer would make the values for all others too, and keep
them; a person puts ``jax.checkpoint`` around the layers only. Before its reader, each belongs to its own layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from remat_plan import _compat
from remat_plan.graph.flatten import Flat, FlatEqn
from remat_plan.graph.records import MATRIX_PRIMITIVES, Graph, Op

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
    pairs = zip(eqn.invars, operands, strict=True)
    return tuple([o if o >= 0 else (a.aval, literal_key(flat.literals[-1 - o])) for a, o in pairs])


def literal_key(value: Any) -> Any:
    """Return type and value of a literal as a key, zeros by their sign; NumPy takes ten times as long for the text."""
    return (type(value), value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else repr(value)


def sink_views(flat: Flat) -> Flat:
    """Return the program with what is made of one argument alone before its only reader.

    Example:
        >>> import jax
        >>> from remat_plan.graph.flatten import flatten
        >>> def two_layers(x, w):
        ...     first, second = w[0], w[1]
        ...     return x @ first @ second
        >>> one = flatten(jax.make_jaxpr(two_layers)(jax.numpy.ones((2, 2)), jax.numpy.ones((2, 2, 2))))
        >>> [item.eqn.primitive.name for item in sink_views(one).eqns if item.eqn.primitive.name != "squeeze"]
        ['slice', 'dot_general', 'slice', 'dot_general']
    """
    waiting: dict[int, list[FlatEqn]] = {}  # per value: what makes it, not written yet
    eqns: list[FlatEqn] = []
    for item, is_view in zip(flat.eqns, _views(flat, flat.eqns), strict=True):
        before = [made for o in item.operands for made in waiting.pop(o, ())]
        if is_view:
            waiting[item.outputs[0]] = [*before, item]
        else:
            eqns += [*before, item]
    return Flat(eqns, flat.avals, flat.inputs, flat.constants, flat.literals, flat.outputs)


def argument_views(graph: Graph) -> frozenset[int]:
    """Return the operations that ``sink_views`` moved to their readers.

    A slice of stacked parameters or a cast is no reason to take the place before it for a narrow one.
    """
    return frozenset(index for index, is_view in enumerate(_views(graph, graph.ops)) if is_view)


def _views(program: Flat | Graph, equations: Sequence[FlatEqn | Op]) -> Iterator[bool]:
    """Tell of each equation whether it makes one value, cheaply, for one reader, of one that is there from the start.

    What is returned counts as read twice, since it stays where it is.
    """
    readers = Counter([o for item in equations for o in item.operands if o >= 0])
    readers.update(dict.fromkeys(program.outputs, 2))
    given = {*program.inputs, *(number for number, _ in program.constants)}
    for item in equations:
        reads = [o for o in item.operands if o >= 0]
        is_view = (
            len(reads) == len(item.outputs) == 1
            and reads[0] in given
            and readers[item.outputs[0]] == 1
            and item.eqn.primitive.name not in MATRIX_PRIMITIVES | APART
            and not _compat.has_effects(item.eqn)
            and not _compat.sub_jaxprs(item.eqn.params)
        )
        if is_view:
            given.update(item.outputs)
        yield is_view
