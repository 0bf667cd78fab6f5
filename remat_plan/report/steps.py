"""What is said of steps that run: of a fitted training step, of the largest sizes of one, of what was measured.

In: ``StepReport``, ``LargestSizes``, ``Measurement``. Out: for each a line, a ``Table`` and a chart.
"""

from __future__ import annotations

from remat_plan.compiled.collectives import AGAIN, BACKWARD, FORWARD
from remat_plan.report.charts import AFTER, BEFORE, GREY, Axis, BarChart, Chart, Look, Rule, Series, overhead_axis
from remat_plan.report.curves import overhead_text
from remat_plan.report.plans import best_overhead, overhead_fact
from remat_plan.report.tables import Column, Fact, Line, Table, figures, format_seconds, number_of, peak_fact
from remat_plan.results.measurement import Measurement
from remat_plan.results.steps import LargestSize, LargestSizes, StepReport
from remat_plan.small.budget import format_bytes, on_host


def step_line(report: StepReport) -> str:
    """A report for the debugger."""
    before, after = format_bytes(report.plain.peak_bytes), format_bytes(report.planned.peak_bytes)
    overhead, source = best_overhead(report)
    after += on_host(report.planned.host_bytes)
    told = f"{before} -> {after}, budget {format_bytes(report.budget_bytes)}, overhead {overhead:.1%} {source}"
    return f"<StepReport of {report.name} for {report.target}: {told}>"


def step_table(report: StepReport) -> Table:
    """What a step needs, plain and planned, by what it is for."""
    plain, planned = report.plain, report.planned

    moves = plain.host_bytes or planned.host_bytes

    def line(label: str, before: int, after: int, remark: str = "", indent: int = 0) -> Line:
        return Line((label, format_bytes(before), format_bytes(after), remark), indent)

    arguments = (
        ("parameters and state of the model", report.parameter_bytes, 0),
        ("optimizer state", report.optimizer_bytes, report.hosted_bytes),
        ("batch, other arguments", report.batch_bytes, 0),
    )
    lines = (
        line("arguments that are read", plain.argument_bytes, planned.argument_bytes),
        *(line(label, size, size - hosted, indent=1) for label, size, hosted in arguments if size),
        line("outputs (not donated)", plain.result_bytes, planned.result_bytes),
        line("temporaries", plain.temporary_bytes, planned.temporary_bytes),
        line("peak", plain.peak_bytes, planned.peak_bytes, "the sum of these"),
        line("results in donated memory", plain.donated_bytes, planned.donated_bytes, "counted once in the peak"),
        line("gradients", report.gradient_bytes, report.gradient_bytes, "as large as the parameters"),
        line("activations and gradients", plain.activation_bytes, planned.activation_bytes, "predicted"),
        *([line("host memory", plain.host_bytes, planned.host_bytes, "in addition to the peak")] if moves else []),
        *_sent(report),
    )
    return Table(
        f"Step {report.name} for {report.target}: {number_of(report.marks, 'mark')}, bytes on one device",
        (Column("", flexible=True), *figures("as written", "planned"), Column("")),
        lines,
        tuple(_facts(report)),
        tuple(f"note: {note}" for note in report.notes),
    )


def _sent(report: StepReport) -> list[Line]:
    """What devices send each other, by pass; of a step that the compiler refused for its bytes it is not known."""
    plain, planned = report.plain, report.planned
    if not planned.collectives:
        return []
    rows = (
        ("sent in the forward pass", FORWARD),
        ("sent again, recomputing", AGAIN),
        ("sent in the backward pass", BACKWARD),
    )
    return [
        Line((
            label,
            format_bytes(plain.sent_bytes(when)) if plain.collectives else "-",
            format_bytes(planned.sent_bytes(when)),
            "between devices; no part of the peak",
        ))
        for label, when in rows
    ]  # fmt: skip


def _facts(report: StepReport) -> list[Fact]:
    written, planned = report.plain.peak_bytes, report.planned.peak_bytes
    spare = f"{format_bytes(report.budget_bytes - planned)} to spare"
    of = "what is marked" if report.compiled_overhead is None else "the step as written"
    return [
        peak_fact("peak as written", written, written, "compiled"),
        peak_fact("budget", report.budget_bytes, written, f"asked for: {report.budget}"),
        peak_fact("peak, planned", planned, written, f"compiled; {spare}; {number_of(report.compiles, 'compile')}"),
        overhead_fact(*best_overhead(report), planned < written, of),
    ]


def step_chart(report: StepReport) -> BarChart:
    """What a step needs, as written and planned, with the budget."""
    steps = (report.plain, report.planned)
    overhead, source = best_overhead(report)
    return BarChart(
        f"Training step for {report.target}: {overhead:.1%} overhead ({source})",
        ("as written", "planned"),
        f"bytes on one device of {report.name} (compiled)",
        (
            ("arguments and outputs (not donated)", GREY, tuple(s.argument_bytes + s.result_bytes for s in steps)),
            ("temporaries", AFTER, tuple(s.temporary_bytes for s in steps)),
        ),
        rule=Rule(f"budget: {format_bytes(report.budget_bytes)}", report.budget_bytes, vertical=True),
    )


