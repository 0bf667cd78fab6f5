"""A schedule as rows for people: what is kept, what is run again, where in the source.

In: ``Graph``, the tree of segments. Out: ``Decision`` rows; equal neighbours are one row with a count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from remat_plan import _compat
from remat_plan.cost.rules import Kind, eqn_flops, kind_of
from remat_plan.graph.loops import Loop, loop_of
from remat_plan.graph.records import Graph
from remat_plan.planning.cuts import needed_values
from remat_plan.report.places import file_label
from remat_plan.rewrite.segments import LoopPlan, Segment


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done with one segment (or with ``count`` equal ones in a row).

    Attributes:
        count: how many equal segments follow each other.
        depth: 0 at the top level, one more inside each nested checkpoint.
        kind: that of the segment. Below a ``"loop"`` the rows, one deeper, are of one step of the scan; of a
            ``"written"`` one it is not told what the user's own regions keep and run again.
        equations: (first, one past the last) of the first of them.
        source: where its dearest equations stand, ``file.py:first-last``.
        kept_bytes: bytes kept for the backward pass, of one of them (values that leave it not counted).
        kept: texts of the largest kept values; of a loop, its trip count and its groups.
        recomputed_flops: of one of them.
    """

    count: int
    depth: int
    kind: str
    equations: tuple[int, int]
    source: str
    kept_bytes: int
    kept: tuple[str, ...]
    recomputed_flops: float

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @staticmethod
    def from_data(data: dict[str, Any]) -> Decision:
        """Read back what ``to_data`` returned."""
        return Decision(**{**data, "equations": tuple(data["equations"]), "kept": tuple(data["kept"])})


def value_text(graph: Graph, v: int) -> str:
    """One value as text: name or primitive, type, source line."""
    value = graph.values[v]
    if value.producer < 0:
        return f"argument {value.text}"
    eqn = graph.ops[value.producer].eqn
    label = f"{value.name!r}" if value.name else eqn.primitive.name
    place = line_text(eqn)
    return f"{label} {value.text}" + (f" {place}" if place else "")


def line_text(eqn: Any) -> str:
    """The user's source line of an equation as ``file.py:line``, or nothing."""
    file, line, _ = _compat.source_line(eqn)
    return f"{file_label(file)}:{line}" if file else ""


def _source(graph: Graph, start: int, end: int) -> str:
    lines: dict[str, list[int]] = {}
    for op in graph.ops[start:end]:
        if kind_of(op.eqn) >= Kind.OPAQUE or end - start < 4:
            file, line, _ = _compat.source_line(op.eqn)
            if file:
                lines.setdefault(file_label(file), []).append(line)
    if not lines:
        for op in graph.ops[start:end]:
            file, line, _ = _compat.source_line(op.eqn)
            if file:
                lines.setdefault(file_label(file), []).append(line)
    if not lines:
        return "-"
    file, numbers = max(lines.items(), key=lambda item: (len(item[1]), item[0]))
    low, high = min(numbers), max(numbers)
    return f"{file}:{low}" if low == high else f"{file}:{low}-{high}"


def _recomputed(graph: Graph, needed: frozenset[int], segment: Segment, saved: set[int]) -> float:
    """FLOPs that a ``"save"`` segment runs again: what is needed and not saved, and what that is made of."""
    inside = range(segment.start, segment.end)
    stack = []
    for index in inside:
        op = graph.ops[index]
        if op.differentiated:
            need = graph.needs[op.kind]
            stack += [op.operands[i] for i in need.operands] + [op.outputs[j] for j in need.outputs]
    again: set[int] = set()
    while stack:
        v = stack.pop()
        if v < 0 or v in saved:
            continue
        n = graph.values[v].producer
        if segment.start <= n < segment.end and n not in again:
            again.add(n)
            stack += graph.ops[n].reads
    return sum(eqn_flops(graph.ops[n].eqn) for n in again)


