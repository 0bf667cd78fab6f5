"""Which equations of a segment run slice by slice along one axis, found from one value and one of its dimensions.

In: ``Borders``, a segment, a value that it makes and a dimension. Out: ``Apart``: what is in the loop
over slices and along which dimensions, what is made before it and what after, what slices read and what becomes of
their results; None where that value's own equation does not keep the dimension apart.

The axis spreads from the value both ways. Backwards, what a slice needs is made in the loop too where its equation
keeps the axis apart, else it is made whole before the loop and read slice by slice. Forwards, whatever reads a value of
the loop joins it as long as it keeps the axis apart, else it runs behind the loop. Where both disagree (something in
the loop needs a value whole that the loop makes), the equation in question is put outside, and the search starts again.

Limits: sums are joined by addition only. Segments with effects are not split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remat_plan.graph.axes import Axis, axis_of
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.uses import Borders
from remat_plan.graph.ways import Segment

_JOINS = ("add",)


@dataclass(frozen=True, slots=True)
class Apart:
    """The equations of a segment that run slice by slice, and those around them.

    Attributes:
        axes: (operation, its axis) of those in the loop, in order.
        before, after: operations that run before and behind it.
        rows: (value, dimension) that are read slice by slice; ``whole``: values that each slice reads.
        stacked: (value, dimension) that slices make and that are read behind the loop; ``sums``: those of which each
            slice makes a part.
        units: how many slices there can be at most.
    """

    axes: tuple[tuple[int, Axis], ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]
    whole: tuple[int, ...]
    stacked: tuple[tuple[int, int], ...]
    sums: tuple[int, ...]
    units: int

    def part(self, slices: int) -> int:
        """How many units a slice has, of which there are so many: two equal ones at least, and a rest behind them."""
        return min(-(-self.units // slices), self.units // 2)


class _Again(Exception):
    """Something was put outside of the loop: the search begins again."""


def find_apart(borders: Borders, segment: Segment, value: int, dimension: int) -> Apart | None:
    """Spread the axis of a value over the operations of a segment; see the module docstring.

    Done once for all numbers of slices.
    """
    known, key = borders.graph.bodies, (Apart, segment.start, segment.end, value, dimension)
    if key not in known:
        known[key] = _spread(borders, segment, value, dimension)
    return known[key]


def _spread(borders: Borders, segment: Segment, value: int, dimension: int) -> Apart | None:
    graph, ops = borders.graph, borders.operations(segment)
    if graph.values[value].producer not in ops or graph.values[value].aval.shape[dimension] < 2:
        return None
    if any(graph.ops[i].effectful for i in ops):
        return None
    spread = _Spread(graph, ops, value, dimension)
    while True:
        try:
            found = spread.run()
        except _Again:  # something is outside of the loop now that was not
            continue
        return _finished(graph, ops, frozenset(borders.interface(segment)[1]), *found) if found else None


@dataclass(frozen=True, slots=True)
class Line:
    """A dimension of a value that a segment can be split along.

    Attributes:
        whole_bytes: of the largest value that the segment makes and that stays whole.
        dimension: of the value.
        units: how many slices there can be at most.
    """

    whole_bytes: int
    dimension: int
    units: int


def lines_of(borders: Borders, segment: Segment, value: int) -> list[Line]:
    """Return the dimensions of a value that a segment can be split along, those that leave the least whole first."""
    values, lines = borders.graph.values, []
    for dimension in range(len(values[value].aval.shape)):
        apart = find_apart(borders, segment, value, dimension)
        if apart is not None and apart.units > 1:
            outside = [v for i in (*apart.before, *apart.after) for v in borders.graph.ops[i].outputs]
            whole = [values[v].size_bytes for v in (*outside, *[v for v, _ in apart.stacked])]
            lines.append(Line(max(whole, default=0), dimension, apart.units))
    return sorted(lines, key=lambda line: line.whole_bytes)


class _Spread:
    """One search. ``given`` are values that the loop reads and does not make, ``banned`` operations outside of it.

    ``touched`` are the operations that read or make what is known to be in the loop: of all others there is nothing to
    be seen.
    """

    def __init__(self, graph: Graph, ops: Sequence[int], value: int, dimension: int):
        self.graph, self.ops, self.value, self.dimension = graph, ops, value, dimension
        self.maker = {v: i for i in ops for v in graph.ops[i].outputs}
        self.readers: dict[int, list[int]] = {}
        for i in ops:
            for v in graph.ops[i].reads:
                self.readers.setdefault(v, []).append(i)
        self.extent = graph.values[value].aval.shape[dimension]
        self.known: dict[tuple[int | None, ...], Axis | None] = {}
        self.given: set[int] = set()
        self.banned: set[int] = set()

    def run(self) -> tuple[dict[int, Axis], list[int]] | None:
        """Return the axes of what is in the loop, and what runs behind it; None where nothing is."""
        self.axes: dict[int, Axis] = {}
        self.made: dict[int, int | str] = {}
        self.wanted = {self.value: self.dimension}
        self.touched = {self.maker[self.value]}
        self.forward = {self.value}
        changed = True
        while changed:
            changed = False
            for index in (*self.ops, *reversed(self.ops)):
                if index in self.touched and index not in self.axes and index not in self.banned:
                    changed |= self.visit(self.graph.ops[index])
        if self.maker[self.value] not in self.axes:
            return None
        after = self.behind()
        return None if after is None else (self.axes, after)

    def visit(self, op: Op) -> bool:
        """Put an operation into the loop if it keeps the axis apart; tell whether anything became known."""
        if not self.given.isdisjoint(op.outputs):
            return False
        operands = [self.made.get(v) for v in op.operands]
        results = [self.wanted.get(v) for v in op.outputs]
        if any(isinstance(d, str) for d in operands) or all(d is None for d in (*operands, *results)):
            return False
        key = op.index, *operands, *results
        if key not in self.known:  # each search after the first asks for most of it again
            self.known[key] = self.axis(op, operands, results)  # type: ignore[arg-type]
        axis = self.known[key]  # type: ignore[index]
        if axis is None or any(self.made.get(v, d) != d for v, d in zip(op.operands, axis.operands, strict=True)):
            if all(d is None for d in operands):
                self.given.update(v for v in op.outputs if v in self.wanted)
            else:
                self.leave_out(op)
            return True
        self.check_readers(op, operands)
        self.axes[op.index] = axis
        self.made.update(zip(op.outputs, axis.results, strict=True))
        self.touched.update(*[self.readers[v] for v in op.outputs if v in self.readers])
        if any(v in self.forward for v in op.reads):
            self.forward.update(op.outputs)
        for v, d in zip(op.operands, axis.operands, strict=True):
            if d is None or v not in self.maker or v in self.made or v in self.given:
                continue
            self.touched.add(self.maker[v])
            if self.wanted.setdefault(v, d) != d:
                self.given.add(v)
        return True

    def axis(self, op: Op, operands: Sequence[int | None], results: Sequence[int | None]) -> Axis | None:
        """The axis through an operation, if it is apart."""
        axis = axis_of(op.eqn, operands, results)
        if axis is None or (
            self.value in op.outputs and not isinstance(axis.results[op.outputs.index(self.value)], int)
        ):
            return None
        if any(isinstance(d, str) and d not in _JOINS for d in axis.results):
            return None
        sized = [*zip(op.operands, axis.operands, strict=True), *zip(op.outputs, axis.results, strict=True)]
        # A reshape to fewer, larger parts would leave fewer slices.
        values = self.graph.values
        fits = [values[v].aval.shape[d] % self.extent == 0 for v, d in sized if isinstance(d, int) and v >= 0]
        return axis if all(fits) else None

    def leave_out(self, op: Op) -> None:
        self.banned.add(op.index)
        self.given.update(op.outputs)

    def check_readers(self, op: Op, operands: Sequence[int | str | None]) -> None:
        """Where something in the loop reads a result whole, it is made outside."""
        outputs = set(op.outputs)
        for index in {i for v in outputs for i in self.readers.get(v, ()) if i in self.axes}:
            read = zip(self.graph.ops[index].operands, self.axes[index].operands, strict=True)
            if any(v in outputs and d is None for v, d in read):
                entering = {v for v, d in zip(op.operands, operands, strict=True) if d is not None} - self.forward
                if entering:
                    self.given |= entering
                else:
                    self.leave_out(op)
                raise _Again

    def behind(self) -> list[int] | None:
        """What reads the loop's results outside of it; None where the value cannot be made in the loop."""
        late, after = set(self.made), []
        for index in self.ops:
            op = self.graph.ops[index]
            if index not in self.axes and not late.isdisjoint(op.reads):
                after.append(index)
                late.update(op.outputs)
        late -= set(self.made)
        trouble = [i for i in self.axes if not late.isdisjoint(self.graph.ops[i].reads)]
        if not trouble:
            return after
        roots = self.sources({v for i in trouble for v in self.graph.ops[i].reads if v in late})
        if entering := roots - self.forward:
            self.given |= entering
        elif self.maker[self.value] in trouble:
            return None
        else:
            for i in trouble:
                self.leave_out(self.graph.ops[i])
        raise _Again

    def sources(self, values: set[int]) -> set[int]:
        """The values of the loop that some outside are made from."""
        stack, seen, roots = list(values), set(values), set()
        while stack:
            v = stack.pop()
            if v in self.made:
                roots.add(v)
            elif v in self.maker:
                new = [u for u in self.graph.ops[self.maker[v]].reads if u not in seen]
                seen.update(new)
                stack += new
        return roots


