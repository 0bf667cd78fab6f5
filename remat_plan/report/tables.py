"""What plans, analyses, curves and comparisons say, as tables that know nothing of a terminal's width or colours.

In: ``Plan``, ``Analysis``, ``Tradeoff``, ``Comparison``. Out: ``Table``; ``text`` lays it out in plain ASCII,
``terminal`` by rich.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat_plan.report.points import comparison_cells, comparison_title, free_note, share_header, tradeoff_title
from remat_plan.report.residuals import ResidualGroup, analysis_facts, analysis_title, residual_groups
from remat_plan.report.rows import Entry, Fact, number_of, plan_entries, plan_facts, plan_title
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.results.analysis import Analysis
    from remat_plan.results.comparison import Comparison
    from remat_plan.results.plan import Plan
    from remat_plan.results.tradeoff import Tradeoff

ENTRIES = 40
"""Most lines of the table of decisions."""
RESIDUALS = 20
"""Most lines of the table of residuals."""
_ACTION = 52
_BAR = 40


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its header, how it is aligned (``"<"`` or ``">"``), and how it gives way when there is no room.

    Attributes:
        header: what stands above it; "" for a count.
        align: ``"<"`` or ``">"``.
        most: cut cells to this width; 0: do not.
        keep_end: cut the beginning, not the end (line numbers stand at the end).
        flexible: this one gives way first.
        is_bar: its cells are bars, of ``#``.
    """

    header: str
    align: str
    most: int = 0
    keep_end: bool = False
    flexible: bool = False
    is_bar: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table.

    Attributes:
        cells: one text per column.
        indent: how far the flexible cell, and what is below it, stand to the right.
        below: what is told below the line, given the width that there is for it; None for nothing.
    """

    cells: tuple[str, ...]
    indent: int = 0
    below: Callable[[int], str] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A whole report: title, figures, notes, one table, what to know about it."""

    title: str
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    footnotes: tuple[str, ...] = ()


def plan_table(plan: Plan) -> Table:
    """The whole plan: figures, notes and decisions."""
    entries = plan_entries(plan)
    left = len(entries) - ENTRIES
    footnotes = [f"... and {left} more rows"] if left > 0 else []
    if not (plan.is_identity or plan.is_written):
        footnotes.append("Bytes and FLOPs are per block; block inputs are saved in addition.")
    if any(d.nested for d in plan.decisions):
        footnotes.append("What blocks below 'checkpoint around' save is there only while that part is recomputed.")
    if any(d.structured for d in plan.decisions):
        footnotes.append("Rows below a loop or a branch are of one run of its inside; its own row is of all of them.")
    return Table(
        plan_title(plan),
        tuple(plan_facts(plan)),
        tuple(f"note: {note}" for note in plan.notes),
        (
            Column("", ">"),
            Column("equations", ">"),
            Column("what is done", "<", flexible=True),
            Column("saves", ">"),
            Column("recomputes", ">"),
            Column("source", "<", most=26, keep_end=True),
        ),
        tuple(_entry_line(e) for e in entries[:ENTRIES]),
        tuple(footnotes),
    )


def _entry_line(entry: Entry) -> Line:
    room = _ACTION - 2 * entry.indent
    count = f"{entry.count} x" if entry.count > 1 and entry.decision is not None else ""
    cells = (count, entry.equations, entry.action(room), entry.saved, entry.recomputed, entry.source)
    below = None if entry.names_value(room) else functools.partial(Entry.saved_values, entry)
    return Line(cells, 2 * entry.indent, below)


def analysis_table(analysis: Analysis) -> Table:
    """Totals, and the residuals that take the most bytes."""
    made, owned = residual_groups(analysis)
    lines = [
        Line((format_bytes(g.size_bytes), f"{g.count} x" if g.count > 1 else "", g.label, g.type, g.status, g.place))
        for g in made[:RESIDUALS]
    ]
    rest = [f"... and {text}" for text in _rest(made[RESIDUALS:], "more")]
    rest += [f"Read as well: {text}" for text in _rest(owned, "of the arguments and constants")]
    return Table(
        analysis_title(analysis),
        tuple(analysis_facts(analysis)),
        (),
        (
            Column("bytes", ">"),
            Column("", ">"),
            Column("value", "<", most=28),
            Column("type", "<", most=30),
            Column("for the backward pass", "<", flexible=True),
            Column("source", "<", most=26, keep_end=True),
        ),
        tuple(lines),
        tuple(rest),
    )


def _rest(groups: Sequence[ResidualGroup], what: str) -> list[str]:
    count, size_bytes = sum(g.count for g in groups), sum(g.size_bytes for g in groups)
    return [f"{count} {what} ({format_bytes(size_bytes)})"] if groups else []


def tradeoff_table(curve: Tradeoff) -> Table:
    """The points of a trade-off curve, with a bar for the peak."""
    written = curve.written_peak_bytes
    largest = max([written, *(p.peak_bytes for p in curve.points)])
    lines = [
        Line(
            (
                format_bytes(p.peak_bytes),
                f"{p.peak_bytes / written:.1%}",
                f"{p.overhead:.1%}",
                "#" * round(_BAR * p.peak_bytes / largest),
            )
        )
        for p in curve.points
    ]
    columns = (
        Column("peak", ">"),
        Column(share_header(curve.written is not None), ">"),
        Column("overhead", ">"),
        Column("peak", "<", flexible=True, is_bar=True),
    )
    return Table(tradeoff_title(curve), (), (), columns, tuple(lines), free_note(curve))


def comparison_table(comparison: Comparison) -> Table:
    """Strategies and budgets side by side, one line each."""
    columns = (
        Column("strategy", "<", most=24),
        Column("budget", ">", most=16),
        Column("peak", ">"),
        Column(share_header(comparison.has_own_remat), ">"),
        Column("overhead", ">"),
        Column("compiled", ">"),
        Column("FLOPs", ">"),
        Column("", "<", flexible=True),
    )
    lines = tuple(Line(comparison_cells(comparison, row)) for row in comparison.rows)
    counted = number_of(len(lines), "plan")
    return Table(comparison_title(comparison, counted), (), (), columns, lines, comparison.footnotes)
