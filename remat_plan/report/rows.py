"""What a plan has to say, as rows; ``text`` and ``html`` only lay them out.

In: ``Plan``. Out: ``Fact`` (label, figure, share, remark), ``Entry`` (a line of the table of decisions, equal groups
folded), titles. Analyses are in ``residuals``, curves and comparisons in ``points``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from remat_plan.report.folding import fold
from remat_plan.results.decisions import Decision, inside_of
from remat_plan.results.plan import Plan
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.graph.schedule import Segment
    from remat_plan.results.step_report import StepReport
    from remat_plan.results.trace import MemoryTrace


def format_flops(flops: float) -> str:
    """Return FLOPs in decimal units with three digits.

    >>> format_flops(7_324_106_758)
    '7.32 GFLOP'
    """
    size = float(flops)
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if abs(size) < 999.5:
            return f"{size:.0f} FLOP" if unit == "FLOP" else f"{size:.3g} {unit}"
        size /= 1000.0
    return f"{size:.3g} PFLOP"


def number_of(count: int, noun: str) -> str:
    """``1 value``, ``2 values``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a summary; ``share`` is, of peaks, of the function as written, else of the plain step."""

    label: str
    figure: str
    share: float | None
    remark: str = ""


def plan_title(plan: Plan) -> str:
    """What the plan is for."""
    seconds = f", planned in {plan.planning_seconds:.1f} s" if plan.planning_seconds else ""
    return f"Plan for {plan.target}: program {plan.fingerprint}, strategy {plan.strategy}{seconds}"


def _budget_fact(plan: Plan) -> Fact:
    if plan.budget_bytes is None:
        return Fact("budget", "none", None)
    share = plan.budget_bytes / max(plan.written_peak_bytes, 1)
    return Fact("budget", format_bytes(plan.budget_bytes), share, f"asked for: {plan.budget}")


def budget_text(plan: Plan) -> str:
    """The budget in bytes, or that there was none."""
    return "none" if plan.budget_bytes is None else format_bytes(plan.budget_bytes)


def plan_facts(plan: Plan) -> list[Fact]:
    """The figures of a plan: peaks, overhead, gap, FLOPs."""
    word = "compiled" if plan.compiled_peak_bytes is not None else "predicted"
    written = plan.written_peak_bytes

    def peak(label: str, size_bytes: int, remark: str = "") -> Fact:
        return Fact(label, format_bytes(size_bytes), size_bytes / max(written, 1), remark)

    if plan.has_own_remat:
        unplanned = [
            peak("peak as written", written, f"{word}; with jax.checkpoint regions of its own"),
            peak("plain peak", plan.plain_peak_bytes, f"{word}; without them"),
        ]
    else:
        unplanned = [peak("plain peak", plan.plain_peak_bytes, word)]
    facts = [
        *unplanned,
        _budget_fact(plan),
        peak("predicted peak", plan.predicted_peak_bytes),
    ]
    if plan.compiled_peak_bytes is None:
        facts.append(Fact("compiled peak", "-", None, "not compiled (verify=False)"))
    elif plan.budget_bytes is None:
        facts.append(peak("compiled peak", plan.compiled_peak_bytes))
    else:
        spare = plan.budget_bytes - plan.compiled_peak_bytes
        remark = f"{format_bytes(abs(spare))} {'to spare' if spare >= 0 else 'above the budget'}"
        facts.append(peak("compiled peak", plan.compiled_peak_bytes, remark))
    flops = plan.step_flops / plan.plain_flops if plan.plain_flops else None
    return [
        *facts,
        overhead_fact(*best_overhead(plan), plan.step_flops > plan.plain_flops),
        *_written_facts(plan),
        *_gap_facts(plan),
        Fact("FLOPs, plain", format_flops(plan.plain_flops), 1.0 if plan.plain_flops else None),
        Fact("FLOPs, planned", format_flops(plan.step_flops), flops),
    ]


def best_overhead(result: Plan | StepReport) -> tuple[float, str]:
    """The overhead that is known best, and whose it is: the clock's, the compiler's, or else the evaluator's."""
    rows = result.search.rows if isinstance(result, Plan) and not result.is_identity else ()  # else it is noise
    measured = next((row.measured_overhead for row in rows if row.chosen), None)
    known = ((measured, "measured"), (result.compiled_overhead, "compiled"), (result.overhead, "predicted"))
    return next((overhead, source) for overhead, source in known if overhead is not None)


def overhead_fact(overhead: float, source: str, recomputes: bool, of: str = "the plain step") -> Fact:
    """The one figure for time; where recomputing costs none, in words why that may be."""
    words = f"extra seconds over those of {of}"
    if f"{abs(overhead):.1%}" == "0.0%":
        words = "recomputing is free here, with less memory traffic" if recomputes else words
    elif overhead < 0:
        words = f"faster than {of}, with less memory traffic"
    return Fact("overhead", "", overhead, f"{source}: {words}")


def _gap_facts(plan: Plan) -> list[Fact]:
    """How far the overhead is above the certified lower bound; nothing where the bound says nothing."""
    if plan.lower_bound <= 0 or plan.overhead <= 0:
        return []
    within = "at this peak" if plan.budget_bytes is None else "within the budget"
    return [Fact("gap", "", plan.gap, f"predicted: no schedule {within} can be faster by more")]


