"""A segment that runs slice by slice, in figures and words.

In: the ``Borders`` of a graph, a split segment of it. Out: ``Slicing``: along which axis, what is added up over the
slices, how large the largest value is whole and in one slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from remat_plan import _compat
from remat_plan.graph.schedule import Segment
from remat_plan.graph.slices import sliced
from remat_plan.graph.uses import Borders
from remat_plan.graph.ways import Split
from remat_plan.results.places import value_text


@dataclass(frozen=True, slots=True)
class Slicing:
    """How a segment runs slice by slice.

    Attributes:
        slices: how many slices there are; the last one may be shorter.
        value, dimension: the axis: that of a dimension of a value, which is told by its name or primitive, dtype and
            shape, and source line.
        whole_bytes, slice_bytes: of the largest value that slices make: whole, and of one slice.
        sums: how many values slices add up in the forward pass.
        gradients: how many values every slice reads whole, so that slices add up their gradients.
        gradient_bytes: of the gradients that are made in the forward pass and kept for the backward pass; 0 where the
            backward pass makes them.
    """

    slices: Annotated[int, 2]
    value: str
    dimension: int
    whole_bytes: int
    slice_bytes: int
    sums: int
    gradients: int
    gradient_bytes: int


def slicing_of(borders: Borders, segment: Segment) -> Slicing:
    """Return how a split segment runs; ``graph.valid`` has found that it can."""
    way, values = segment.way, borders.graph.values
    assert isinstance(way, Split)
    found = sliced(borders, segment, way)
    assert found is not None
    apart, moving = found.apart, borders.graph.moving
    made = {v for i, axis in apart.axes for v in borders.graph.ops[i].outputs}.difference(apart.sums)
    inside = made.difference([v for v, _ in apart.stacked]) or made
    part = -(-apart.units // way.slices)
    largest = max((values[v].size_bytes for v in inside), default=0)
    read = [v for v in apart.whole if moving[v] and _compat.is_float(values[v].aval)]
    rows = [v for v in dict.fromkeys(v for v, _ in apart.rows) if moving[v] and _compat.is_float(values[v].aval)]
    return Slicing(
        slices=-(-apart.units // part),
        value=value_text(borders.graph, way.value),
        dimension=way.dimension,
        whole_bytes=largest,
        slice_bytes=largest * part // apart.units,
        sums=len(apart.sums),
        gradients=len(read),
        gradient_bytes=sum(values[v].size_bytes for v in (*read, *rows)) if way.gradient_first else 0,
    )
