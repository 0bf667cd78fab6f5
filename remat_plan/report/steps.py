"""What a fitted training step says: a table, a picture, one line.

In: ``StepReport``. Out: text, ``Table``, ``matplotlib.axes.Axes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_plan.report.plots import AFTER, BEFORE, BUDGET, OWNED, finish, new_axes
from remat_plan.report.rows import Fact, number_of
from remat_plan.report.tables import Column, Line, Table
from remat_plan.results.step_report import StepReport
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def step_line(report: StepReport) -> str:
    """A report for the debugger."""
    before, after = format_bytes(report.plain.peak_bytes), format_bytes(report.planned.peak_bytes)
    told = f"{before} -> {after}, budget {format_bytes(report.budget_bytes)}, overhead {report.overhead:.1%}"
    return f"<StepReport of {report.name} for {report.target}: {told}>"


def step_table(report: StepReport) -> Table:
    """What a step needs, plain and planned, by what it is for."""
    plain, planned = report.plain, report.planned
    arguments = [
        ("parameters and state of the model", report.parameter_bytes),
        ("optimizer state", report.optimizer_bytes),
        ("batch, other arguments", report.batch_bytes),
    ]
    lines = [Line(("arguments that are read", *_pair(plain.argument_bytes, planned.argument_bytes), ""))]
    lines += [Line((label, *_pair(size, size), "")) for label, size in arguments if size]
    lines[1:] = [Line(line.cells, 2) for line in lines[1:]]
    lines += [
        Line(("results beside donated memory", *_pair(plain.result_bytes, planned.result_bytes), "")),
        Line(("temporaries", *_pair(plain.temporary_bytes, planned.temporary_bytes), "")),
        Line(("peak", *_pair(plain.peak_bytes, planned.peak_bytes), "the sum of these")),
        Line(
            ("results in donated memory", *_pair(plain.donated_bytes, planned.donated_bytes), "not in the peak twice")
        ),
        Line(("gradients", *_pair(report.gradient_bytes, report.gradient_bytes), "as large as the parameters")),
        Line(("activations and gradients", *_pair(plain.activation_bytes, planned.activation_bytes), "predicted")),
    ]
    columns = (Column("", "<", flexible=True), Column("as written", ">"), Column("planned", ">"), Column("", "<"))
    title = f"Step {report.name} for {report.target}: {number_of(report.marks, 'mark')}, bytes on one device"
    notes = tuple(f"note: {note}" for note in report.notes)
    return Table(title, tuple(_facts(report)), notes, columns, tuple(lines))


def _facts(report: StepReport) -> list[Fact]:
    written = max(report.plain.peak_bytes, 1)
    spare = report.budget_bytes - report.planned.peak_bytes
    return [
        Fact("peak as written", format_bytes(report.plain.peak_bytes), 1.0, "compiled"),
        Fact("budget", format_bytes(report.budget_bytes), report.budget_bytes / written, f"asked for: {report.budget}"),
        Fact(
            "peak, planned",
            format_bytes(report.planned.peak_bytes),
            report.planned.peak_bytes / written,
            f"compiled; {format_bytes(spare)} to spare; {number_of(report.compiles, 'compile')}",
        ),
        Fact("overhead", "", report.overhead, "recomputed seconds over seconds of what is marked (predicted)"),
    ]


def _pair(plain: int, planned: int) -> tuple[str, str]:
    return format_bytes(plain), format_bytes(planned)


def plot_step(report: StepReport, ax: Axes | None = None) -> Axes:
    """Draw what a step needs, as written and planned, as two bars, with the budget (needs matplotlib)."""
    ax = new_axes(ax)
    names = ["as written", "planned"]
    steps = [report.plain, report.planned]
    bottom = [0, 0]
    parts = [
        ("arguments", OWNED, [s.argument_bytes for s in steps]),
        ("results beside donated memory", BEFORE, [s.result_bytes for s in steps]),
        ("temporaries", AFTER, [s.temporary_bytes for s in steps]),
    ]
    for label, colour, sizes in parts:
        ax.barh(names, sizes, left=bottom, color=colour, label=label)
        bottom = [b + s for b, s in zip(bottom, sizes, strict=True)]
    label = f"budget: {format_bytes(report.budget_bytes)}"
    ax.axvline(report.budget_bytes, color=BUDGET, linewidth=1.2, linestyle=(0, (6, 3)), label=label)
    ax.invert_yaxis()
    ax.set_xlabel(f"bytes on one device of {report.name} (compiled)")
    ax.set_title(f"Training step for {report.target}: {report.overhead:.1%} overhead")
    finish(ax, ax.xaxis)
    return ax
