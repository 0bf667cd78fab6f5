"""The decisions of a plan as lines of a tree, in which what repeats is one line with a count.

In: ``Plan``. Out: ``Entry``s. Equal groups that follow each other are found by ``fold``, in a sequence of numbers that
are equal where subtrees are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from remat_plan.results.decisions import Decision, inside_of
from remat_plan.results.places import lines_text
from remat_plan.small.budget import format_bytes

if TYPE_CHECKING:
    from remat_plan.graph.schedule import Segment
    from remat_plan.results.plan import Plan

LONGEST = 64
"""Groups of more rows than this are not looked for: the search for them takes time in proportion."""


@dataclass(frozen=True, slots=True)
class Run:
    """``count`` equal groups of ``period`` rows each, from ``start`` to before ``end``."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.count

    @property
    def spared(self) -> int:
        """Lines that showing one group spares; a group of several rows takes a line more, for its count."""
        return self.period * (self.count - 1) - (self.period > 1 and self.count > 1)


def fold(ids: Sequence[int]) -> tuple[Run, ...]:
    """Cover all rows by runs.

    From the first row on, the run that spares the most lines is taken, unless a better one starts a row later
    (as matches are chosen in LZ77): few lines, not always the fewest. Takes O(rows * LONGEST).

    >>> fold([1, 2, 3, 2, 3, 2, 3, 4])
    (Run(start=0, period=1, count=1), Run(start=1, period=2, count=3), Run(start=7, period=1, count=1))
    """
    ids = list(ids)
    runs: list[Run] = []
    start = 0
    while start < len(ids):
        best = _best(ids, start)
        if best.count > 1 and best.end < len(ids) and _best(ids, start + 1).spared > best.spared:
            best = Run(start, 1, 1)
        runs.append(best)
        start = best.end
    return tuple(runs)


