"""Views and casts of arguments, where they are read.

In: ``Flat``. Out: the same program in which what is made of one argument alone stands right before its only reader.
In: ``Graph``. Out: which operations these are.

``params = jax.tree.map(lambda p: p.astype(bf16), params)``, or the slices of stacked parameters for all layers, often
stand before the first layer. There, a segment around the first layer would make the values for all others too, and keep
them; a person puts ``jax.checkpoint`` around the layers only. Before its reader, each belongs to its own layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from remat_plan import _compat
from remat_plan.graph.flatten import Flat, FlatEqn
from remat_plan.graph.merge import APART
from remat_plan.graph.records import MATRIX_PRIMITIVES, Graph, Op


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
