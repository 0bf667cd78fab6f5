"""What a plan or an analysis has to say, as rows; ``text`` and ``html`` only lay them out.

In: ``Plan``, ``Analysis``. Out: ``Fact`` (label, figure, share, remark), ``Entry`` (a line of the table of decisions,
equal groups folded), ``ResidualGroup`` (equal residuals together), titles. Curves and comparisons are in ``points``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remat_plan.report.folding import fold
from remat_plan.report.places import file_label
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.plan import Plan
    from remat_plan.report.analysis import Analysis, Residual
    from remat_plan.report.decisions import Decision
    from remat_plan.report.trace import MemoryTrace
    from remat_plan.rewrite.segments import Segment


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
    """One line of a summary; ``share`` is of the baseline: for peaks the function as written, else the plain step."""

    label: str
    figure: str
    share: float | None
    remark: str = ""


def plan_title(plan: Plan) -> str:
    """What the plan is for."""
    made = f", made in {plan.planning_seconds:.1f} s" if plan.planning_seconds else ""
    return f"Plan for {plan.target}: program {plan.fingerprint}, strategy {plan.strategy}{made}"


def _budget_fact(plan: Plan) -> Fact:
    if plan.budget_bytes is None:
        return Fact("budget", "none", None, "the strategy was taken as it is")
    share = plan.budget_bytes / max(plan.baseline_peak_bytes, 1)
    return Fact("budget", format_bytes(plan.budget_bytes), share, f"asked for: {plan.budget}")


def budget_text(plan: Plan) -> str:
    """The budget in bytes, or that there was none."""
    return "none" if plan.budget_bytes is None else format_bytes(plan.budget_bytes)


def plan_facts(plan: Plan) -> list[Fact]:
    """The figures of a plan: peaks, overhead, gap, FLOPs."""
    word = "compiled" if plan.compiled_peak_bytes is not None else "predicted"
    baseline = plan.baseline_peak_bytes

    def peak(label: str, size_bytes: int, remark: str = "") -> Fact:
        return Fact(label, format_bytes(size_bytes), size_bytes / max(baseline, 1), remark)

    if plan.plain_peak_bytes is None:
        before = [peak("plain peak", baseline, word)]
    else:
        before = [
            peak("peak as written", baseline, f"{word}; with jax.checkpoint regions of its own"),
            peak("plain peak", plan.plain_peak_bytes, f"{word}; without them"),
        ]
    facts = [
        *before,
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
    within = "this peak" if plan.budget_bytes is None else "the budget"
    return [
        *facts,
        Fact("overhead", "", plan.overhead, "recomputed seconds over seconds of the plain step (predicted)"),
        *_written_facts(plan),
        Fact("gap", "", plan.gap, f"at most this much above what any schedule within {within} needs"),
        Fact("FLOPs, plain", format_flops(plan.plain_flops), 1.0 if plan.plain_flops else None),
        Fact("FLOPs, planned", format_flops(plan.step_flops), flops),
    ]


def _written_facts(plan: Plan) -> list[Fact]:
    """Seconds and FLOPs of the function as written, where it has ``jax.checkpoint`` regions of its own."""
    if plan.written_overhead is None or plan.written_flops is None:
        return []
    share = plan.written_flops / plan.plain_flops if plan.plain_flops else None
    return [
        Fact("overhead as written", "", plan.written_overhead, "the same of the function as written (predicted)"),
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
        values: how many values one of them keeps.
    """

    indent: int
    count: int
    start: int
    end: int
    decision: Decision | None
    values: int

    def action(self, room: int = 0) -> str:
        """What is done, in words; a single kept value is named where there is room."""
        if self.decision is None:
            return f"{self.count} times:"
        if self.decision.kind == "plain":
            return "left as it is"
        if self.decision.kind == "written":
            return "left as written, with jax.checkpoint regions of its own"
        if self.decision.kind == "nest":
            return "checkpoint around:"
        if self.decision.kind == "loop":
            return f"{self.decision.kept[0]}:"
        if not self.values:
            return "recompute all"
        if self.names_value(room):
            return f"keep {self.kept_values()}, recompute the rest"
        return f"keep {number_of(self.values, 'value')}, recompute the rest"

    def names_value(self, room: int) -> bool:
        """Whether ``action`` names the only value that is kept."""
        return self.values == 1 and 0 < len(self.kept_values()) <= room - len("keep , recompute the rest")

    @property
    def equations(self) -> str:
        """The equations as ``first-last``."""
        return f"{self.start}-{self.end - 1}" if self.end - self.start > 1 else f"{self.start}"

    @property
    def kept(self) -> str:
        """Bytes that one of them keeps."""
        if self.decision is None or self.decision.kind in ("nest", "written"):
            return ""
        return "-" if self.decision.kind == "plain" else format_bytes(self.decision.kept_bytes)

    @property
    def recomputed(self) -> str:
        """FLOPs that one of them runs again."""
        if self.decision is None or self.decision.kind == "written":
            return ""
        return format_flops(self.decision.recomputed_flops) if self.decision.recomputed_flops else "-"

    def kept_values(self, room: int | None = None) -> str:
        """The largest kept values, as many as there is room for, and how many others there are.

        The file of a value is left out where it is that of ``source``.
        """
        if self.decision is None or self.decision.kind == "loop":
            return ""
        file = self.decision.source.partition(":")[0]
        counts = Counter(text.replace(f" {file}:", " :") for text in self.decision.kept)
        text, left = "", self.values
        for value, count in counts.items():
            part = ("; " if text else "") + (value if count == 1 else f"{count} x {value}")
            rest = f"; {left - count} more" if left > count else ""
            if text and room is not None and len(text + part + rest) > room:
                break
            text, left = text + part, left - count
        return f"{text}; {left} more" if text and left > 0 else text


