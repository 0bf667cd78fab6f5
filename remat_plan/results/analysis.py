"""What plain JAX saves between the forward and backward passes, and what is really needed.

In: ``Rules`` of a graph. Out: ``Analysis``: one row per value, sorted by bytes, with totals, and where the plain step
has its peak, and whether what stands there can run in slices. Nothing is compiled.

*Saved* is what JAX's own linearisation stores: values that the backward pass reads, and internals of JVP rules
(for ``tanh`` it is ``1 - y*y`` instead of ``y``). *Needed* is the least set of program values from which the
backward pass can be run without recomputing anything but internals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.apart import lines_of
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import as_is
from remat_plan.graph.uses import all_residuals, residuals
from remat_plan.graph.ways import Segment
from remat_plan.results.places import equation_text, equations_in, lines_text, value_text
from remat_plan.results.shown import Shown


@dataclass(frozen=True, slots=True)
class Residual:
    """One value that is saved (or needed) for the backward pass.

    Attributes:
        size_bytes, shape, dtype: of the value.
        primitive: what computes it; ``"argument"`` for inputs, ``"constant"`` for closed-over arrays.
        source: ``file.py:line`` of the user's code; for internals of a loop, the lines of its body.
        function: the user's function there.
        name: the user's ``checkpoint_name``, or ``""``.
        why: ``"value"`` (a value of the program) or ``"internal"`` (computed by a derivative rule).
        needed: whether the backward pass needs it; False for internals, which follow from what is needed.
        saved: whether plain JAX saves it.
        read_by: the primitive whose backward pass reads it.
    """

    size_bytes: int
    shape: tuple[int, ...]
    dtype: str
    primitive: str
    source: str
    function: str
    name: str
    why: str
    needed: bool
    saved: bool
    read_by: str


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


@dataclass(frozen=True, slots=True, repr=False)
class Analysis(Shown):
    """What a gradient step saves. See the module docstring.

    Attributes:
        residuals: sorted by bytes, largest first. Arguments are listed but not counted in the totals, since they
            are live anyway.
        saved_bytes: what plain JAX saves in addition to the arguments.
        minimum_residual_bytes: the least that must be saved in addition to the arguments if only internals are
            recomputed; those that are smaller than the values they follow from (masks) need not be.
        argument_bytes: bytes of all arguments.
        equations: the number of equations of the program.
        peak: where the plain step needs most memory, and whether that place can run in slices; None where its peak is
            at no equation.
    """

    residuals: tuple[Residual, ...]
    saved_bytes: int
    minimum_residual_bytes: int
    argument_bytes: int
    equations: int
    peak: PeakPlace | None = None


def _place(eqn: Any) -> tuple[str, str]:
    file, line, function = _compat.source_line(eqn)
    return (f"{file}:{line}" if file else ""), function


def _place_inside(eqn: Any) -> tuple[str, str]:
    """Where what an equation runs inside stands: the lines of a scanned layer, say, not the line of the scan."""
    lines = defaultdict[tuple[str, str], list[int]](list)
    for file, line, function in map(_compat.source_line, equations_in(eqn)):
        if file:
            lines[file, function].append(line)
    if not lines:
        return _place(eqn)
    file, function = max(lines, key=lambda place: len(lines[place]))
    return lines_text(file, lines[file, function]), function


def analyze_graph(rules: Rules) -> Analysis:
    """Return the analysis of the graph that ``rules`` are of."""
    graph = rules.graph
    needed = all_residuals(graph)
    saved: dict[int, str] = {}
    readers: dict[int, str] = {}
    internals: list[Residual] = []
    for op in graph.ops:
        if not op.differentiated:
            continue
        need = graph.needs[op.kind]
        for side, position in need.direct:
            saved.setdefault(op.operands[position] if side == "in" else op.outputs[position], op.primitive)
        for v in residuals(graph, op):
            readers.setdefault(v, op.primitive)
        internals += _internals(op, need.internal_avals)
    read = sorted(v for v in {*saved, *needed} if v >= 0)  # literals have numbers below 0
    rows = [_value(graph, v, v in saved, v in needed, saved.get(v) or readers[v]) for v in read]
    made = [v for v in read if graph.values[v].producer >= 0]
    saved_bytes = sum(graph.values[v].size_bytes for v in made if v in saved) + sum(r.size_bytes for r in internals)
    return Analysis(
        residuals=tuple(sorted(rows + internals, key=lambda r: (-r.size_bytes, r.source, r.primitive, r.why))),
        saved_bytes=saved_bytes,
        minimum_residual_bytes=min(saved_bytes, sum(graph.values[v].size_bytes for v in made if v in needed)),
        argument_bytes=sum(graph.values[v].size_bytes for v in graph.inputs),
        equations=len(graph.ops),
        peak=_find_peak(rules),
    )


def _value(graph: Graph, v: int, saved: bool, needed: bool, read_by: str) -> Residual:
    value = graph.values[v]
    if value.producer >= 0:
        eqn = graph.ops[value.producer].eqn
        origin = (eqn.primitive.name, *_place(eqn))
    else:
        origin = ("constant" if v in {c for c, _ in graph.constants} else "argument", "", "")
    kind = (tuple(value.aval.shape), str(value.aval.dtype))
    return Residual(value.size_bytes, *kind, *origin, value.name, "value", needed, saved, read_by)


def _internals(op: Op, avals: Iterable[Any]) -> Iterator[Residual]:
    """The rows of what the derivative rule of an equation saves beside values of the program."""
    origin = (op.primitive, *_place_inside(op.eqn))
    for aval in avals:
        kind = (tuple(aval.shape), str(aval.dtype))
        yield Residual(_compat.aval_bytes(aval), *kind, *origin, "", "internal", False, True, op.primitive)


def _find_peak(rules: Rules) -> PeakPlace | None:
    """Return where the plain step of a loss has its peak; None where that is at no equation of the program."""
    graph = rules.graph
    timeline = StepProgram(rules).loss_timeline((as_is(0, len(graph.ops)),))
    place = timeline.places[timeline.peak_step] if timeline.live_bytes else ()
    if not place:
        return None
    op = graph.ops[place[0]]
    values = [graph.values[v] for v in (*op.reads, *op.outputs)]
    made = [value for value in values if value.producer >= 0 and _compat.is_float(value.aval)]
    told = timeline.peak_bytes, equation_text(op.eqn)
    if not made:
        return PeakPlace(*told, "", 0, None, 1)
    largest = max(made, key=lambda value: (value.size_bytes, -value.index))
    found = next(iter(lines_of(rules.borders, _stretch(graph, op, largest.producer), largest.index)), None)
    along = (None, 1) if found is None else (found.dimension, found.units)
    return PeakPlace(*told, value_text(graph, largest.index), largest.size_bytes, *along)


def _stretch(graph: Graph, op: Op, producer: int) -> Segment:
    """The equations around an operation and an earlier one, as far as none has an effect."""
    walls = [-1, *(o.index for o in graph.ops if o.effectful), len(graph.ops)]
    start = max(wall for wall in walls if wall < producer or wall == -1) + 1
    return Segment(start, min(wall for wall in walls if wall > op.index))
