"""Reports as data: a title, figures, notes and one table. ``text`` and ``html`` lay them out.

In: nothing. Out: ``Table``, which knows nothing of a terminal's width or of colours; numbers as people read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from remat_plan.small.budget import format_bytes, in_units

BAR = 40
"""Characters of the longest bar in a text."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a summary; ``share`` is, of peaks, of the function as written, else of the plain step."""

    label: str
    figure: str
    share: float | None = None
    remark: str = ""

    @property
    def per_cent(self) -> str:
        return "" if self.share is None else f"{self.share:.1%}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and how it gives way when there is no room.

    Attributes:
        kind: prose and code stand on the left, figures on the right; bars are drawn as long as the shares of cells.
        most: cut cells to this width; 0: do not.
        keep_end: cut the beginning, not the end (line numbers stand at the end).
        flexible: this one gives way first.
        optional: left out where characters are all that there is.
    """

    header: str
    kind: Literal["prose", "figure", "code", "bar"] = "prose"
    most: int = 0
    keep_end: bool = False
    flexible: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of which more is to be told than its text: what it tells when pointed at, or the share of a bar."""

    text: str = ""
    hint: str = ""
    share: float = 0.0

    def __str__(self) -> str:
        return self.text or "#" * round(BAR * self.share)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table; its flexible cell stands ``indent`` levels to the right.

    ``below`` makes what is told below that cell, of the characters that there is room for (None: any number).
    """

    cells: tuple[str | Cell, ...]
    indent: int = 0
    below: Callable[[int | None], str] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A whole report: facts above the table with notes on them, the table with footnotes.

    Attributes:
        most: how many lines are enough; 0: all are shown.
        rest: what is said of the lines from a number on, where they are left out.
    """

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
    footnotes: tuple[str, ...] = ()
    most: int = 0
    rest: Callable[[int], str] | None = None

    def cut(self, least: int = 0) -> Table:
        """Return the table without more lines than are enough, but at least so many; a footnote tells of the others."""
        most = max(self.most, least)
        left = len(self.lines) - most
        if not self.most or left <= 0:
            return self
        rest = f"{left} more rows" if self.rest is None else self.rest(most)
        return replace(self, lines=self.lines[:most], footnotes=(f"... and {rest}", *self.footnotes))

    def in_characters(self) -> Table:
        """Return the table without its optional columns, cut."""
        kept = [n for n, column in enumerate(self.columns) if not column.optional]
        table = self.cut()
        lines = tuple(replace(line, cells=tuple(line.cells[n] for n in kept)) for line in table.lines)
        return replace(table, columns=tuple(self.columns[n] for n in kept), lines=lines)


def figures(*headers: str) -> list[Column]:
    """Columns of figures."""
    return [Column(header, "figure") for header in headers]


def number_of(count: int, noun: str) -> str:
    """``1 value``, ``2 values``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def peak_fact(label: str, size_bytes: int, of_bytes: int, remark: str = "") -> Fact:
    """A peak, as a share of another one."""
    return Fact(label, format_bytes(size_bytes), size_bytes / max(of_bytes, 1), remark)


def times(count: int) -> str:
    """``3 x`` for what stands for three; nothing for one."""
    return f"{count} x" if count > 1 else ""


def format_flops(flops: float) -> str:
    """Return FLOPs in decimal units with three digits.

    >>> format_flops(7_324_106_758)
    '7.32 GFLOP'
    """
    return in_units(flops, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def format_seconds(seconds: float) -> str:
    """Return seconds with three digits.

    >>> format_seconds(0.0123), format_seconds(2.5)
    ('12.3 ms', '2.5 s')
    """
    unit, scale = next((u for u in (("s", 1.0), ("ms", 1e3)) if seconds * u[1] >= 1), ("us", 1e6))
    return f"{seconds * scale:.3g} {unit}"


def optional_share(share: float | None, sign: str = "") -> str:
    """A share in per cent, ``-`` where there is none; with ``sign="+"`` signed."""
    return "-" if share is None else f"{share:{sign}.1%}"