@dataclass(frozen=True, slots=True)
class _Node:
    segment: Segment
    decision: Decision
    children: tuple[_Node, ...]
    number: int


def plan_entries(plan: Plan) -> tuple[Entry, ...]:
    """The table of decisions: a tree, as lines; equal neighbours and equal groups are folded."""
    each = iter([d for d in plan.decisions for _ in range(d.count)])
    nodes = _nodes(plan.schedule, each, {})
    return tuple(_entries(nodes, 0))


def _nodes(schedule: Iterable[Segment], decisions: Iterator[Decision], numbers: dict[Any, int]) -> tuple[_Node, ...]:
    """Pair segments with their decisions, which stand in the same order; equal trees get equal numbers."""
    nodes = []
    for segment in schedule:
        decision = next(decisions, None)
        if decision is None:
            raise ValueError("this plan's decisions are not those of its schedule: there are fewer of them.")
        steps = [s for part in segment.loop.stretches for s in part.schedule] if segment.loop is not None else []
        children = _nodes((*segment.children, *steps), decisions, numbers)
        d = decision
        key = (d.kind, d.kept_bytes, d.recomputed_flops, d.kept, d.source, tuple(c.number for c in children))
        nodes.append(_Node(segment, decision, children, numbers.setdefault(key, len(numbers))))
    return tuple(nodes)


def _entries(nodes: Sequence[_Node], indent: int) -> Iterator[Entry]:
    for run in fold([n.number for n in nodes]):
        first, last = nodes[run.start], nodes[run.end - 1]
        start, end = first.segment.start, last.segment.end
        if run.period > 1:
            yield Entry(indent, run.count, start, end, None, 0)
            yield from _entries(nodes[run.start : run.start + run.period], indent + 1)
        else:
            yield Entry(indent, run.count, start, end, first.decision, len(first.segment.saved))
            yield from _entries(first.children, indent + 1)


def shares(trace: MemoryTrace) -> tuple[float, ...]:
    """Where the points of a trace are in the step, 0 to 100: plain and planned steps differ in length."""
    return tuple(100.0 * p / max(trace.steps - 1, 1) for p in trace.positions)


def memory_high(plan: Plan) -> float:
    """The most bytes that a picture of the step shows: a budget far above the peaks would flatten them."""
    peak = max(plan.before.peak_bytes, plan.after.peak_bytes, 1)
    budget = plan.budget_bytes if plan.budget_bytes is not None else 0
    return 1.06 * (max(peak, budget) if budget <= 1.5 * peak else peak)


@dataclass(frozen=True, slots=True)
class ResidualGroup:
    """Equal rows of an analysis."""

    count: int
    row: Residual

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return self.count * self.row.size_bytes

    @property
    def label(self) -> str:
        """The user's name, or what makes it."""
        return repr(self.row.name) if self.row.name else self.row.primitive

    @property
    def type(self) -> str:
        """Type and shape, as ``float32[8,512]``."""
        return f"{self.row.dtype}[{','.join(map(str, self.row.shape))}]"

    @property
    def status(self) -> str:
        """Kept, needed, or both, and by whose backward pass; of whose rule an internal is part."""
        if self.row.why == "internal":
            return f"kept, internal of {self.row.read_by}'s rule"
        if self.row.kept:
            by = f"by {self.row.read_by}"
            return f"kept and needed {by}" if self.row.needed else f"kept {by}, not needed"
        return f"needed by {self.row.read_by}, not kept"

    @property
    def place(self) -> str:
        """Source file and line."""
        file, colon, line = self.row.source.rpartition(":")
        return file_label(file) + colon + line if file else "-"

    @property
    def hint(self) -> str:
        """The same, with folders and the function; a cell of a notebook has no folder."""
        source = self.place if self.place.startswith("cell:") else self.row.source
        return f"{source} {self.row.function}".strip()


def residual_groups(analysis: Analysis) -> tuple[list[ResidualGroup], list[ResidualGroup]]:
    """Return (made by the program, arguments and constants), equal rows together, most bytes first."""
    counts: dict[Any, int] = {}
    for row in analysis.residuals:
        counts[row] = counts.get(row, 0) + 1
    groups = sorted(
        (ResidualGroup(count, row) for row, count in counts.items()),
        key=lambda g: (-g.size_bytes, g.row.source, g.row.primitive, g.row.why, g.row.read_by),
    )
    owned = [g for g in groups if g.row.primitive in ("argument", "constant")]
    return [g for g in groups if g.row.primitive not in ("argument", "constant")], owned


def analysis_title(analysis: Analysis) -> str:
    """What was analysed."""
    return (
        f"Plain JAX keeps {format_bytes(analysis.kept_bytes)} between the forward and backward passes of "
        f"{number_of(analysis.equations, 'equation')}"
    )


def analysis_facts(analysis: Analysis) -> list[Fact]:
    """Totals of an analysis."""
    kept, needed = analysis.kept_bytes, analysis.needed_bytes
    share = needed / kept if kept else None
    remark = "values of the program; internals of derivative rules follow from them"
    return [
        Fact("plain JAX keeps", format_bytes(kept), 1.0 if kept else None, "beside the arguments"),
        Fact("really needed", format_bytes(needed), share, remark),
        Fact("arguments", format_bytes(analysis.argument_bytes), None, "there all the time"),
    ]
