"""Plans, analyses, curves and comparisons as HTML: inline style and SVG, no script, no network.

In: ``Plan``, ``Analysis``, ``Tradeoff``, ``Comparison``. Out: one ``<div>`` for notebooks, which takes text and
background from the page, light or dark; or a whole page around it, which follows the reader's theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from remat_plan import markup
from remat_plan.markup import number, prose
from remat_plan.report import charts
from remat_plan.report.palette import AFTER
from remat_plan.report.points import comparison_cells, comparison_title, free_note, share_header, tradeoff_title
from remat_plan.report.residuals import analysis_facts, analysis_title, residual_groups
from remat_plan.report.rows import Entry, Fact, number_of, plan_entries, plan_facts, plan_title
from remat_plan.report.tables import Table
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.results.analysis import Analysis
    from remat_plan.results.comparison import Comparison
    from remat_plan.results.plan import Plan
    from remat_plan.results.tradeoff import Tradeoff

ENTRIES = 60
"""Most lines of a table."""
_ACTION = 60
"""Room, in characters, for what is done, before the values that are saved go below it."""
_INDENT = 20
_PLAN = (
    ("", ">"),
    ("equations", "<"),
    ("what is done", "<"),
    ("saves", ">"),
    ("", "<"),
    ("recomputes", ">"),
    ("source", "<"),
)
_ANALYSIS = (
    ("bytes", ">"),
    ("", "<"),
    ("", ">"),
    ("value", "<"),
    ("type", "<"),
    ("for the backward pass", "<"),
    ("source", "<"),
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>:root {{ color-scheme: light dark; }} body {{ margin: 24px; }}</style>
</head>
<body>
{fragment}
</body>
</html>
"""
_STYLE = "<style>.remat-plan .hover:hover { fill-opacity: .12; }</style>"
"""All that an attribute cannot say: the stretch of a chart that is pointed at. The rest is inline, see ``markup``."""
_BLOCK = "font:13px/1.45 system-ui,sans-serif;color:inherit;max-width:1000px;text-align:left"


def plan_html(plan: Plan) -> str:
    """The plan: figures, memory over the step, table of decisions."""
    entries = plan_entries(plan)
    largest = max((e.decision.saved_bytes or 0 for e in entries if e.decision), default=0)
    rows = [_entry_row(e, largest) for e in entries[:ENTRIES]]
    return _fragment(
        plan_title(plan),
        _facts(plan_facts(plan)),
        *(markup.small(f"note: {note}") for note in plan.notes),
        charts.timeline(plan),
        markup.table(_PLAN, rows, len(entries) - ENTRIES),
    )


def analysis_html(analysis: Analysis) -> str:
    """Totals, and the residuals that take the most bytes."""
    made, owned = residual_groups(analysis)
    largest = made[0].size_bytes if made else 0
    rows = [
        [
            number(format_bytes(g.size_bytes)),
            _bar(g.size_bytes, largest, f"{g.count} x {format_bytes(g.row.size_bytes)}"),
            number(f"{g.count} x" if g.count > 1 else ""),
            markup.cell(markup.code(g.label)),
            markup.cell(markup.code(g.type)),
            prose(g.status),
            prose(g.place, title=g.hint),
        ]
        for g in made[:ENTRIES]
    ]
    parts = [_facts(analysis_facts(analysis)), markup.table(_ANALYSIS, rows, len(made) - ENTRIES)]
    if owned:
        size_bytes = sum(g.size_bytes for g in owned)
        count = sum(g.count for g in owned)
        parts.append(markup.small(f"Read as well: {count} of the arguments and constants ({format_bytes(size_bytes)})"))
    return _fragment(analysis_title(analysis), *parts)


def tradeoff_html(curve: Tradeoff) -> str:
    """The curve, and its points as a table."""
    points = curve.points
    share = share_header(curve.written is not None)
    written = curve.written_peak_bytes
    largest = max([written, *(p.peak_bytes for p in points)])
    rows = [
        [
            number(format_bytes(p.peak_bytes)),
            _bar(p.peak_bytes, largest, f"{p.peak_bytes / written:.1%} {share}"),
            number(f"{p.peak_bytes / written:.1%}"),
            number(f"{p.overhead:.1%}"),
        ]
        for p in points
    ]
    title = tradeoff_title(curve)
    table = markup.table((("peak", ">"), ("", "<"), (share, ">"), ("overhead", ">")), rows)
    notes = map(markup.small, free_note(curve))
    return _fragment(title, *([charts.curve(curve, title)] if points else []), table, *notes)


