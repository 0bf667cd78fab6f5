"""Plans, analyses and curves as plain text for a terminal or a log.

In: ``Plan``, ``Analysis``, ``Tradeoff``. Out: strings, at most ``WIDTH`` columns wide, in ASCII.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remat_plan.report.rows import (
    Entry,
    Fact,
    ResidualGroup,
    analysis_facts,
    analysis_title,
    number_of,
    plan_entries,
    plan_facts,
    plan_title,
    residual_groups,
)
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.plan import Plan
    from remat_plan.report.analysis import Analysis
    from remat_plan.report.tradeoff import Tradeoff

WIDTH = 110
ENTRIES = 40
"""Most lines of the table of decisions."""
RESIDUALS = 20
"""Most lines of the table of residuals."""
_SOURCE = 26
_ACTION = 52
_BAR = 40


def summary_line(plan: Plan) -> str:
    """One line: peak before and after, budget, overhead."""
    peak = plan.compiled_peak_bytes if plan.compiled_peak_bytes is not None else plan.predicted_peak_bytes
    word = "compiled" if plan.compiled_peak_bytes is not None else "predicted"
    return (
        f"{format_bytes(plan.baseline_peak_bytes)} -> {format_bytes(peak)} {word}, budget "
        f"{format_bytes(plan.budget_bytes)}, overhead {plan.overhead:.1%}"
    )


def plan_text(plan: Plan) -> str:
    """The whole plan: summary, notes and table of decisions."""
    lines = [plan_title(plan), "", *_facts(plan_facts(plan))]
    lines += [fit(f"  note: {note}") for note in plan.notes]
    entries = plan_entries(plan)
    shown, left = entries[:ENTRIES], len(entries) - ENTRIES
    rows = [
        (
            f"{e.count} x" if e.count > 1 and e.decision is not None else "",
            e.equations,
            "  " * e.indent + e.action(_action_room(e)),
            e.kept,
            e.recomputed,
            fit_end(e.decision.source, _SOURCE) if e.decision is not None else "",
        )
        for e in shown
    ]
    header = ("", "equations", "what is done", "keeps", "recomputes", "source")
    laid = _table(header, rows, ">><>><", flexible=2)
    lines += ["", *laid[:2]]
    for entry, line in zip(shown, laid[2:], strict=True):
        lines.append(line)
        lines += _kept_line(entry, laid[0].index("what is done"))
    if left > 0:
        lines.append(f"... and {left} more rows")
    if not plan.is_identity:
        lines.append("Bytes and FLOPs are of one block; what enters a block is kept beside what it keeps.")
    if any(s.kind == "nest" for s in plan.schedule):
        lines.append("What blocks below 'checkpoint around' keep is there only while that part is run again.")
    return "\n".join(lines)


def analysis_text(analysis: Analysis) -> str:
    """Totals, and the residuals that take the most bytes."""
    made, owned = residual_groups(analysis)
    rows = [
        (
            format_bytes(g.size_bytes),
            f"{g.count} x" if g.count > 1 else "",
            fit(g.label, 28),
            fit(g.type, 30),
            g.status,
            fit_end(g.place, _SOURCE),
        )
        for g in made[:RESIDUALS]
    ]
    header = ("bytes", "", "value", "type", "for the backward pass", "source")
    lines = [analysis_title(analysis), "", *_facts(analysis_facts(analysis)), ""]
    lines += _table(header, rows, ">><<<<", flexible=4)
    lines += [f"... and {text}" for text in _rest(made[RESIDUALS:], "more")]
    lines += [f"Read as well: {text}" for text in _rest(owned, "of the arguments and constants")]
    return "\n".join(lines)


def _rest(groups: Sequence[ResidualGroup], what: str) -> list[str]:
    count, size_bytes = sum(g.count for g in groups), sum(g.size_bytes for g in groups)
    return [f"{count} {what} ({format_bytes(size_bytes)})"] if groups else []


def tradeoff_text(curve: Tradeoff) -> str:
    """The points of a trade-off curve, with a bar for the peak."""
    plain = max((p.peak_bytes for p in curve.points), default=1) or 1
    rows = [
        (
            format_bytes(p.peak_bytes),
            f"{p.peak_bytes / plain:.1%}",
            f"{p.overhead:.1%}",
            "#" * round(_BAR * p.peak_bytes / plain),
        )
        for p in curve.points
    ]
    header = ("peak", "of plain", "overhead", "peak")
    title = f"Peak against overhead for {curve.target}: {number_of(len(rows), 'schedule')}, predicted"
    return "\n".join([title, "", *_table(header, rows, ">>><", flexible=3)])


def fit(text: str, width: int = WIDTH) -> str:
    """Cut the end of what is too wide."""
    return text if len(text) <= width else text[: width - 3] + "..."


def fit_end(text: str, width: int) -> str:
    """Cut the beginning of what is too wide: line numbers stand at the end."""
    return text if len(text) <= width else "..." + text[-(width - 3) :]


def _facts(facts: Sequence[Fact]) -> list[str]:
    label = max(len(f.label) for f in facts)
    figure = max(len(f.figure) for f in facts)
    lines = []
    for f in facts:
        share = "" if f.share is None else f"{f.share:.1%}"
        lines.append(fit(f"  {f.label:<{label}}  {f.figure:>{figure}}  {share:>7}  {f.remark}".rstrip()))
    return lines


def _kept_line(entry: Entry, column: int) -> list[str]:
    indent = " " * (column + 2 * entry.indent + 2)
    text = entry.kept_values(WIDTH - len(indent))
    return [fit(indent + text)] if text and not entry.names_value(_action_room(entry)) else []


def _action_room(entry: Entry) -> int:
    return _ACTION - 2 * entry.indent


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], aligns: str, flexible: int) -> list[str]:
    """Columns with two spaces between them, a line below the header; the flexible one gives way."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    spare = WIDTH - (sum(widths) + 2 * (len(widths) - 1))
    widths[flexible] = max(widths[flexible] + min(spare, 0), len(header[flexible]), 8)

    def line(row: Sequence[str]) -> str:
        cells = [f"{fit(cell, w):{a}{w}}" for cell, w, a in zip(row, widths, aligns, strict=True)]
        return fit("  ".join(cells).rstrip())

    return [line(header), "-" * (sum(widths) + 2 * (len(widths) - 1)), *map(line, rows)]
