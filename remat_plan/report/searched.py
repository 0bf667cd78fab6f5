"""What a search tried, as a table and a picture.

In: ``Search``. Out: lines, ``Table``, axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_plan.report.palette import AFTER, BEFORE, GREY
from remat_plan.report.plots import finish, ink, new_axes
from remat_plan.report.rows import number_of
from remat_plan.report.tables import Column, Line, Table
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from remat_plan.results.tried import Search, Tried


def search_line(search: Search) -> str:
    """A search for the debugger."""
    return f"<Search: {number_of(len(search.rows), 'schedule')} compiled>"


def search_table(search: Search) -> Table:
    """One line for each schedule that was compiled."""
    columns = (
        Column("schedule", "<", flexible=True),
        Column("peak (predicted)", ">"),
        Column("compiled", ">"),
        Column("overhead (predicted)", ">"),
        Column("compiler", ">"),
        Column("clock", ">"),
        Column("", "<"),
    )
    lines = tuple(Line(_cells(row)) for row in search.rows)
    note = (
        "overhead: seconds over those of the plain step, less one; also by the compiler and the clock where they tell"
    )
    return Table("Schedules that the search compiled", (), (), columns, lines, (note,))


def _cells(row: Tried) -> tuple[str, ...]:
    return (
        row.what,
        format_bytes(row.predicted_peak_bytes),
        format_bytes(row.compiled_peak_bytes),
        f"{row.overhead:.1%}",
        _share(row.compiled_overhead),
        _share(row.measured_overhead),
        "chosen" if row.chosen else "" if row.fits else "too large",
    )


def _share(overhead: float | None) -> str:
    return "-" if overhead is None else f"{overhead:+.1%}"


def plot_search(search: Search, ax: Axes | None = None) -> Axes:
    """Draw overheads against compiled peaks (needs matplotlib)."""
    ax = new_axes(ax)
    kinds = (
        ("predicted", BEFORE, "o", [row.overhead for row in search.rows]),
        ("by the compiler", AFTER, "s", [row.compiled_overhead for row in search.rows]),
        ("by the clock", ink(), "x", [row.measured_overhead for row in search.rows]),
    )
    for label, colour, marker, overheads in kinds:
        told = [(r.compiled_peak_bytes, 100 * o) for r, o in zip(search.rows, overheads, strict=True) if o is not None]
        if told:
            ax.plot(*zip(*told, strict=True), linestyle="", marker=marker, color=colour, label=label)
    for row in search.rows:
        if row.chosen:
            ax.axvline(row.compiled_peak_bytes, color=GREY, linewidth=0.8, label="chosen")
    ax.set_xlabel("compiled peak (bytes on one device)")
    ax.set_ylabel("overhead (%)")
    ax.set_title("Schedules that the search compiled")
    finish(ax, ax.xaxis)
    return ax