def decide(graph: Graph, schedule: Sequence[Segment]) -> tuple[Decision, ...]:
    """Return the rows of a schedule."""
    rows: list[Decision] = []
    needed = needed_values(graph)
    _collect(graph, needed, schedule, 0, rows)
    merged: list[Decision] = []
    for row in rows:
        merged.append(row)
        _merge_tail(merged)
    return tuple(merged)


def _collect(
    graph: Graph, needed: frozenset[int], schedule: Sequence[Segment], depth: int, rows: list[Decision]
) -> None:
    for s in schedule:
        if s.loop is not None:
            _collect_loop(graph, s, s.loop, depth, rows)
            continue
        saved = set(s.saved)
        largest = sorted(saved, key=lambda v: (-graph.values[v].size_bytes, v))
        flops = _recomputed(graph, needed, s, saved) if s.kind == "save" else 0.0
        if s.kind == "nest":
            flops = sum(eqn_flops(op.eqn) for op in graph.ops[s.start : s.end])
        rows.append(
            Decision(
                1,
                depth,
                s.kind,
                (s.start, s.end),
                _source(graph, s.start, s.end),
                sum(graph.values[v].size_bytes for v in saved),
                tuple(value_text(graph, v) for v in largest[:4]),
                flops,
            )
        )
        _collect(graph, needed, s.children, depth + 1, rows)


def _collect_loop(graph: Graph, s: Segment, plan: LoopPlan, depth: int, rows: list[Decision]) -> None:
    """Add the row of a scan, and those of its steps, one deeper: of one step each."""
    loop = loop_of(graph, graph.ops[s.start])
    needed = needed_values(loop.body)
    inside: list[Decision] = []
    share = loop.length / sum(part.count for part in plan.stretches)  # of the whole loop in the stretches: groups
    kept, again = 0, 0.0
    for part in plan.stretches:
        rows_before = len(inside)
        _collect(loop.body, needed, part.schedule, depth + 1, inside)
        own = inside[rows_before:]
        carry = 0 if part.schedule[0].kind == "plain" else _carry_bytes(loop)
        kept += part.count * (carry + sum(row.kept_bytes for row in own if row.depth == depth + 1))
        again += share * part.count * sum(row.recomputed_flops for row in own)
    if plan.groups:
        kept = plan.groups[0] * _carry_bytes(loop)
        again += len(plan.groups) * eqn_flops(graph.ops[s.start].eqn)
    text = loop_text(loop.length, plan)
    place = _source(graph, s.start, s.end)
    rows.append(Decision(1, depth, "loop", (s.start, s.end), place, kept, (text,), again))
    rows.extend(inside)


def _carry_bytes(loop: Loop) -> int:
    return sum(loop.body.values[v].size_bytes for v in loop.carries)


def loop_text(length: int, plan: LoopPlan) -> str:
    """How a scan is run, in words.

    >>> from remat_plan.rewrite.segments import Stretch
    >>> loop_text(12, LoopPlan((4,), (Stretch(3, (Segment(0, 5, "save"),)),)))
    'scan of 12 steps, in 4 groups of 3'
    """
    text = f"scan of {length} steps"
    for groups in plan.groups:
        divides, length = length % groups == 0, -(-length // groups)
        text += f", in {groups} groups of {'' if divides else 'up to '}{length}"
    if len(plan.stretches) > 1:
        text += f": {', then '.join(str(part.count) for part in plan.stretches)} (copies its inputs)"
    return text


def _same(a: Decision, b: Decision) -> bool:
    return (a.depth, a.kind, a.kept_bytes, a.recomputed_flops, a.kept, a.source) == (
        (b.depth, b.kind, b.kept_bytes, b.recomputed_flops, b.kept, b.source)
    )


def _merge_tail(rows: list[Decision]) -> None:
    """Fold the last row into the one before when they are equal neighbours."""
    if len(rows) < 2 or rows[-1].kind in ("nest", "loop") or not _same(rows[-2], rows[-1]):
        return
    last = rows.pop()
    first = rows.pop()
    rows.append(
        Decision(
            first.count + last.count,
            first.depth,
            first.kind,
            (first.equations[0], last.equations[1]),
            first.source,
            first.kept_bytes,
            first.kept,
            first.recomputed_flops,
        )
    )
