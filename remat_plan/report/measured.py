"""What was measured, as a table and a picture.

In: ``Measurement``. Out: text, ``Table``, ``matplotlib.axes.Axes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_plan.report.palette import AFTER, BEFORE
from remat_plan.report.plots import ink, new_axes
from remat_plan.report.points import overhead_text
from remat_plan.report.rows import Fact, number_of
from remat_plan.report.tables import Column, Line, Table
from remat_plan.results.measurement import Measurement, StepSeconds
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def format_seconds(seconds: float) -> str:
    """Seconds as people read them.

    >>> format_seconds(0.0123), format_seconds(2.5)
    ('12.3 ms', '2.5 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError


def measurement_line(measured: Measurement) -> str:
    """A measurement for the debugger."""
    seconds = f"{format_seconds(measured.plain.seconds)} -> {format_seconds(measured.planned.seconds)}"
    return f"<Measurement on {measured.device}: {seconds}, overhead {overhead_text(measured)}>"


def measurement_table(measured: Measurement) -> Table:
    """Seconds, spread and bytes of both steps."""
    rows = (("plain", measured.plain), ("planned", measured.planned))
    columns = (Column("step", "<", flexible=True), Column("seconds", ">"), Column("spread", ">"), Column("peak", ">"))
    interval = f"{measured.overhead_low:+.1%} to {measured.overhead_high:+.1%}"
    facts = (
        Fact("overhead, measured", "", measured.overhead, f"19 times of 20 the median is within {interval}"),
        Fact("overhead, predicted", "", measured.predicted_overhead, "by the plan"),
    )
    calls = "" if measured.calls == (1, 1) else f", {measured.calls[0]} and {measured.calls[1]} calls in each"
    footnotes = (
        f"Medians of {number_of(measured.rounds, 'round')}{calls}, both steps in turns; spread: between quartiles.",
        f"{measured.device}; {measured.versions}",
    )
    lines = tuple(Line((name, *_cells(step))) for name, step in rows)
    return Table(f"Measured: {measured.name}", facts, (), columns, lines, footnotes)


def _cells(step: StepSeconds) -> tuple[str, str, str]:
    peak = "-" if step.peak_bytes is None else format_bytes(step.peak_bytes)
    return format_seconds(step.seconds), format_seconds(step.spread_seconds), peak


def plot_measurement(measured: Measurement, ax: Axes | None = None) -> Axes:
    """Draw the seconds of both steps as bars, with their spread (needs matplotlib)."""
    ax = new_axes(ax)
    steps = (measured.plain, measured.planned)
    spreads = [step.spread_seconds / 2 for step in steps]
    ax.barh(["plain", "planned"], [s.seconds for s in steps], xerr=spreads, color=[BEFORE, AFTER], ecolor=ink())
    ax.invert_yaxis()
    ax.set_xlabel(f"seconds of one step on {measured.device}")
    ax.set_title(f"overhead {overhead_text(measured)}")
    return ax
