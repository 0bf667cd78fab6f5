"""Tables by rich, where it is installed and the terminal can show them; plain text elsewhere.

In: ``Table``, or a plan, analysis, curve or comparison. Out: a rich renderable; text on a terminal.

rich is imported when something is drawn, not before.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, TextIO

from remat_plan.report.tables import Column, Table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

_BELOW = 100
"""Width for the values that a block saves; rich wraps them where there is less."""


def show(thing: Any, file: TextIO | None = None) -> None:
    """Print a plan, analysis, curve or comparison: by rich on a terminal, else as plain text.

    Args:
        thing: what to print; with ``__rich__`` and ``__str__``.
        file: where to; by default stdout.
    """
    stream = sys.stdout if file is None else file
    if stream.isatty() and importlib.util.find_spec("rich") is not None:
        from rich.console import Console

        Console(file=stream).print(thing)
    else:
        print(thing, file=stream)


def render(table: Table) -> Group:
    """Return a table as a rich renderable: title, figures, notes, columns, footnotes.

    Raises:
        ImportError: rich is not installed.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Any] = [Text(table.title, style="bold"), ""]
    if table.facts:
        parts.append(Padding(_facts(table), (0, 0, 0, 2)))
    parts += [Text(f"  {note}", style="yellow") for note in table.notes]
    if table.facts or table.notes:
        parts.append("")
    parts.append(_lines(table))
    parts += [Text(text, style="dim") for text in table.footnotes]
    return Group(*parts)


def _facts(table: Table) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "right", "left"):
        grid.add_column(justify=justify)
    for fact in table.facts:
        share = "" if fact.share is None else f"{fact.share:.1%}"
        over = "above the budget" in fact.remark
        grid.add_row(
            Text(fact.label),
            Text(fact.figure, style="bold red" if over else "bold"),
            Text(share, style="cyan"),
            Text(fact.remark, style="red" if over else "dim"),
        )
    return grid


def _lines(table: Table) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable

    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for column in table.columns:
        drawn.add_column(
            column.header,
            justify="right" if column.align == ">" else "left",
            no_wrap=not column.flexible and not column.most,
            overflow="fold",
        )
    for line in table.lines:
        cells = []
        for column, cell in zip(table.columns, line.cells, strict=True):
            text = _cell(column, cell, line.indent)
            below = line.below(_BELOW) if column.flexible and line.below is not None else ""
            if below:
                text.append(f"\n{' ' * (line.indent + 2)}{below}", style="dim")
            cells.append(text)
        drawn.add_row(*cells)
    return drawn


def _cell(column: Column, cell: str, indent: int) -> Text:
    from rich.text import Text

    if column.is_bar:
        return Text("\N{BLACK SQUARE}" * len(cell), style="blue")
    if column.flexible:
        return Text(" " * indent + cell)
    return Text(cell, style={"source": "cyan", "equations": "dim"}.get(column.header, ""))
