"""Reports as HTML: a table with inline style and a chart as SVG, no script, no network.

In: ``Table``, ``Chart``. Out: one ``<div>`` for notebooks, which takes text and background from the page, light or
dark; or a whole page around it, which follows the reader's theme.
"""

from __future__ import annotations

from html import escape

from remat_plan import markup
from remat_plan.markup import number, prose
from remat_plan.report import svg
from remat_plan.report.charts import AFTER, Chart
from remat_plan.report.tables import Cell, Column, Fact, Line, Table

ENTRIES = 60
"""Most lines that a page shows of a long table."""
_INDENT = 20
"""Pixels to the right for each level of a tree."""
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
_HEAD = "font-weight:600;margin:4px 0 6px"
_BAR = "height:10px;margin-top:4px;border-radius:2px"
_OF_A_TREE = "min-width:min(420px,60vw);"
"""Style of what is done, where values stand below it: notebooks would break it into narrow lines."""


def page(title: str, fragment: str) -> str:
    """Return a whole HTML page around a fragment: light or dark as the reader prefers, nothing from the network.

    Args:
        title: of the page, plain text.
        fragment: what ``_repr_html_`` of a plan, analysis, curve or comparison returned.

    >>> page("a < b", "<div>...</div>").splitlines()[5]
    '<title>a &lt; b</title>'
    """
    return _PAGE.format(title=escape(title), fragment=fragment)


def render(table: Table, chart: Chart | None = None) -> str:
    """Return a report as a fragment: title, figures, notes, chart, table, footnotes."""
    table = table.cut(ENTRIES)
    columns = table.columns
    header = [(column.header, ">" if column.kind == "figure" else "<") for column in columns]
    rows = [[_cell(*pair, line) for pair in zip(columns, line.cells, strict=True)] for line in table.lines]
    parts = [
        f'<div class="remat-plan" style="{_BLOCK}">{_STYLE}',
        f'<div style="{_HEAD}">{escape(table.title)}</div>',
        markup.table((), [_fact(fact) for fact in table.facts]) if table.facts else "",
        *map(markup.small, table.notes),
        "" if chart is None or chart.is_empty else svg.render(chart),
        markup.table(header, rows),
        *map(markup.small, table.footnotes),
        "</div>",
    ]
    return "\n".join(part for part in parts if part)


def _fact(fact: Fact) -> list[str]:
    remark = f'<span style="{markup.SMALL}">{escape(fact.remark)}</span>'
    return [prose(fact.label), number(fact.figure), number(fact.per_cent), markup.cell(remark)]


def _cell(column: Column, cell: str | Cell, line: Line) -> str:
    text, hint = (cell, "") if isinstance(cell, str) else (cell.text, cell.hint)
    if column.kind == "figure":
        return number(text)
    if column.kind == "code":
        return markup.cell(markup.code(text))
    if isinstance(cell, Cell) and column.kind == "bar":
        bar = f'<div style="{_BAR};background:{AFTER};width:{100 * cell.share:.1f}%"></div>' if hint else ""
        return markup.cell(bar, "width:120px;min-width:60px", hint)
    if column.flexible:
        wide = "" if line.below is None else _OF_A_TREE
        return markup.cell(escape(text) + _below(line), f"{wide}padding-left:{_INDENT * line.indent}px", hint)
    return markup.cell(escape(text), "white-space:nowrap" if column.keep_end else "", hint)


def _below(line: Line) -> str:
    """The values that stand below a line, each as code."""
    values = "" if line.below is None else line.below(None)
    codes = "; ".join(markup.code(value) for value in values.split("; "))
    return f'<div style="{markup.SMALL}">{codes}</div>' if values else ""
