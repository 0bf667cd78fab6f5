"""HTML tables with inline style.

In: texts and alignments. Out: elements as strings, escaped. Notebooks have rules of their own for tables (Jupyter
aligns every cell to the right and stripes the rows), and these are more specific than what a ``<style>`` element of
ours could say without naming each of them. A ``style`` attribute beats them all. Colours are those of the page, light
or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

LINE = "1px solid rgba(128,128,128,.25)"
"""A rule between rows that can be seen on white and on black."""
SMALL = "opacity:.75;font-size:12px"
"""Style of remarks and notes."""
_CELL = "padding:2px 10px 2px 0;vertical-align:top;border:0;background:transparent;text-align:"
_NUMBER = "right;white-space:nowrap;font-variant-numeric:tabular-nums"
_TABLE = "border-collapse:collapse;border:0;table-layout:auto;margin:6px 0 10px;color:inherit;font-size:inherit"


def cell(inner: str, style: str = "", title: str = "") -> str:
    """A cell of prose, aligned to the left, around HTML; ``title`` is shown when it is pointed at.

    >>> cell("a &lt; b", title='"')
    '<td style="padding:2px 10px 2px 0;vertical-align:top;border:0;background:transparent;text-align:left" title="&quot;">a &lt; b</td>'
    """  # noqa: E501
    told = f' title="{escape(title)}"' if title else ""
    return f'<td style="{_CELL}left{";" if style else ""}{style}"{told}>{inner}</td>'


def prose(text: str, title: str = "") -> str:
    """A cell of plain text, aligned to the left."""
    return cell(escape(text), title=title)


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


def table(header: Iterable[tuple[str, str]], rows: Sequence[Sequence[str]], left_out: int = 0) -> str:
    """A table of cells under (text, alignment ``"<"`` or ``">"``); without a header where there is none.

    Args:
        header: of each column.
        rows: cells as HTML, as the functions above make them.
        left_out: how many further rows there are; a line below the table tells.
    """
    heads = "".join(_head(text, align) for text, align in header)
    head = f'<thead><tr style="background:transparent;border-bottom:{LINE}">{heads}</tr></thead>' if heads else ""
    line = f"border-bottom:{LINE}" if heads else "border:0"
    body = "\n".join(f'<tr style="background:transparent;{line}">{"".join(row)}</tr>' for row in rows)
    more = small(f"... and {left_out} more rows") if left_out > 0 else ""
    wide = f'<table style="{_TABLE}">{head}\n<tbody>\n{body}\n</tbody></table>'  # scrolls by itself on a phone
    return f'<div style="overflow-x:auto">{wide}</div>{more}'


def _head(text: str, align: str) -> str:
    side = "right" if align == ">" else "left"
    return f'<th style="{_CELL}{side};white-space:nowrap;font-weight:600">{escape(text)}</th>'