def _written_facts(plan: Plan) -> list[Fact]:
    """Seconds and FLOPs of the function as written, where it has ``jax.checkpoint`` regions of its own."""
    if plan.written_overhead is None or plan.written_flops is None:
        return []
    share = plan.written_flops / plan.plain_flops if plan.plain_flops else None
    return [
        Fact("overhead as written", "", plan.written_overhead, "predicted: the same of the function as written"),
        Fact("FLOPs, as written", format_flops(plan.written_flops), share),
    ]


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
        """Whether nothing is done here: no checkpoint, nothing planned inside."""
        d = self.decision
        return d is not None and not (self.opens or d.checkpointed or d.structured) and d.saved_bytes is None

    @property
    def source(self) -> str:
        """The lines of one of them."""
        return "" if self.decision is None else self.decision.source

    def action(self, room: int = 0) -> str:
        """What is done, in words; a single saved value is named where there is room."""
        if self.decision is None:
            return f"{self.count} times:"
        if self.names_value(room):
            return _SAVE_ONE.format(self.saved_values())
        return self.decision.action + (":" if self.opens else "")

    def names_value(self, room: int) -> bool:
        """Whether ``action`` names the only value that is saved."""
        d = self.decision
        if d is None or d.values != 1 or d.structured:
            return False
        return bool(self.saved_values()) and len(_SAVE_ONE.format(self.saved_values())) <= room

    @property
    def equations(self) -> str:
        """The equations as ``first-last``."""
        return f"{self.start}-{self.end - 1}" if self.end - self.start > 1 else f"{self.start}"

    @property
    def saved(self) -> str:
        """Bytes that one of them saves."""
        if self.decision is None:
            return ""
        return "-" if self.decision.saved_bytes is None else format_bytes(self.decision.saved_bytes)

    @property
    def recomputed(self) -> str:
        """FLOPs that one of them recomputes."""
        if self.decision is None:
            return ""
        return format_flops(self.decision.recomputed_flops) if self.decision.recomputed_flops else "-"

    def saved_values(self, room: int | None = None) -> str:
        """The largest saved values, as many as there is room for, and how many others there are.

        The file of a value is left out where it is that of ``source``.
        """
        if self.decision is None:
            return ""
        file = self.decision.source.partition(":")[0]
        counts = Counter(text.replace(f" {file}:", " :") for text in self.decision.saved)
        text, left = "", self.decision.values
        for value, count in counts.items():
            part = ("; " if text else "") + (value if count == 1 else f"{count} x {value}")
            rest = f"; {left - count} more" if left > count else ""
            if text and room is not None and len(text + part + rest) > room:
                break
            text, left = text + part, left - count
        return f"{text}; {left} more" if text and left > 0 else text


_SAVE_ONE = "save {}, recompute the rest"


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
    nodes = _nodes(plan.schedule, each, {})
    if plan.is_written:
        nodes = tuple(_Node(d.equations, d, (), 0) for d in each)
    return tuple(_joined(_entries(nodes, 0)))


def _joined(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Make one line of neighbours that stay as they are: where one of them ends says nothing."""
    last: Entry | None = None
    for entry in entries:
        decision = None if last is None or last.indent != entry.indent else last.decision
        if last is not None and decision is not None and last.is_unchanged and entry.is_unchanged:
            decision = replace(decision, source=_both_sources(last, entry))
            last = Entry(entry.indent, 1, last.start, entry.end, decision, False)
            continue
        if last is not None:
            yield last
        last = entry
    if last is not None:
        yield last


def _both_sources(one: Entry, other: Entry) -> str:
    """The lines of two entries that are in one file; else those of the one with more equations."""
    file, _, lines = one.source.rpartition(":")
    other_file, _, other_lines = other.source.rpartition(":")
    numbers = [int(n) for n in (*lines.split("-"), *other_lines.split("-")) if n]
    if file != other_file or not numbers:
        return max(one, other, key=lambda entry: entry.end - entry.start).source
    first, last = min(numbers), max(numbers)
    return f"{file}:{first}-{last}" if last > first else f"{file}:{first}"


def _nodes(schedule: Iterable[Segment], decisions: Iterator[Decision], numbers: dict[Any, int]) -> tuple[_Node, ...]:
    """Pair segments with their decisions, which stand in the same order; equal trees get equal numbers."""
    nodes = []
    for segment in schedule:
        decision = next(decisions, None)
        if decision is None:
            raise ValueError("this plan's decisions are not those of its schedule: there are fewer of them.")
        children = _nodes(inside_of(segment), decisions, numbers)
        key = (decision.like, tuple(c.number for c in children))
        where = (segment.start, segment.end)
        nodes.append(_Node(where, decision, children, numbers.setdefault(key, len(numbers))))
    return tuple(nodes)


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


def shares(trace: MemoryTrace) -> tuple[float, ...]:
    """Where the points of a trace are in the step, 0 to 100: plain and planned steps differ in length."""
    return tuple(100.0 * p / max(trace.steps - 1, 1) for p in trace.positions)


def compiled_peaks(plan: Plan) -> list[tuple[float, int, str]]:
    """Where in the step, 0 to 100, the peaks of both steps are predicted; what the compiler says of them; whose."""
    if plan.compiled_peak_bytes is None:
        return []
    both = (
        (plan.plain_timeline, plan.plain_peak_bytes, "plain"),
        (plan.planned_timeline, plan.compiled_peak_bytes, "planned"),
    )
    return [(shares(t)[t.live_bytes.index(max(t.live_bytes))], size_bytes, word) for t, size_bytes, word in both]


def memory_high(plan: Plan) -> float:
    """The most bytes that a picture of the step shows: a budget far above the peaks would flatten them."""
    compiled = [size_bytes for _, size_bytes, _ in compiled_peaks(plan)]
    peak = max(plan.plain_timeline.peak_bytes, plan.planned_timeline.peak_bytes, *compiled, 1)
    budget = plan.budget_bytes if plan.budget_bytes is not None else 0
    return 1.06 * (max(peak, budget) if budget <= 1.5 * peak else peak)
