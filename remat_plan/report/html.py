"""Reports as HTML: a table with inline style and a chart as SVG, no script, no network.

In: ``Table``, ``Chart``; or texts of cells. Out: one ``<div>`` for notebooks, which takes text and background from the
page, light or dark; or a whole page around it, which follows the reader's theme.

Notebooks have rules of their own for tables (Jupyter aligns every cell to the right and stripes the rows), and these
are more specific than what a ``<style>`` element of ours could say without naming each of them. A ``style`` attribute
beats them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

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
"""All that an attribute cannot say: the stretch of a chart that is pointed at. The rest is inline."""
_BLOCK = "font:13px/1.45 system-ui,sans-serif;color:inherit;max-width:1000px;text-align:left"
_HEAD = "font-weight:600;margin:4px 0 6px"
_BAR = "height:10px;margin-top:4px;border-radius:2px"
_OF_A_TREE = "min-width:min(420px,60vw);"
"""Style of what is done, where values stand below it: notebooks would break it into narrow lines."""
_LINE = "1px solid rgba(128,128,128,.25)"
"""A rule between rows that can be seen on white and on black."""
SMALL = "opacity:.75;font-size:12px"
"""Style of remarks and notes."""
_CELL = "padding:2px 10px 2px 0;vertical-align:top;border:0;background:transparent;text-align:"
_NUMBER = "right;white-space:nowrap;font-variant-numeric:tabular-nums"
_TABLE = "border-collapse:collapse;border:0;table-layout:auto;margin:6px 0 10px;color:inherit;font-size:inherit"


def page(title: str, fragment: str) -> str:
    """Return a whole HTML page around what ``_repr_html_`` returned: light or dark as the reader prefers.

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
        grid((), [_fact(fact) for fact in table.facts]) if table.facts else "",
        *map(small, table.notes),
        "" if chart is None or chart.is_empty else svg.render(chart),
        grid(header, rows),
        *map(small, table.footnotes),
        "</div>",
    ]
    return "\n".join(part for part in parts if part)


def cell(inner: str, style: str = "", title: str = "") -> str:
    """A cell of prose, aligned to the left, around HTML; ``title`` is shown when it is pointed at.

    >>> cell("a &lt; b", title='"')
    '<td style="padding:2px 10px 2px 0;vertical-align:top;border:0;background:transparent;text-align:left" title="&quot;">a &lt; b</td>'
    """  # noqa: E501
    told = f' title="{escape(title)}"' if title else ""
    return f'<td style="{_CELL}left{";" if style else ""}{style}"{told}>{inner}</td>'


def prose(text: str) -> str:
    """A cell of plain text, aligned to the left."""
    return cell(escape(text))


def number(text: str) -> str:
    """A cell of figures, aligned to the right, in one line."""
    return f'<td style="{_CELL}{_NUMBER}">{escape(text)}</td>'


def code(text: str) -> str:
    """Text as it stands in a program, in one line."""
    return (
        f'<code style="font-size:12px;white-space:nowrap;background:transparent;color:inherit;padding:0">'
        f"{escape(text)}</code>"
    )


def small(text: str) -> str:
    """A remark below or above a table, plain text."""
    return f'<div style="{SMALL}">{escape(text)}</div>'


def grid(header: Iterable[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells as HTML under headers (text, alignment ``"<"`` or ``">"``), if there are any."""
    heads = "".join(_head(text, align) for text, align in header)
    head = f'<thead><tr style="background:transparent;border-bottom:{_LINE}">{heads}</tr></thead>' if heads else ""
    line = f"border-bottom:{_LINE}" if heads else "border:0"
    body = "\n".join(f'<tr style="background:transparent;{line}">{"".join(row)}</tr>' for row in rows)
    wide = f'<table style="{_TABLE}">{head}\n<tbody>\n{body}\n</tbody></table>'  # scrolls by itself on a phone
    return f'<div style="overflow-x:auto">{wide}</div>'


def _head(text: str, align: str) -> str:
    side = "right" if align == ">" else "left"
    return f'<th style="{_CELL}{side};white-space:nowrap;font-weight:600">{escape(text)}</th>'


def _fact(fact: Fact) -> list[str]:
    remark = f'<span style="{SMALL}">{escape(fact.remark)}</span>'
    return [prose(fact.label), number(fact.figure), number(fact.per_cent), cell(remark)]


def _cell(column: Column, content: str | Cell, line: Line) -> str:
    text, hint = (content, "") if isinstance(content, str) else (content.text, content.hint)
    if column.kind == "figure":
        return number(text)
    if column.kind == "code":
        return cell(code(text))
    if isinstance(content, Cell) and column.kind == "bar":
        bar = f'<div style="{_BAR};background:{AFTER};width:{100 * content.share:.1f}%"></div>' if hint else ""
        return cell(bar, "width:120px;min-width:60px", hint)
    if column.flexible:
        wide = "" if line.below is None else _OF_A_TREE
        return cell(escape(text) + _below(line), f"{wide}padding-left:{_INDENT * line.indent}px", hint)
    return cell(escape(text), "white-space:nowrap" if column.keep_end else "", hint)


def _below(line: Line) -> str:
    """The values that stand below a line, each as code."""
    values = "" if line.below is None else line.below(None)
    codes = "; ".join(code(value) for value in values.split("; "))
    return f'<div style="{SMALL}">{codes}</div>' if values else ""
