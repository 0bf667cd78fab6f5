"""Where the plain step needs most memory, and whether what stands there can run in slices.

In: ``Rules`` of a graph. Out: ``PeakPlace``, by the evaluator's timeline and the axes of the largest value there.
Nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.apart import Apart, find_apart, operations_of
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import as_is
from remat_plan.graph.uses import Borders
from remat_plan.results.places import equation_text, value_text


@dataclass(frozen=True, slots=True)
class PeakPlace:
    """Where the plain step needs most memory.

    Attributes:
        peak_bytes: predicted for the attached device: arguments, outputs and temporaries.
        where: the equation, in the forward or the backward pass: primitive and source line.
        value: the largest value that the program makes there: name or primitive, dtype and shape, source line; ``""``
            where only arguments are read.
        value_bytes: of it.
        dimension: the dimension of this value along which that part of the program can run in slices, the one that
            leaves least whole; None where there is none.
        slices: how many slices there can be at most; 1 where there is no such dimension.
    """

    peak_bytes: int
    where: str
    value: str
    value_bytes: int
    dimension: int | None
    slices: int


def find_peak(rules: Rules) -> PeakPlace | None:
    """Return where the plain step of a loss has its peak; None where that is at no equation of the program."""
    graph = rules.graph
    timeline = StepProgram(rules).loss_timeline((as_is(0, len(graph.ops)),))
    place = timeline.places[timeline.peak_step] if timeline.live_bytes else -1
    if place < 0:
        return None
    op = graph.ops[place]
    made = [v for v in (*op.reads, *op.outputs) if graph.values[v].producer >= 0 and _is_array(graph, v)]
    told = timeline.peak_bytes, equation_text(op.eqn)
    if not made:
        return PeakPlace(*told, "", 0, None, 1)
    largest = max(made, key=lambda v: (graph.values[v].size_bytes, -v))
    size = graph.values[largest].size_bytes
    found = min(_lines(rules.borders, op, largest), default=(0, None, 1))
    return PeakPlace(*told, value_text(graph, largest), size, *found[1:])


def _is_array(graph: Graph, v: int) -> bool:
    return _compat.is_float(graph.values[v].aval)


def _lines(borders: Borders, op: Op, value: int) -> Iterator[tuple[int, int, int]]:
    """Yield per dimension of a value that the program can be split along: the bytes of the largest value that stays
    whole, the dimension, and how many slices there can be."""
    graph, producer = borders.graph, borders.graph.values[value].producer
    walls = [-1, *(o.index for o in graph.ops if o.effectful), len(graph.ops)]
    start = max(wall for wall in walls if wall < producer or wall == -1) + 1
    end = min(wall for wall in walls if wall > op.index)
    ops = operations_of(graph, start, end, borders.free)
    leaves = [v for i in range(start, end) for v in graph.ops[i].outputs if borders.last[v] >= end]
    for dimension, extent in enumerate(graph.values[value].aval.shape):
        apart = find_apart(graph, ops, leaves, value, dimension) if extent > 1 and producer in ops else None
        if apart is not None and apart.units > 1:
            yield _largest_whole(graph, ops, apart), dimension, apart.units


def _largest_whole(graph: Graph, ops: list[int], apart: Apart) -> int:
    inside = {v for i, _ in apart.axes for v in graph.ops[i].outputs}.difference([v for v, _ in apart.stacked])
    return max((graph.values[v].size_bytes for i in ops for v in graph.ops[i].outputs if v not in inside), default=0)
