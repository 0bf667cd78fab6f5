"""Tables in characters: plain ASCII for logs, at most ``WIDTH`` columns wide; by rich where a terminal can show it.

In: ``Table``; or a result that is shown by one. Out: strings; rich renderables. rich is imported when something is
drawn by it, not before.
"""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from remat_plan.report.tables import Column, Fact, Line, Table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable

WIDTH = 110
"""Most characters of a line, which logs and terminals beside an editor show without wrapping; rich wraps for itself."""
_GAP = "  "
_LEVEL = "  "


def show(thing: Any, file: TextIO | None = None) -> None:
    """Print a result: by rich on a terminal, else as plain text."""
    stream = sys.stdout if file is None else file
    if stream.isatty() and importlib.util.find_spec("rich") is not None:
        from rich.console import Console

        Console(file=stream).print(thing)
    else:
        print(thing, file=stream)


def layout(table: Table) -> str:
    """Lay a table out: title, figures, notes, columns with two spaces between them, footnotes."""
    table = table.in_characters()
    parts = [table.title, ""]
    if table.facts or table.notes:
        parts += [*_facts(table.facts), *(line for note in table.notes for line in _note(note)), ""]
    widths = _widths(table)
    where = sum(width + len(_GAP) for width in widths[: _flexible(table)])
    parts.append(_row(table.columns, [c.header for c in table.columns], widths))
    parts.append("-" * (sum(widths) + len(_GAP) * (len(widths) - 1)))
    for line in table.lines:
        parts.append(_row(table.columns, _cells(table.columns, line), widths))
        below = where + len(_LEVEL) * (line.indent + 1)
        if line.below is not None and (text := line.below(WIDTH - below)):
            parts += [" " * below + piece for piece in textwrap.wrap(text, WIDTH - below, break_on_hyphens=False)]
    return "\n".join([*parts, *map(_fit, table.footnotes)])


def _note(text: str) -> list[str]:
    """A note, whole: what it says to do stands at its end."""
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _fit(text: str, width: int = WIDTH, keep_end: bool = False) -> str:
    """Cut the end, or the beginning, of what is too wide."""
    if len(text) <= width:
        return text
    return "..." + text[-(width - 3) :] if keep_end else text[: width - 3] + "..."


def _facts(facts: Sequence[Fact]) -> list[str]:
    label = max((len(f.label) for f in facts), default=0)
    figure = max((len(f.figure) for f in facts), default=0)
    return [_fit(f"  {f.label:<{label}}  {f.figure:>{figure}}  {f.per_cent:>7}  {f.remark}".rstrip()) for f in facts]


def _flexible(table: Table) -> int:
    return next(n for n, column in enumerate(table.columns) if column.flexible)


def _cells(columns: Sequence[Column], line: Line) -> list[str]:
    """The texts of a line, cut to what a column takes at most; the flexible one indented."""
    cells = []
    for column, cell in zip(columns, line.cells, strict=True):
        text = _fit(str(cell), column.most, column.keep_end) if column.most else str(cell)
        cells.append(_LEVEL * line.indent + text if column.flexible else text)
    return cells


def _widths(table: Table) -> list[int]:
    """Widths of the columns: as wide as their widest cell; the flexible one gives way."""
    rows = [[c.header for c in table.columns], *(_cells(table.columns, line) for line in table.lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    spare = WIDTH - (sum(widths) + len(_GAP) * (len(widths) - 1))
    flexible = _flexible(table)
    widths[flexible] = max(widths[flexible] + min(spare, 0), len(table.columns[flexible].header), 8)
    return widths


def _row(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    pieces = [
        f"{_fit(cell, width):{'>' if column.kind == 'figure' else '<'}{width}}"
        for column, cell, width in zip(columns, cells, widths, strict=True)
    ]
    return _fit(_GAP.join(pieces).rstrip())


def by_rich(table: Table) -> Group:
    """Return a table as a rich renderable: title, figures, notes, columns, footnotes."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    table = table.in_characters()
    parts: list[Any] = [Text(table.title, style="bold"), ""]
    if table.facts:
        parts.append(Padding(_rich_facts(table.facts), (0, 0, 0, 2)))
    parts += [Text(f"  {note}", style="yellow") for note in table.notes]
    if table.facts or table.notes:
        parts.append("")
    return Group(*parts, _rich_lines(table), *(Text(text, style="dim") for text in table.footnotes))


def _rich_facts(facts: Sequence[Fact]) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "right", "left"):
        grid.add_column(justify=justify)
    for fact in facts:
        over = "above the budget" in fact.remark
        grid.add_row(
            Text(fact.label),
            Text(fact.figure, style="bold red" if over else "bold"),
            Text(fact.per_cent, style="cyan"),
            Text(fact.remark, style="red" if over else "dim"),
        )
    return grid


def _rich_lines(table: Table) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for column in table.columns:
        drawn.add_column(
            column.header,
            justify="right" if column.kind == "figure" else "left",
            no_wrap=not column.flexible and not column.most,
            overflow="fold",
        )
    for line in table.lines:
        texts = []
        for column, cell in zip(table.columns, line.cells, strict=True):
            style = {"source": "cyan", "equations": "dim"}.get(column.header, "")
            text = Text(_LEVEL * line.indent + str(cell) if column.flexible else str(cell), style=style)
            if column.kind == "bar":
                text = Text(str(cell).replace("#", "\N{BLACK SQUARE}"), style="blue")
            if column.flexible and line.below is not None and (below := line.below(WIDTH)):
                text.append(f"\n{_LEVEL * (line.indent + 1)}{below}", style="dim")
            texts.append(text)
        drawn.add_row(*texts)
    return drawn
