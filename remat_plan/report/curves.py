"""What a curve, a comparison and the log of a search say: peaks against overheads.

In: ``Tradeoff``, ``Comparison``, ``Search``. Out: for each a line, a ``Table`` and a ``Chart``. Shares are of the
function as written, which is the plain one unless it has ``jax.checkpoint`` regions of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remat_plan.report import charts
from remat_plan.report.charts import Chart, Look, Rule, Series
from remat_plan.report.tables import Cell, Column, Line, Table, figures, number_of, optional_share
from remat_plan.small.budget import format_bytes, on_host

if TYPE_CHECKING:
    from remat_plan.results.curves import Comparison, ComparisonRow, Tradeoff
    from remat_plan.results.evidence import Search
    from remat_plan.results.measurement import Measurement

_PEAK = "peak memory of the gradient step ({})"
_OVERHEAD = "overhead (% of plain seconds, predicted)"


def _of_what(has_own_remat: bool) -> str:
    """What stands above shares of the peak."""
    return "of written" if has_own_remat else "of plain"


def _points(
    label: str, look: Look, points: Sequence[tuple[int, float, int]], told: str = "", stairs: bool = False
) -> Series:
    """Peaks, overheads and bytes on the host as a series; each point tells what it is, after what all of them tell."""
    peaks, overheads = [peak for peak, _, _ in points], [overhead for _, overhead, _ in points]
    hints = [f"{told}peak {format_bytes(p)}{on_host(host)}, overhead {o:.1%}" for p, o, host in points]
    return Series(label, look, peaks, overheads, hints, stairs)


def _chart(
    title: str, peaks: str, overheads: str, series: Sequence[Series], rules: Sequence[Rule], zero: bool
) -> Chart:
    """Series of overheads over peaks, with labels of both axes; ``zero`` where peaks are seen from nothing on."""
    x = charts.bytes_axis(peaks, [*(rule.at for rule in rules), *(x for s in series for x in s.xs)], zero)
    return Chart(
        title, x, charts.overhead_axis(overheads, [y for s in series for y in s.ys]), tuple(series), tuple(rules)
    )


def tradeoff_line(curve: Tradeoff) -> str:
    """A curve for the debugger: its two ends."""
    ends = [format_bytes(p.peak_bytes) for p in (*curve.points[:1], *curve.points[1:][-1:])]
    return f"<Tradeoff for {curve.target}: {number_of(len(curve.points), 'schedule')}, {' to '.join(ends) or 'empty'}>"


def tradeoff_table(curve: Tradeoff) -> Table:
    """The points of a trade-off curve, with a bar for the peak."""
    title = f"Peak against overhead for {curve.target}: {number_of(len(curve.points), 'schedule')}, predicted"
    if curve.written is not None:
        title += f"; as written {format_bytes(curve.written.peak_bytes)}, overhead {curve.written.overhead:.1%}"
    written = curve.written_peak_bytes
    longest = max([written, *(p.peak_bytes for p in curve.points)])
    moves, lines = any(p.host_bytes for p in curve.points), []
    for p in curve.points:
        share = f"{p.peak_bytes / written:.1%}"
        bar = Cell(hint=f"{share} {_of_what(curve.written is not None)}", share=p.peak_bytes / longest)
        host = [format_bytes(p.host_bytes or None)] * moves
        lines.append(Line((format_bytes(p.peak_bytes), share, *host, f"{p.overhead:.1%}", bar)))
    headers = "peak", _of_what(curve.written is not None), *["on host"] * moves, "overhead"
    columns = (*figures(*headers), Column("peak", "bar", flexible=True))
    return Table(title, columns, tuple(lines), footnotes=_free_note(curve))


def _free_note(curve: Tradeoff) -> tuple[str, ...]:
    """What to say where the plain step is no point of the curve, since something beats it."""
    if (free := curve.free) is None or curve.plain is None:
        return ()
    cost = "cost no time" if free.overhead >= 0 else f"save time ({free.overhead:.1%})"
    plain, less = format_bytes(curve.plain.peak_bytes), format_bytes(free.peak_bytes)
    return (f"The plain step needs {plain}; recomputing down to {less} is predicted to {cost}.",)


def tradeoff_chart(curve: Tradeoff) -> Chart:
    """Overhead against peak, as stairs: a budget between two points is met by the one with the smaller peak."""
    plain = curve.plain or next(reversed(curve.points), None)
    steps = (
        ("plain step", plain, Look(charts.BEFORE, 0.0, "D")),
        ("as written", curve.written, Look(charts.GREY, 0.0, "s")),
    )
    points = [(p.peak_bytes, p.overhead, p.host_bytes) for p in curve.points]
    series = [_points("least overhead within a budget", Look(charts.AFTER, 1.6, size=5.0), points, stairs=True)]
    for word, step, look in steps:
        if step is not None:
            label = f"{word}: {format_bytes(step.peak_bytes)}"
            series.append(Series(label, look, [step.peak_bytes], [step.overhead], [label]))
    title = f"Memory against time for {curve.target}"
    return _chart(title, _PEAK.format("predicted"), _OVERHEAD, series, (), zero=False)


def comparison_line(comparison: Comparison) -> str:
    """A comparison for the debugger."""
    met = sum(row.plan is not None for row in comparison.rows)
    return f"<Comparison for {comparison.target}: {met} of {number_of(len(comparison.rows), 'budget')} met>"


def comparison_table(comparison: Comparison) -> Table:
    """Strategies and budgets side by side, one line each."""
    counted = number_of(len(comparison.rows), "plan")
    plain = f"plain peak {format_bytes(comparison.plain_peak_bytes)}"
    if comparison.has_own_remat:
        plain = f"peak as written {format_bytes(comparison.written_peak_bytes)}, {plain}"
    longest = max([comparison.written_peak_bytes, 1, *(row.peak_bytes or 0 for row in comparison.rows)])
    return Table(
        f"Strategies and budgets for {comparison.target}: {counted}; {plain}",
        (
            Column("strategy", most=24),
            Column("budget", "figure", most=16),
            Column("peak", "figure"),
            Column("", "bar", optional=True),
            *figures(_of_what(comparison.has_own_remat), *["on host"] * comparison.offloads),
            *figures("overhead", "compiled", "FLOPs"),
            Column("", flexible=True),
        ),
        tuple(_comparison_line(row, comparison, longest) for row in comparison.rows),
        footnotes=comparison.footnotes,
    )


def _comparison_line(row: ComparisonRow, comparison: Comparison, longest: int) -> Line:
    budget, plan, peak = row.budget or "-", row.plan, row.peak_bytes
    host = [format_bytes(row.host_bytes or None)] * comparison.offloads
    if plan is None or peak is None:
        least = f"least reached: {format_bytes(row.minimum_bytes)}" if row.minimum_bytes else row.problem
        return Line((row.strategy, budget, "-", Cell(), "-", *host, "-", "-", "-", Cell(least, row.problem)))
    flops = plan.step_flops / plan.plain_flops if plan.plain_flops else None
    remarks = [] if row.measurement is None else [f"measured {overhead_text(row.measurement)}"]
    if plan.is_identity:
        remarks.append("without its own jax.checkpoint" if plan.has_own_remat else "unchanged")
    elif plan.is_written:
        remarks.append("left as written")
    bar = Cell(hint=f"{peak} bytes", share=peak / longest)
    share, *others = peak / max(comparison.written_peak_bytes, 1), plan.overhead, plan.compiled_overhead, flops
    cells = (row.strategy, budget, format_bytes(peak), bar, optional_share(share), *host, *map(optional_share, others))
    return Line((*cells, "; ".join(remarks)))


def comparison_chart(comparison: Comparison) -> Chart:
    """Peak and overhead of all plans, points for each strategy, which are not joined."""
    points: dict[str, list[tuple[int, float, int]]] = {}
    for row in comparison.rows:
        if row.plan is not None and row.peak_bytes is not None:
            points.setdefault(row.strategy, []).append((row.peak_bytes, row.plan.overhead, row.host_bytes or 0))
    series = [
        _points(name, charts.point_look(number, len(points)), sorted(found), f"{name}: ")
        for number, (name, found) in enumerate(points.items())
    ]
    word = "as written" if comparison.has_own_remat else "plain step"
    written = comparison.written_peak_bytes
    rule = Rule(f"{word}: {format_bytes(written)}", written, vertical=True)
    peaks = _PEAK.format("compiled" if comparison.verified else "predicted")
    return _chart(f"Strategies and budgets for {comparison.target}", peaks, _OVERHEAD, series, [rule], zero=True)


def overhead_text(measured: Measurement) -> str:
    """The overhead with its interval: ``+3.1% (+2.0 to +4.4)``."""
    low, high = 100 * measured.overhead_low, 100 * measured.overhead_high
    return f"{measured.overhead:+.1%} ({low:+.1f} to {high:+.1f})"


def search_line(search: Search) -> str:
    """A search for the debugger."""
    return f"<Search: {number_of(len(search.rows), 'schedule')} compiled>"


def search_table(search: Search) -> Table:
    """One line for each schedule that was compiled."""
    headers = ("peak (predicted)", "compiled", "overhead (predicted)", "compiler", "clock")
    lines = []
    for row in search.rows:
        peaks = map(format_bytes, (row.predicted_peak_bytes, row.compiled_peak_bytes))
        known = (optional_share(share, "+") for share in (row.compiled_overhead, row.measured_overhead))
        remark = "chosen" if row.chosen else "" if row.fits else "too large"
        lines.append(Line((row.what, *peaks, f"{row.overhead:.1%}", *known, remark)))
    note = "overhead: extra seconds as a share of the plain step's; also by the compiler and the clock where they tell"
    columns = (Column("schedule", flexible=True), *figures(*headers), Column(""))
    return Table("Schedules that the search compiled", columns, tuple(lines), footnotes=(note,))


def search_chart(search: Search) -> Chart:
    """Overheads against compiled peaks, by the evaluator, the compiler and the clock."""
    kinds = (
        ("predicted", Look(charts.BEFORE, 0.0), [row.overhead for row in search.rows]),
        ("by the compiler", Look(charts.AFTER, 0.0, "s"), [row.compiled_overhead for row in search.rows]),
        ("by the clock", Look(charts.GREEN, 0.0, "D"), [row.measured_overhead for row in search.rows]),
    )
    series = []
    for label, look, overheads in kinds:
        rows = zip(search.rows, overheads, strict=True)
        points = [(row.compiled_peak_bytes, o, 0) for row, o in rows if o is not None]
        if points:
            series.append(_points(label, look, points, f"{label}: "))
    chosen = [row.compiled_peak_bytes for row in search.rows if row.chosen]
    rules = [Rule(f"chosen: {format_bytes(peak)}", peak, vertical=True) for peak in chosen]
    peaks, overheads = "compiled peak (bytes on one device)", "overhead (% of plain seconds)"
    return _chart("Schedules that the search compiled", peaks, overheads, series, rules, zero=False)