def comparison_html(comparison: Comparison) -> str:
    """Strategies and budgets as a table, and as points in one chart."""
    written = comparison.written_peak_bytes
    rows = []
    for row in comparison.rows:
        strategy, budget, peak, share, overhead, compiled, flops, remark = comparison_cells(comparison, row)
        bar = prose("") if row.peak_bytes is None else _bar(row.peak_bytes, written, f"{row.peak_bytes} bytes")
        numbers = [number(peak), bar, number(share), number(overhead), number(compiled), number(flops)]
        rows.append([prose(strategy), number(budget), *numbers, prose(remark, title=row.problem)])
    figures = (share_header(comparison.has_own_remat), "overhead", "compiled", "FLOPs")
    header = (
        ("strategy", "<"),
        ("budget", ">"),
        ("peak", ">"),
        ("", "<"),
        *((text, ">") for text in figures),
        ("", "<"),
    )
    chart = [charts.scatter(comparison)] if any(row.plan is not None for row in comparison.rows) else []
    title = comparison_title(comparison, number_of(len(rows), "plan"))
    return _fragment(title, *chart, markup.table(header, rows), *map(markup.small, comparison.footnotes))


def table_html(table: Table) -> str:
    """A table: figures, notes, rows."""
    rows = []
    for line in table.lines:
        cells = [
            number(text)
            if column.align == ">"
            else markup.cell(escape(text), f"padding-left:{line.indent}ch" if column.flexible and line.indent else "")
            for column, text in zip(table.columns, line.cells, strict=True)
        ]
        rows.append(cells)
    header = [(column.header, column.align) for column in table.columns]
    notes = [markup.small(text) for text in (*table.notes, *table.footnotes)]
    return _fragment(table.title, _facts(table.facts), *notes, markup.table(header, rows))


def page(title: str, fragment: str) -> str:
    """Return a whole HTML page around a fragment: light or dark as the reader prefers, nothing from the network.

    Args:
        title: of the page, plain text.
        fragment: what ``_repr_html_`` of a plan, analysis, curve or comparison returned.

    >>> page("a < b", "<div>...</div>").splitlines()[5]
    '<title>a &lt; b</title>'
    """
    return _PAGE.format(title=escape(title), fragment=fragment)


def _fragment(title: str, *parts: str) -> str:
    head = f'<div style="font-weight:600;margin:4px 0 6px">{escape(title)}</div>'
    return "\n".join([f'<div class="remat-plan" style="{_BLOCK}">{_STYLE}', head, *parts, "</div>"])


def _bar(size: float, largest: float, title: str) -> str:
    share = 100 * size / largest if largest else 0.0
    bar = f'<div style="height:10px;margin-top:4px;border-radius:2px;background:{AFTER};width:{share:.1f}%"></div>'
    return markup.cell(bar, "width:120px;min-width:60px", title)


def _facts(facts: Sequence[Fact]) -> str:
    rows = [
        [
            prose(f.label),
            number(f.figure),
            number("" if f.share is None else f"{f.share:.1%}"),
            markup.cell(f'<span style="{markup.SMALL}">{escape(f.remark)}</span>'),
        ]
        for f in facts
    ]
    return markup.table((), rows)


def _entry_row(entry: Entry, largest: int) -> list[str]:
    d = entry.decision
    saved = None if d is None else d.saved_bytes
    values = "" if entry.names_value(_ACTION) else entry.saved_values()
    codes = "; ".join(markup.code(value) for value in values.split("; "))
    detail = f'<div style="{markup.SMALL}">{codes}</div>' if values else ""
    return [
        number(f"{entry.count} x" if entry.count > 1 and d is not None else ""),
        prose(entry.equations),
        markup.cell(escape(entry.action(_ACTION)) + detail, f"min-width:420px;padding-left:{_INDENT * entry.indent}px"),
        number(entry.saved),
        prose("") if saved is None else _bar(saved, largest, f"{saved} bytes saved by one"),
        number(entry.recomputed),
        markup.cell(escape(d.source) if d is not None else "", "white-space:nowrap"),
    ]
