"""Where the plain step needs most memory, and whether what stands there can run in slices.

In: ``Rules`` of a graph. Out: ``PeakPlace``, by the evaluator's timeline and the axes of the largest value there.
Nothing is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.apart import lines_of
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import as_is
from remat_plan.graph.ways import Segment
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
    found = next(iter(lines_of(rules.borders, _stretch(graph, op, largest), largest)), None)
    along = (None, 1) if found is None else (found.dimension, found.units)
    return PeakPlace(*told, value_text(graph, largest), size, *along)


def _is_array(graph: Graph, v: int) -> bool:
    return _compat.is_float(graph.values[v].aval)


def _stretch(graph: Graph, op: Op, value: int) -> Segment:
    """The equations around an operation and the one that makes a value, as far as none has an effect."""
    producer = graph.values[value].producer
    walls = [-1, *(o.index for o in graph.ops if o.effectful), len(graph.ops)]
    start = max(wall for wall in walls if wall < producer or wall == -1) + 1
    return Segment(start, min(wall for wall in walls if wall > op.index))
