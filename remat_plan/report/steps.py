"""What a fitted training step says, and the largest batches of one: tables, pictures, one line.

In: ``StepReport``, ``BatchSizes``. Out: text, ``Table``, ``matplotlib.axes.Axes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat_plan.report.palette import AFTER
from remat_plan.report.plots import OWNED, RULE, finish, ink, new_axes
from remat_plan.report.rows import Fact, best_overhead, number_of, overhead_fact
from remat_plan.report.tables import Column, Line, Table
from remat_plan.results.batch_sizes import BatchSize, BatchSizes
from remat_plan.results.step_report import StepReport
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def step_line(report: StepReport) -> str:
    """A report for the debugger."""
    before, after = format_bytes(report.plain.peak_bytes), format_bytes(report.planned.peak_bytes)
    overhead, source = best_overhead(report)
    told = f"{before} -> {after}, budget {format_bytes(report.budget_bytes)}, overhead {overhead:.1%} {source}"
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
        Line(("outputs (not donated)", *_pair(plain.result_bytes, planned.result_bytes), "")),
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
    overhead, source = best_overhead(report)
    of = "what is marked" if report.compiled_overhead is None else "the step as written"
    return [
        Fact("peak as written", format_bytes(report.plain.peak_bytes), 1.0, "compiled"),
        Fact("budget", format_bytes(report.budget_bytes), report.budget_bytes / written, f"asked for: {report.budget}"),
        Fact(
            "peak, planned",
            format_bytes(report.planned.peak_bytes),
            report.planned.peak_bytes / written,
            f"compiled; {format_bytes(spare)} to spare; {number_of(report.compiles, 'compile')}",
        ),
        overhead_fact(overhead, source, report.planned.peak_bytes < report.plain.peak_bytes, of),
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
        ("arguments and outputs (not donated)", OWNED, [s.argument_bytes + s.result_bytes for s in steps]),
        ("temporaries", AFTER, [s.temporary_bytes for s in steps]),
    ]
    for label, colour, sizes in parts:
        ax.barh(names, sizes, left=bottom, color=colour, label=label)
        bottom = [b + s for b, s in zip(bottom, sizes, strict=True)]
    label = f"budget: {format_bytes(report.budget_bytes)}"
    ax.axvline(report.budget_bytes, color=ink(), linewidth=1.2, linestyle=RULE, label=label)
    ax.invert_yaxis()
    ax.set_xlabel(f"bytes on one device of {report.name} (compiled)")
    overhead, source = best_overhead(report)
    ax.set_title(f"Training step for {report.target}: {overhead:.1%} overhead ({source})")
    finish(ax, ax.xaxis)
    return ax


def batch_line(sizes: BatchSizes) -> str:
    """Batch sizes for the debugger: ``48 plain; 192 at +4.0%, 320 at +19.0%``."""
    planned = dict.fromkeys(f"{r.batch} at +{r.overhead:.1%}" for r in sizes.rows[1:] if r.batch > sizes.plain)
    told = f"{sizes.plain} plain; {', '.join(planned) or 'no more planned'}"
    return f"<BatchSizes of {sizes.name} for {sizes.target}, budget {format_bytes(sizes.budget_bytes)}: {told}>"


def batch_table(sizes: BatchSizes) -> Table:
    """The largest batch for each limit on overhead."""
    lines = []
    for row in sizes.rows:
        factor = f"{row.batch / sizes.plain:.2f} x" if sizes.plain else "-"
        cells = (_limit(row), str(row.batch), factor, f"{row.overhead:.1%}", format_bytes(row.peak_bytes))
        lines.append(Line(cells))
    columns = (
        Column("overhead allowed", "<", flexible=True),
        Column("batch", ">"),
        Column("of plain", ">"),
        Column("overhead", ">"),
        Column("peak", ">"),
    )
    title = f"Largest batches of {sizes.name} for {sizes.target}, in multiples of {sizes.multiple_of}"
    budget = Fact("budget", format_bytes(sizes.budget_bytes), None, f"asked for: {sizes.budget}")
    note = f"peaks are compiled ({number_of(sizes.compiles, 'compile')}), overheads predicted"
    return Table(title, (budget,), (note,), columns, tuple(lines))


def _limit(row: BatchSize) -> str:
    if row.limit is None:
        return "any"
    return f"{row.limit:.0%}" if row.limit else "none: the step as it is"


def plot_batches(sizes: BatchSizes, ax: Axes | None = None) -> Axes:
    """Draw batch sizes against overhead (needs matplotlib)."""
    ax = new_axes(ax)
    rows = sorted({(100 * row.overhead, row.batch) for row in sizes.rows})
    ax.plot(*zip(*rows, strict=True), color=AFTER, marker="o", label=f"budget: {format_bytes(sizes.budget_bytes)}")
    ax.set_xlabel("overhead (%, predicted)")
    ax.set_ylabel("batch (examples)")
    ax.set_ylim(0)
    ax.set_title(f"Largest batches of {sizes.name} for {sizes.target}")
    ax.grid(visible=True, alpha=0.25, linewidth=0.6)
    ax.legend(frameon=True, fontsize="small")
    return ax