def sizes_line(sizes: LargestSizes) -> str:
    """Sizes for the debugger: ``48 plain; 192 at +4.0%, 320 at +19.0%``."""
    planned = dict.fromkeys(f"{r.size} at {r.overhead:+.1%}" for r in sizes.rows[1:] if r.size > sizes.plain)
    told = f"{sizes.plain} plain; {', '.join(planned) or 'no more planned'}"
    return f"<LargestSizes of {sizes.name} for {sizes.target}, budget {format_bytes(sizes.budget_bytes)}: {told}>"


def sizes_table(sizes: LargestSizes) -> Table:
    """The largest size for each limit on overhead."""
    lines, has_host = [], any(row.host_bytes for row in sizes.rows)
    for row in sizes.rows:
        factor = f"{row.size / sizes.plain:.2f} x" if sizes.plain else "-"
        overhead = f"{row.overhead:.1%}" if row.size else "-"
        told = str(row.size), factor, overhead, format_bytes(row.peak_bytes)
        lines.append(Line((_limit(row), *told, *([format_bytes(row.host_bytes)] if has_host else []))))
    names = sizes.dimension, "of plain", "overhead", "peak", *(["on host"] if has_host else [])
    return Table(
        f"Largest {sizes.dimension} of {sizes.name} for {sizes.target}, in multiples of {sizes.multiple_of}",
        (Column("overhead allowed", flexible=True), *figures(*names)),
        tuple(lines),
        (Fact("budget", format_bytes(sizes.budget_bytes), None, f"asked for: {sizes.budget}"),),
        (f"peaks are compiled ({number_of(sizes.compiles, 'compile')}), overheads predicted",),
    )


def _limit(row: LargestSize) -> str:
    if row.limit is None:
        return "any"
    return f"{row.limit:.0%}" if row.limit else "none: the step as written"


def sizes_chart(sizes: LargestSizes) -> Chart:
    """Sizes against overhead."""
    overheads, found = zip(*sorted({(row.overhead, row.size) for row in sizes.rows}), strict=True)
    told = [
        f"{sizes.dimension} {size}, overhead {overhead:.1%}" for overhead, size in zip(overheads, found, strict=True)
    ]
    label = f"budget: {format_bytes(sizes.budget_bytes)}"
    return Chart(
        f"Largest {sizes.dimension} of {sizes.name} for {sizes.target}",
        overhead_axis("overhead (predicted)", overheads),
        Axis.around(sizes.dimension, found, "{:g}".format),
        (Series(label, Look(AFTER), overheads, found, told),),
    )


def measurement_line(measured: Measurement) -> str:
    """A measurement for the debugger."""
    seconds = f"{format_seconds(measured.plain.seconds)} -> {format_seconds(measured.planned.seconds)}"
    return f"<Measurement on {measured.device}: {seconds}, overhead {overhead_text(measured)}>"


def measurement_table(measured: Measurement) -> Table:
    """Seconds, spread and bytes of both steps."""
    lines = [
        Line((name, format_seconds(step.seconds), format_seconds(step.spread_seconds), format_bytes(step.peak_bytes)))
        for name, step in (("plain", measured.plain), ("planned", measured.planned))
    ]
    interval = f"{measured.overhead_low:+.1%} to {measured.overhead_high:+.1%}"
    calls = "" if measured.calls == (1, 1) else f", {measured.calls[0]} and {measured.calls[1]} calls in each"
    return Table(
        f"Measured: {measured.name}",
        (Column("step", flexible=True), *figures("seconds", "spread", "peak")),
        tuple(lines),
        (
            Fact("overhead, measured", "", measured.overhead, f"{measured.interval}: {interval}"),
            Fact("overhead, predicted", "", measured.predicted_overhead, "by the plan"),
        ),
        footnotes=(
            f"Medians of {number_of(measured.rounds, 'round')}{calls}, both steps in turns; spread: between quartiles.",
            f"{measured.device}; {measured.versions}",
        ),
    )


def measurement_chart(measured: Measurement) -> BarChart:
    """The seconds of both steps, with their spread."""
    plain, planned = measured.plain, measured.planned
    return BarChart(
        f"overhead {overhead_text(measured)}",
        ("plain", "planned"),
        f"seconds of one step on {measured.device}",
        (("", BEFORE, (plain.seconds, 0.0)), ("", AFTER, (0.0, planned.seconds))),
        format_seconds,
        (plain.spread_seconds / 2, planned.spread_seconds / 2),
    )
