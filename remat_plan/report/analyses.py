"""What an analysis says: in one line, as a table, as a chart of the largest residuals.

In: ``Analysis``. Out: text, ``Table``, ``BarChart``; equal residuals are told together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from remat_plan.report.charts import BEFORE, GREY, BarChart
from remat_plan.report.tables import Cell, Column, Fact, Line, Table, number_of, times
from remat_plan.results.places import file_label, is_cell
from remat_plan.small.budget import format_bytes

if TYPE_CHECKING:
    from remat_plan.results.analysis import Analysis, PeakPlace, Residual

RESIDUALS = 20
"""Most lines that a terminal shows, and most bars of the chart: the labels of more would be too small to read."""
_OF_NEEDED = "values of the program; internals of derivative rules follow from them"

Group = tuple[int, "Residual"]
"""Equal rows of an analysis: how many, and one of them."""


def _groups(analysis: Analysis) -> tuple[list[Group], list[Group]]:
    """Return (made by the program, arguments and constants), equal rows together, most bytes first."""
    made, owned = [], []
    for row, count in Counter(analysis.residuals).items():
        (owned if row.primitive in ("argument", "constant") else made).append((count, row))
    for groups in (made, owned):
        groups.sort(key=lambda g: (-_bytes(g), g[1].source, g[1].primitive, g[1].why, g[1].read_by))
    return made, owned


def _bytes(*groups: Group) -> int:
    return sum(count * row.size_bytes for count, row in groups)


def _total(groups: Sequence[Group], what: str) -> str:
    return f"{sum(count for count, _ in groups)} {what} ({format_bytes(_bytes(*groups))})"


def _label(row: Residual) -> str:
    return repr(row.name) if row.name else row.primitive


def _type(row: Residual) -> str:
    return f"{row.dtype}[{','.join(map(str, row.shape))}]"


def _status(row: Residual) -> str:
    """Saved, needed, or both, and by whose backward pass; of whose rule an internal is part."""
    if row.why == "internal":
        return f"saved, internal of {row.read_by}'s rule"
    if row.saved:
        return f"saved and needed by {row.read_by}" if row.needed else f"saved by {row.read_by}, not needed"
    return f"needed by {row.read_by}, not saved"


def _place(row: Residual) -> Cell:
    """Source file and line; pointed at, with its folders, which a cell of a notebook has not, and the function."""
    file, colon, line = row.source.rpartition(":")
    place = file_label(file) + colon + line if file else "-"
    return Cell(place, f"{place if is_cell(file) else row.source} {row.function}".strip())


def analysis_line(analysis: Analysis) -> str:
    """An analysis for the debugger."""
    saved, needed = format_bytes(analysis.saved_bytes), format_bytes(analysis.minimum_residual_bytes)
    return f"<Analysis of {number_of(analysis.equations, 'equation')}: {saved} saved, {needed} needed>"


def analysis_table(analysis: Analysis) -> Table:
    """Totals, and the residuals, those that take the most bytes first."""
    made, owned = _groups(analysis)
    longest = _bytes(*made[:1]) or 1
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
        tuple(_line(*group, longest) for group in made),
        (
            Fact("plain JAX saves", size, 1.0 if saved else None, "in addition to the arguments"),
            Fact("minimum required", format_bytes(needed), needed / saved if saved else None, _OF_NEEDED),
            Fact("arguments", format_bytes(analysis.argument_bytes), None, "always live"),
            *_peak(analysis.peak),
        ),
        footnotes=(f"Read as well: {_total(owned, 'of the arguments and constants')}",) if owned else (),
        most=RESIDUALS,
        rest=lambda shown: _total(made[shown:], "more"),
    )


def _peak(peak: PeakPlace | None) -> list[Fact]:
    """Where the plain step needs most, and along which axis it can run in slices there."""
    if peak is None:
        return []
    facts = [Fact("plain peak", format_bytes(peak.peak_bytes), None, f"predicted, at {peak.where}")]
    if peak.value:
        splits = peak.dimension is not None
        text = f"dimension {peak.dimension} of" if splits else "no dimension of"
        facts.append(Fact("slices, at most", str(peak.slices) if splits else "-", None, f"{text} {peak.value}"))
    return facts


def _line(count: int, row: Residual, longest: int) -> Line:
    size = count * row.size_bytes
    bar = Cell(hint=f"{count} x {format_bytes(row.size_bytes)}", share=size / longest)
    return Line((format_bytes(size), bar, times(count), _label(row), _type(row), _status(row), _place(row)))


def analysis_chart(analysis: Analysis) -> BarChart:
    """Bytes of the largest residuals; arguments and constants are left out, since they are there anyway."""
    groups = _groups(analysis)[0][:RESIDUALS]

    def sizes(internal: bool) -> tuple[int, ...]:
        return tuple(_bytes(group) * ((group[1].why == "internal") == internal) for group in groups)

    return BarChart(
        f"Plain JAX saves {format_bytes(analysis.saved_bytes)} in addition to the arguments",
        tuple(f"{times(count)} {_label(row)} {_type(row)}  {_place(row)}".lstrip() for count, row in groups),
        "bytes between forward and backward pass, without rematerialisation",
        (("a value of the program", BEFORE, sizes(False)), ("internal of a derivative rule", GREY, sizes(True))),
    )