def _finished(
    graph: Graph, ops: Sequence[int], leaves: frozenset[int], axes: dict[int, Axis], after: Sequence[int]
) -> Apart:
    made: dict[int, int | str] = {}
    rows: dict[tuple[int, int], None] = {}
    whole: dict[int, None] = {}
    inside = {v for i in axes for v in graph.ops[i].outputs}
    order = [i for i in ops if i in axes]
    for index in order:
        op = graph.ops[index]
        made.update(zip(op.outputs, axes[index].results, strict=True))
        for v, d in zip(op.operands, axes[index].operands, strict=True):
            if v < 0 or v in inside:
                continue
            if d is None:
                whole[v] = None
            else:
                rows[v, d] = None
    read = leaves.union(*[graph.ops[i].reads for i in after])
    stacked = tuple([(v, d) for v, d in made.items() if isinstance(d, int) and v in read])
    sums = tuple([v for v, d in made.items() if isinstance(d, str) and v in read])
    sizes = [graph.values[v].aval.shape[d] for v, d in (*rows, *made.items()) if isinstance(d, int)]
    late = set(after)
    before = tuple([i for i in ops if i not in axes and i not in late])
    return Apart(
        tuple([(i, axes[i]) for i in order]),
        before,
        tuple(after),
        tuple(rows),
        tuple(whole),
        stacked,
        sums,
        math.gcd(*sizes),
    )