def _best(ids: list[int], start: int) -> Run:
    """The run from here on that spares the most lines; among equals the one of the shortest group."""
    best = Run(start, 1, 1)
    for period in range(1, min(LONGEST, (len(ids) - start) // 2) + 1):
        run = Run(start, period, _repeats(ids, start, period))
        if run.spared > best.spared:
            best = run
        if best.end == len(ids):
            break  # a longer group cannot spare more
    return best


def _repeats(ids: list[int], start: int, period: int) -> int:
    if ids[start] != ids[start + period]:
        return 1
    group, count = ids[start : start + period], 1
    while ids[start + count * period : start + (count + 1) * period] == group:
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the table of decisions.

    Attributes:
        indent: how deep it stands in the tree.
        count: how many equal ones (with all that stands below) follow each other.
        start, end: equations of all of them, the end not included.
        decision: of one of them; None: the lines below, one deeper, are repeated ``count`` times.
        opens: whether the lines below, one deeper, tell more of one of them.
    """

    indent: int
    count: int
    start: int
    end: int
    decision: Decision | None
    opens: bool

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing is done here; see ``Decision``."""
        return self.decision is not None and self.decision.is_unchanged

    @property
    def equations(self) -> str:
        return f"{self.start}-{self.end - 1}" if self.end - self.start > 1 else f"{self.start}"

    @property
    def source(self) -> str:
        return "" if self.decision is None else self.decision.source

    def action(self, room: int) -> str:
        """What is done, in words; a single saved value is named where there is room."""
        if self.decision is None:
            return f"{self.count} times:"
        return (self.names_value(room) or self.decision.action) + (":" if self.opens else "")

    def names_value(self, room: int) -> str:
        """What is done where only one value is saved, with its name; nothing where that needs more room."""
        d, value = self.decision, self.saved_values()
        text = d.action.replace("1 value", value, 1) if d else ""
        return text if d and d.values == 1 and not d.structured and value and len(text) <= room else ""

    def slicing(self, room: int | None = None) -> str:
        """Along which axis it runs slice by slice, what is added up, and how large the largest value is."""
        s = None if self.decision is None else self.decision.slicing
        if s is None:
            return ""
        file = self.source.partition(":")[0]
        sums = [f"{s.sums} {'value' if s.sums == 1 else 'values'}"] * (s.sums > 0 and not s.gradient_bytes)
        gradients = f"the {'gradient of 1 value' if s.gradients == 1 else f'gradients of {s.gradients} values'}"
        added = " and ".join([*sums, *[gradients] * (s.gradients > 0)])
        parts = [
            f"along dimension {s.dimension} of {s.value.replace(f' {file}:', ' :')}",
            f"largest value {format_bytes(s.whole_bytes)}, {format_bytes(s.slice_bytes)} in a slice",
            *([f"slices add up {added}"] if added else []),
        ]
        return "; ".join(parts)

    def saved_values(self, room: int | None = None) -> str:
        """The largest saved values, as many as there is room for, and how many others there are.

        The file of a value is left out where it is that of ``source``.
        """
        if self.decision is None:
            return ""
        file = self.source.partition(":")[0]
        counts = Counter(text.replace(f" {file}:", " :") for text in self.decision.saved)
        text, left = "", self.decision.values
        for value, count in counts.items():
            part = ("; " if text else "") + (value if count == 1 else f"{count} x {value}")
            rest = f"; {left - count} more" if left > count else ""
            if text and room is not None and len(text + part + rest) > room:
                break
            text, left = text + part, left - count
        return f"{text}; {left} more" if text and left > 0 else text


@dataclass(frozen=True, slots=True)
class _Node:
    """A segment with its decision and what is inside; nodes of equal numbers are told by one line."""

    equations: tuple[int, int]
    decision: Decision
    children: tuple[_Node, ...]
    number: int


def plan_entries(plan: Plan) -> tuple[Entry, ...]:
    """The table of decisions: a tree, as lines; equal neighbours and equal groups are folded."""
    each = iter([d for d in plan.decisions for _ in range(d.count)])
    written = plan.is_written  # whose segment does not know how many equations there are
    nodes = tuple(_Node(d.equations, d, (), 0) for d in each) if written else _nodes(plan.schedule, each, {})
    return _joined(_entries(nodes, 0))


def _nodes(schedule: Iterable[Segment], decisions: Iterator[Decision], numbers: dict[Any, int]) -> tuple[_Node, ...]:
    """Pair segments with their decisions, which stand in the same order; equal trees get equal numbers."""
    nodes = []
    for segment in schedule:
        decision = next(decisions, None)
        if decision is None:
            raise ValueError("this plan's decisions are not those of its schedule: there are fewer of them.")
        children = _nodes(inside_of(segment), decisions, numbers)
        if decision.slicing is not None:
            children = _of_one_slice(segment, children)
        key = (decision.like, tuple(c.number for c in children))
        where = (segment.start, segment.end)
        nodes.append(_Node(where, decision, children, numbers.setdefault(key, len(numbers))))
    return tuple(nodes)


def _of_one_slice(segment: Segment, children: tuple[_Node, ...]) -> tuple[_Node, ...]:
    """What is done with a slice, where all are run alike and nothing is done around them; none where JAX does it."""
    loops = [node for node in children if node.decision.structured and not node.decision.checkpointed]
    choices = [choice for inside in segment.way.sliced for _, choice in inside.choices]
    alike = len(choices) == 1 and len(choices[0].parts) == 1 and not choices[0].repeats
    if alike and all(node in loops or node.decision.is_unchanged for node in children):
        children = loops[0].children
    return () if all(node.decision.is_unchanged for node in children) else children


def _entries(nodes: Sequence[_Node], indent: int) -> Iterator[Entry]:
    for run in fold([n.number for n in nodes]):
        first, last = nodes[run.start], nodes[run.end - 1]
        start, end = first.equations[0], last.equations[1]
        if run.period > 1:
            yield Entry(indent, run.count, start, end, None, True)
            yield from _entries(nodes[run.start : run.start + run.period], indent + 1)
        else:
            yield Entry(indent, run.count, start, end, first.decision, bool(first.children))
            yield from _entries(first.children, indent + 1)


def _joined(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Make one line of neighbours that stay as they are: where one of them ends says nothing."""
    joined: list[Entry] = []
    for entry in entries:
        last = joined[-1] if joined else None
        if last and last.decision and last.indent == entry.indent and last.is_unchanged and entry.is_unchanged:
            decision = replace(last.decision, source=_both_sources(last, entry))
            joined[-1] = Entry(entry.indent, 1, last.start, entry.end, decision, False)
        else:
            joined.append(entry)
    return tuple(joined)


def _both_sources(one: Entry, other: Entry) -> str:
    """The lines of two entries that are in one file; else those of the one with more equations."""
    file, _, lines = one.source.rpartition(":")
    other_file, _, other_lines = other.source.rpartition(":")
    numbers = [int(n) for n in (*lines.split("-"), *other_lines.split("-")) if n]
    if file != other_file or not numbers:
        return max(one, other, key=lambda entry: entry.end - entry.start).source
    return lines_text(file, numbers)
