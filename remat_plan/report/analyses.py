"""What an analysis says: in one line, as a table, as a chart of the largest residuals.

In: ``Analysis``. Out: text, ``Table``, ``BarChart``; equal residuals are told together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat_plan.report.charts import BEFORE, GREY, BarChart
from remat_plan.report.tables import Cell, Column, Fact, Line, Table, number_of, times
from remat_plan.results.places import file_label, is_cell
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.results.analysis import Analysis, Residual

RESIDUALS = 20
"""Lines of the table that a terminal shows, and bars of the chart: the labels of more would be too small to read."""


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
        """Saved, needed, or both, and by whose backward pass; of whose rule an internal is part."""
        if self.row.why == "internal":
            return f"saved, internal of {self.row.read_by}'s rule"
        if self.row.saved:
            by = f"by {self.row.read_by}"
            return f"saved and needed {by}" if self.row.needed else f"saved {by}, not needed"
        return f"needed by {self.row.read_by}, not saved"

    @property
    def place(self) -> str:
        """Source file and line."""
        file, colon, line = self.row.source.rpartition(":")
        return file_label(file) + colon + line if file else "-"

    @property
    def hint(self) -> str:
        """The same, with folders and the function; a cell of a notebook has no folder."""
        source = self.place if is_cell(self.row.source.rpartition(":")[0]) else self.row.source
        return f"{source} {self.row.function}".strip()


def _groups(analysis: Analysis) -> tuple[list[ResidualGroup], list[ResidualGroup]]:
    """Return (made by the program, arguments and constants), equal rows together, most bytes first."""
    groups = sorted(
        (ResidualGroup(count, row) for row, count in Counter(analysis.residuals).items()),
        key=lambda g: (-g.size_bytes, g.row.source, g.row.primitive, g.row.why, g.row.read_by),
    )
    made, owned = [], []
    for group in groups:
        (owned if group.row.primitive in ("argument", "constant") else made).append(group)
    return made, owned


def _total(groups: Sequence[ResidualGroup], what: str) -> str:
    size_bytes = sum(g.size_bytes for g in groups)
    return f"{sum(g.count for g in groups)} {what} ({format_bytes(size_bytes)})"


def analysis_line(analysis: Analysis) -> str:
    """An analysis for the debugger."""
    saved, needed = format_bytes(analysis.saved_bytes), format_bytes(analysis.minimum_residual_bytes)
    return f"<Analysis of {number_of(analysis.equations, 'equation')}: {saved} saved, {needed} needed>"


def analysis_table(analysis: Analysis) -> Table:
    """Totals, and the residuals, those that take the most bytes first."""
    made, owned = _groups(analysis)
    longest = (made[0].size_bytes if made else 0) or 1
    saved, needed = analysis.saved_bytes, analysis.minimum_residual_bytes
    size = format_bytes(saved)
    return Table(
        f"Plain JAX saves {size} between the forward and backward passes of "
        f"{number_of(analysis.equations, 'equation')}",
        (
            Column("bytes", "figure"),
            Column("", "bar", optional=True),
            Column("", "figure"),
            Column("value", "code", most=28),
            Column("type", "code", most=30),
            Column("for the backward pass", flexible=True),
            Column("source", most=26, keep_end=True),
        ),
        tuple(_line(group, longest) for group in made),
        (
            Fact("plain JAX saves", size, 1.0 if saved else None, "beside the arguments"),
            Fact(
                "minimum required",
                format_bytes(needed),
                needed / saved if saved else None,
                "values of the program; internals of derivative rules follow from them",
            ),
            Fact("arguments", format_bytes(analysis.argument_bytes), None, "always live"),
        ),
        footnotes=(f"Read as well: {_total(owned, 'of the arguments and constants')}",) if owned else (),
        most=RESIDUALS,
        rest=lambda shown: _total(made[shown:], "more"),
    )


def _line(group: ResidualGroup, longest: int) -> Line:
    bar = Cell(hint=f"{group.count} x {format_bytes(group.row.size_bytes)}", share=group.size_bytes / longest)
    place = Cell(group.place, group.hint)
    size = format_bytes(group.size_bytes)
    return Line((size, bar, times(group.count), group.label, group.type, group.status, place))


def analysis_chart(analysis: Analysis) -> BarChart:
    """Bytes of the largest residuals; arguments and constants are left out, since they are there anyway."""
    groups = _groups(analysis)[0][:RESIDUALS]

    def sizes(internal: bool) -> tuple[int, ...]:
        return tuple(g.size_bytes * ((g.row.why == "internal") == internal) for g in groups)

    return BarChart(
        f"Plain JAX saves {format_bytes(analysis.saved_bytes)} beside the arguments",
        tuple(f"{times(g.count)} {g.label} {g.type}  {g.place}".lstrip() for g in groups),
        "bytes between forward and backward pass, without rematerialisation",
        (("a value of the program", BEFORE, sizes(False)), ("internal of a derivative rule", GREY, sizes(True))),
    )
