"""The schedule as data: a tree of segments over the equations of the flattened program.

In: nothing. Out: ``Segment``, what a plan stores and ``rewrite.emit`` executes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_plan.graph.records import Graph

KINDS = ("plain", "save", "nest", "loop", "written")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of a scan that follow each other and are run alike.

    Attributes:
        count: how many.
        schedule: of the body.
    """

    count: int
    schedule: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """How a scan is run.

    Attributes:
        groups: how many groups the steps are in, at each level from the outermost; each group is under
            ``jax.checkpoint``, so that one carry is kept for it.
        stretches: the steps, in the order of the rows; where there are groups, one stretch: those of an innermost
            group (at most: a length that does not divide leaves shorter ones).
    """

    groups: tuple[int, ...]
    stretches: tuple[Stretch, ...]

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        stretches = [[s.count, [segment.to_data() for segment in s.schedule]] for s in self.stretches]
        return {"groups": list(self.groups), "stretches": stretches}

    @staticmethod
    def from_data(data: dict[str, Any]) -> LoopPlan:
        """Read back what ``to_data`` returned."""
        made = [Stretch(n, tuple(Segment.from_data(s) for s in segments)) for n, segments in data["stretches"]]
        return LoopPlan(tuple(data["groups"]), tuple(made))


@dataclass(frozen=True, slots=True)
class Segment:
    """Equations ``start .. end-1`` of the flattened program and how they are run.

    Attributes:
        start, end: equation numbers.
        kind: ``"plain"`` (no ``jax.checkpoint``), ``"save"`` (one ``jax.checkpoint`` that saves ``saved``), ``"nest"``
            (one ``jax.checkpoint`` that saves nothing, around ``children``), ``"loop"`` (a scan, run as ``loop``
            tells) or ``"written"`` (the whole program as the user wrote it, with its own ``jax.checkpoint`` regions;
            such a segment stands alone, since those regions need not lie between two equations of the flat program).
        saved: numbers of the values that are kept (``"save"`` only).
        children: segments inside (``"nest"`` only), covering the same equations.
        loop: of the one equation, a scan (``"loop"`` only).
    """

    start: int
    end: int
    kind: str
    saved: tuple[int, ...] = ()
    children: tuple[Segment, ...] = ()
    loop: LoopPlan | None = None

    def leaves(self) -> Iterator[Segment]:
        """Yield the segments without children, in order."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        data: dict[str, Any] = {"start": self.start, "end": self.end, "kind": self.kind}
        if self.saved:
            data["saved"] = list(self.saved)
        if self.children:
            data["children"] = [c.to_data() for c in self.children]
        if self.loop is not None:
            data["loop"] = self.loop.to_data()
        return data

    @staticmethod
    def from_data(data: dict[str, Any]) -> Segment:
        """Read back what ``to_data`` returned."""
        children = tuple(Segment.from_data(c) for c in data.get("children", ()))
        loop = LoopPlan.from_data(data["loop"]) if "loop" in data else None
        return Segment(data["start"], data["end"], data["kind"], tuple(data.get("saved", ())), children, loop)


def emptied(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return a schedule whose segments save nothing; those inside others stay as they are.

    >>> emptied((Segment(0, 4, "save", (2,)), Segment(4, 9, "plain")))[0].saved
    ()
    """
    return tuple(replace(s, saved=()) if s.kind == "save" else s for s in segments)


def as_written(count: int) -> tuple[Segment, ...]:
    """Return the schedule that leaves a program of ``count`` equations as its author wrote it."""
    return (Segment(0, count, "written"),)


def is_written(segments: Sequence[Segment]) -> bool:
    """Tell whether a schedule leaves the program as its author wrote it.

    >>> is_written(as_written(7))
    True
    """
    return len(segments) == 1 and segments[0].kind == "written"


def check_cover(segments: Sequence[Segment], start: int, end: int) -> None:
    """Raise ``ValueError`` unless segments follow each other from equation ``start`` to ``end``, at every level."""
    position = start
    for segment in segments:
        if segment.start != position or segment.end < segment.start or segment.kind not in KINDS:
            raise ValueError(
                f"segment {segment.kind!r} {segment.start}..{segment.end} cannot follow equation {position - 1}"
            )
        if (segment.kind == "loop") != (segment.loop is not None):
            raise ValueError(f"segment {segment.kind!r} {segment.start}..{segment.end} must be a loop with its plan")
        position = segment.end
        if segment.kind == "written" and len(segments) > 1:
            raise ValueError("a segment that is left as written must be the only one")
        if segment.kind == "nest":
            if is_written(segment.children):
                raise ValueError("a segment that is left as written must not be inside another one")
            check_cover(segment.children, segment.start, segment.end)
    if position != end:
        raise ValueError(f"segments end at equation {position} instead of {end}")


def interface(
    graph: Graph, segment: Segment, free: frozenset[int], last: Sequence[int], waits: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return what a segment reads, what it makes that is used later, and what passes through it.

    Args:
        graph, segment: the program and the segment.
        free: operations that every segment makes for itself.
        last: per value, the last operation that reads it.
        waits: values that pass through whether the segment reads them or not (see ``rewrite.order``).
    """
    reads: dict[int, None] = {}
    made: list[int] = []
    inside: set[int] = set()
    for index in range(segment.start, segment.end):
        if index in free:
            continue
        op = graph.ops[index]
        for v in op.reads:
            if v not in inside and graph.values[v].producer not in free:
                reads.setdefault(v)
        inside.update(op.outputs)
        made.extend(op.outputs)
    leaves = tuple(v for v in made if last[v] >= segment.end)
    through = dict.fromkeys(
        v for v in reads if last[v] >= segment.end and graph.values[v].producer >= 0 and graph.active[v]
    )
    through.update(dict.fromkeys(waits))
    reads.update(dict.fromkeys(waits))
    return tuple(reads), leaves, tuple(through)
