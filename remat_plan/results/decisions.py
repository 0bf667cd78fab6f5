"""A schedule as rows for people: what is saved, what is recomputed, where in the source.

In: ``Graph``, the tree of segments. Out: ``Decision`` rows; equal neighbours are one row with a count.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from remat_plan import _compat
from remat_plan.cost.rules import Kind, eqn_flops, kind_of
from remat_plan.graph.action import action_of
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Segment, inside_of, is_written
from remat_plan.graph.slices import region_of, sliced
from remat_plan.graph.structure import structure_of
from remat_plan.graph.uses import Borders, makers, residuals
from remat_plan.graph.ways import Split
from remat_plan.results.places import file_label, lines_text, value_text


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


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done with one segment (or with ``count`` equal ones in a row).

    Attributes:
        count: how many equal segments follow each other.
        depth: 0 at the top level, one more inside each nested checkpoint, and inside each loop, branch and split
            segment.
        action: what is done, in words.
        equations: (first, one past the last) of all of them.
        source: where the expensive equations of the first stand, ``file.py:first-last``.
        checkpointed: whether each is under a ``jax.checkpoint`` of its own.
        nested: whether the rows below, one deeper, are segments inside it.
        structured: whether it has loops or branches that are planned inside, or is a loop over slices: the rows below,
            one deeper, are of one run of a region.
        values: how many values one of them saves, those inside loops and branches not counted.
        saved: texts of the largest of these values; what goes to the host comes first.
        saved_bytes: bytes on the device that one of them saves for the backward pass (values that leave it not
            counted); None where the plan does not say: it is left to JAX, or the rows below tell.
        host_bytes: bytes in the host's memory that one of them keeps there; of a loop in groups of steps, what a group
            does while it is recomputed.
        recomputed_flops: of one of them.
        slicing: how it runs slice by slice; None where it does not.
    """

    count: Annotated[int, 1]
    depth: int
    action: str
    equations: tuple[int, int]
    source: str
    checkpointed: bool = False
    nested: bool = False
    structured: bool = False
    values: int = 0
    saved: tuple[str, ...] = ()
    saved_bytes: int | None = None
    host_bytes: int = 0
    recomputed_flops: float = 0.0
    slicing: Slicing | None = None

    @property
    def like(self) -> Decision:
        """The same without its place: equal for segments that one row can stand for."""
        return replace(self, count=1, equations=(0, 0))

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing is done here: no checkpoint, no slices, nothing planned inside."""
        changed = self.checkpointed or self.structured or self.slicing is not None
        return not changed and self.saved_bytes is None


def _source(graph: Graph, start: int, end: int) -> str:
    """The lines of the expensive equations, or of all where there are none, in the file that most of them stand in."""
    ops = graph.ops[start:end]
    expensive = [op for op in ops if kind_of(op.eqn) >= Kind.OPAQUE or len(ops) < 4]
    lines = _lines(expensive) or _lines(ops)
    if not lines:
        return "-"
    return lines_text(*max(lines.items(), key=lambda item: (len(item[1]), item[0])))


def _lines(ops: Iterable[Op]) -> dict[str, list[int]]:
    lines = defaultdict[str, list[int]](list)
    for file, line, _ in (_compat.source_line(op.eqn) for op in ops):
        if file:
            lines[file_label(file)].append(line)
    return lines


def _recomputed(graph: Graph, segment: Segment, saved: set[int]) -> float:
    """FLOPs that a checkpointed segment recomputes: what is needed and not saved, and what that is made of."""
    needed = [v for op in graph.ops[segment.start : segment.end] for v in residuals(graph, op)]
    return sum(eqn_flops(graph.ops[n].eqn) for n in makers(graph, needed, saved, segment.start))


def decide(graph: Graph, schedule: Sequence[Segment]) -> tuple[Decision, ...]:
    """Return the rows of a schedule; equal neighbours are one row with a count."""
    if is_written(schedule):
        return (Decision(1, 0, "left as written", (0, len(graph.ops)), _source(graph, 0, len(graph.ops))),)
    return tuple(_merged(_collect(graph, schedule, 0)))


def count_segments(schedule: Sequence[Segment]) -> int:
    """How many segments ``decide`` tells of: all, at every level."""
    return sum(1 + count_segments(inside_of(s)) for s in schedule)


def segment_action(segment: Segment, structures: Sequence[str] = ()) -> str:
    """What is done with a segment, in words; ``structures`` are how loops and branches in it are run.

    >>> from remat_plan.graph.schedule import as_is, saving
    >>> segment_action(saving(0, 9, {3: "save", 4: "offload", 5: "save"}))
    'save 2 values, offload 1 value, recompute the rest'
    >>> segment_action(as_is(0, 1), ["scan of 12 steps, each recomputed"])
    'scan of 12 steps, each recomputed'
    """
    own, inside = segment.way.describe(), "; ".join(structures)
    if not inside:
        return own
    return f"{own}; {inside}" if segment.checkpointed or segment.end - segment.start > 1 else inside


def _collect(graph: Graph, schedule: Sequence[Segment], depth: int) -> list[Decision]:
    """One row for each segment, and behind it those of what is inside, deeper."""
    rows: list[Decision] = []
    for s in schedule:
        if s.way.sliced:
            rows += _split(graph, s, depth)
            continue
        figures, texts = _own(graph, s)
        structures, inside = list[str](), list[Decision]()
        for index, choice in s.choices:
            of_structure, words, below = _collect_structure(graph, graph.ops[index], choice, depth)
            figures = figures.plus(of_structure)
            structures.append(words)
            inside += below
        nested, told = bool(s.children), bool(structures) or (s.checkpointed and not s.children)
        rows.append(
            Decision(
                count=1,
                depth=depth,
                action=segment_action(s, structures),
                equations=(s.start, s.end),
                source=_source(graph, s.start, s.end),
                checkpointed=s.checkpointed,
                nested=nested,
                structured=bool(structures),
                values=len(s.saved),
                saved=texts,
                saved_bytes=int(figures.saved_bytes) if told else None,
                host_bytes=int(figures.host_bytes),
                recomputed_flops=float(figures.recomputed_flops),
            )
        )
        rows += [*inside, *_collect(graph, s.children, depth + 1)]
    return rows


def _split(graph: Graph, s: Segment, depth: int) -> list[Decision]:
    """The rows of a split segment: its own, and one deeper those of the region that it is run as."""
    borders = Borders(graph)
    slicing, inside = _slicing(borders, s), _collect(*region_of(borders, s), depth + 1)
    own = [row for row in inside if row.depth == depth + 1]
    kept = [row.saved_bytes for row in own if row.saved_bytes is not None]
    row = Decision(
        count=1,
        depth=depth,
        action=segment_action(s),
        equations=(s.start, s.end),
        source=_source(graph, s.start, s.end),
        structured=any(row.structured for row in own),
        saved_bytes=sum(kept) if kept else None,
        host_bytes=sum(row.host_bytes for row in own),
        recomputed_flops=sum(row.recomputed_flops for row in own),
        slicing=slicing,
    )
    return [row, *inside]


def _slicing(borders: Borders, segment: Segment) -> Slicing:
    """Return how a split segment runs; ``graph.valid`` has found that it can."""
    way, values = segment.way, borders.graph.values
    assert isinstance(way, Split)
    found = sliced(borders, segment, way)
    assert found is not None
    apart, moving = found.apart, borders.graph.moving
    made = {v for i, axis in apart.axes for v in borders.graph.ops[i].outputs}.difference(apart.sums)
    inside = made.difference([v for v, _ in apart.stacked]) or made
    part = apart.part(way.slices)
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


class _Figures(NamedTuple):
    """What a segment, or all runs of a structure, come to."""

    saved_bytes: float = 0
    host_bytes: float = 0
    recomputed_flops: float = 0

    def plus(self, other: _Figures) -> _Figures:
        """Both together."""
        return _Figures._make(map(sum, zip(self, other, strict=True)))

    def times(self, count: float) -> _Figures:
        """So many of it."""
        return _Figures._make([count * figure for figure in self])


def _own(graph: Graph, s: Segment) -> tuple[_Figures, tuple[str, ...]]:
    """The figures of one segment, structures left out, and texts of the largest values that it keeps."""
    saved, moved = set(s.saved), s.hosted
    flops = 0.0
    if s.children:
        flops = sum(eqn_flops(op.eqn) for op in graph.ops[s.start : s.end])
    elif s.checkpointed:
        flops = _recomputed(graph, s, saved)
    size = sum(action_of(action).device_bytes(graph.values[v].size_bytes) for v, action in s.actions)
    apart = moved if moved < saved else set()  # where all of them are, the action says so
    first = sorted(saved, key=lambda v: (v not in apart, -graph.values[v].size_bytes, v))
    texts = [value_text(graph, v) + " on the host" * (v in apart) for v in first[:4]]
    return _Figures(size, _bytes(graph, moved), flops), tuple(texts)


def _bytes(graph: Graph, values: Iterable[int]) -> int:
    return sum(graph.values[v].size_bytes for v in values)


def _collect_structure(graph: Graph, op: Op, choice: Choice, depth: int) -> tuple[_Figures, str, list[Decision]]:
    """What all runs of a structure come to, how it is run in words, and the rows of its regions, of one run each."""
    structure = structure_of(op)
    assert structure is not None
    regions, counts = structure.regions(graph, op), structure.run_counts(op)
    loop = structure.loop(graph, op)
    carry_bytes = 0 if loop is None else loop.carry_bytes
    found, rows = _Figures(), list[Decision]()
    for number, part in enumerate(choice.parts):
        region = regions[number if len(regions) > 1 else 0]
        inside = _collect(region, part.schedule, depth + 1)
        rows += inside
        own = [row for row in inside if row.depth == depth + 1]
        each = _Figures(
            sum(row.count * (row.saved_bytes or 0) for row in own),
            sum(row.count * row.host_bytes for row in own),
            sum(row.count * row.recomputed_flops for row in own),
        )
        if choice.gradient_first:  # of one step at a time, but for the gradients
            gradients = _bytes(graph, [v for v, active in zip(op.operands, op.active, strict=True) if active])
            found = _Figures(gradients + each.saved_bytes, each.host_bytes, part.count * each.recomputed_flops)
        elif part.groups:
            again = len(part.groups) * eqn_flops(op.eqn) * part.count / max(counts[0], 1)
            at_a_time = functools.reduce(lambda count, groups: -(-count // groups), part.groups, part.count)
            kept = part.groups[0] * carry_bytes
            again += part.count * each.recomputed_flops
            found = found.plus(_Figures(kept, at_a_time * each.host_bytes, again))
        else:
            first = part.schedule[0]
            carry = carry_bytes - _bytes(region, first.hosted & {*region.carried}) if first.checkpointed else 0
            found = found.plus(each.plus(_Figures(carry)).times(part.count))
    return found, structure.describe(graph, op, choice), rows


def _merged(rows: Iterable[Decision]) -> list[Decision]:
    """The rows, equal neighbours as one, unless rows below tell more of them."""
    merged: list[Decision] = []
    for row in rows:
        if merged and not (row.nested or row.structured) and merged[-1].like == row.like:
            last = merged.pop()
            where = (last.equations[0], row.equations[1])
            row = replace(last, count=last.count + row.count, equations=where)
        merged.append(row)
    return merged
