"""Names in a program: which there are, and what values they stand for.

In: ``Graph``, ``checkpoint_name`` names as a user gives them. Out: values of a region and of those inside it.

A name stands for the value that was named: ``checkpoint_name`` is an alias, so it is the output of the equation in
front of it. A name that a region gives to one of its inputs stands for what is around it: for the operand, and of a
carry for what the step before carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from remat_plan.graph.records import AXIS_PREFIX, TAG_PREFIX, Graph, Op
from remat_plan.graph.structure import Trips, structure_of
from remat_plan.small.wording import short


def name_list(argument: str, names: Any) -> tuple[str, ...]:
    """Return names as a sorted tuple, each once.

    Raises:
        TypeError: not a list of strings; ``argument`` is what the message calls it.
    """
    if names is None:
        return ()
    if isinstance(names, str):
        raise TypeError(f"{argument}={names!r}: give a list of names, [{names!r}].")
    given = list(names) if isinstance(names, Iterable) else [names]
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"{argument}={short(names)}: give a list of names (strings).")
    return tuple(sorted(set(given)))


def known_names(graph: Graph) -> tuple[str, ...]:
    """Return the ``checkpoint_name`` names in a program, those that a user gave."""
    own = TAG_PREFIX, AXIS_PREFIX
    return tuple(sorted({v.name for v in graph.values if v.name and not v.name.startswith(own)}))


def all_regions(graph: Graph) -> Iterator[Graph]:
    """Yield a program and the regions inside it, at any depth."""
    yield graph
    for _, region, _ in structures_in(graph):
        yield from all_regions(region)


def structures_in(graph: Graph) -> Iterator[tuple[Op, Graph, Trips | None]]:
    """Yield the structures of a region with the regions inside them, and what they are as loops."""
    for op in graph.ops:
        if (structure := structure_of(op)) is not None:
            for region in structure.regions(graph, op):
                yield op, region, structure.loop(graph, op)


def names_inside(graph: Graph) -> tuple[str, ...]:
    """Return the names in a program and in the regions inside it, those of loops and branches."""
    return tuple(sorted({name for region in all_regions(graph) for name in known_names(region)}))


def check_names(graph: Graph, argument: str, names: Iterable[str]) -> None:
    """Raise ``ValueError`` for a name that no value of the program has, inside or out; the message lists those."""
    known = names_inside(graph)
    unknown = sorted(set(names) - set(known))
    if not unknown:
        return
    there = (
        f"Names in this program: {', '.join(map(repr, known))}."
        if known
        else "This program has no names: name values with jax.ad_checkpoint.checkpoint_name(value, name)."
    )
    raise ValueError(f"{argument}: no value is named {unknown[0]!r}. {there}")


def _source(graph: Graph, v: int) -> int:
    """Return what stands before the names of a value."""
    while v >= 0 and graph.values[v].producer >= 0 and graph.ops[graph.values[v].producer].primitive == "name":
        v = graph.ops[graph.values[v].producer].operands[0]
    return v


def made_in(graph: Graph, values: Iterable[int]) -> list[int]:
    """Leave out arguments and constants: whoever is around owns them; and literals."""
    return [v for v in values if v >= 0 and graph.values[v].producer >= 0]


def named_values(graph: Graph, names: Iterable[str]) -> tuple[int, ...]:
    """Return the values that were given one of these names, in order: what stands before the name.

    Arguments and constants are left out: the caller owns them.
    """
    wanted = set(names)
    return tuple(dict.fromkeys(made_in(graph, [_source(graph, v.index) for v in graph.values if v.name in wanted])))


Meant = dict[int, set[int]]
"""Per region (by ``id``) the values that names stand for, inputs of the region among them."""


def values_meant(graph: Graph, names: set[str], found: Meant, carried: Sequence[tuple[int, int]] = ()) -> Meant:
    """Find what names stand for in a region and in those inside it; ``carried`` as in ``Trips``."""
    values = {_source(graph, v.index) for v in graph.values if v.name in names}
    for op, region, trips in structures_in(graph):
        if id(region) not in found:
            values_meant(region, names, found, trips.carried if trips is not None else ())
        operands = op.operands[len(op.operands) - len(region.inputs) :]
        pairs = zip(operands, region.inputs, strict=True)
        values |= {_source(graph, v) for v, given in pairs if given in found[id(region)]}
    for _ in carried:  # a carry may be handed on as another one
        values |= {_source(graph, after) for before, after in carried if before in values}
    found[id(graph)] = values
    return found
