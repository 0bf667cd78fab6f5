"""Plans, analyses, curves and comparisons as plain text for a terminal or a log.

In: ``Table``; ``Plan``, ``Analysis``, ``Tradeoff``, ``Comparison`` for lines. Out: strings in ASCII; tables are at most
``WIDTH`` columns wide.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remat_plan.report.rows import Fact, best_overhead, budget_text, number_of
from remat_plan.report.tables import Column, Line, Table
from remat_plan.units import format_bytes

if TYPE_CHECKING:
    from remat_plan.results.analysis import Analysis
    from remat_plan.results.comparison import Comparison
    from remat_plan.results.plan import Plan
    from remat_plan.results.tradeoff import Tradeoff

WIDTH = 110
_GAP = "  "


def summary_line(plan: Plan) -> str:
    """One line: peak before and after, budget, overhead."""
    peak = plan.compiled_peak_bytes if plan.compiled_peak_bytes is not None else plan.predicted_peak_bytes
    word = "compiled" if plan.compiled_peak_bytes is not None else "predicted"
    before = format_bytes(plan.written_peak_bytes)
    if plan.has_own_remat:
        before += f" as written, {format_bytes(plan.plain_peak_bytes)} plain"
    overhead, source = best_overhead(plan)
    return f"{before} -> {format_bytes(peak)} {word}, budget {budget_text(plan)}, overhead {overhead:.1%} {source}"


def status_line(
    fn: Any, written_bytes: int, peak_bytes: int, overhead: tuple[float, str], compiles: int, seconds: float
) -> str:
    """What became of a function, in one line.

    >>> status_line(sum, 81_200_000, 47_500_000, (0.041, "compiled"), 2, 3.1)
    'sum 81.2 MB -> 47.5 MB (58% of what it needs as written), +4.1% compiled, 2 compiles, 3.1 s'
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    share = f"{peak_bytes / max(written_bytes, 1):.0%} of what it needs as written"
    peaks = f"{format_bytes(written_bytes)} -> {format_bytes(peak_bytes)} ({share})"
    return f"{name} {peaks}, {overhead[0]:+.1%} {overhead[1]}, {number_of(compiles, 'compile')}, {seconds:.1f} s"


def plan_status(plan: Plan, fn: Any, compiles: int) -> str:
    """What became of a function that was planned, in one line."""
    peak = plan.compiled_peak_bytes if plan.compiled_peak_bytes is not None else plan.predicted_peak_bytes
    return status_line(fn, plan.written_peak_bytes, peak, best_overhead(plan), compiles, plan.planning_seconds)


def plan_line(plan: Plan) -> str:
    """A plan for the debugger."""
    return f"<Plan {plan.strategy} {plan.fingerprint}: {summary_line(plan)}>"


def analysis_line(analysis: Analysis) -> str:
    """An analysis for the debugger."""
    saved, needed = format_bytes(analysis.saved_bytes), format_bytes(analysis.minimum_residual_bytes)
    return f"<Analysis of {number_of(analysis.equations, 'equation')}: {saved} saved, {needed} needed>"


def tradeoff_line(curve: Tradeoff) -> str:
    """A curve for the debugger: its two ends."""
    ends = [format_bytes(p.peak_bytes) for p in (*curve.points[:1], *curve.points[1:][-1:])]
    return f"<Tradeoff for {curve.target}: {number_of(len(curve.points), 'schedule')}, {' to '.join(ends) or 'empty'}>"


def comparison_line(comparison: Comparison) -> str:
    """A comparison for the debugger."""
    met = sum(row.plan is not None for row in comparison.rows)
    return f"<Comparison for {comparison.target}: {met} of {number_of(len(comparison.rows), 'budget')} met>"


def layout(table: Table) -> str:
    """Lay a table out: title, figures, notes, columns with two spaces between them, footnotes."""
    parts = [table.title, ""]
    if table.facts or table.notes:
        parts += [*_facts(table.facts), *(line for note in table.notes for line in _note(note)), ""]
    widths = _widths(table)
    where = sum(w + len(_GAP) for w, c in zip(widths, _until_flexible(table.columns), strict=False))
    parts.append(_row(table.columns, [c.header for c in table.columns], widths))
    parts.append("-" * (sum(widths) + len(_GAP) * (len(widths) - 1)))
    for line in table.lines:
        parts.append(_row(table.columns, _cells(table.columns, line), widths))
        parts += _below(line, where + line.indent + 2)
    return "\n".join([*parts, *map(fit, table.footnotes)])


def _note(text: str) -> list[str]:
    """A note, whole: what it says to do stands at its end."""
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def fit(text: str, width: int = WIDTH) -> str:
    """Cut the end of what is too wide."""
    return text if len(text) <= width else text[: width - 3] + "..."


def fit_end(text: str, width: int) -> str:
    """Cut the beginning of what is too wide: line numbers stand at the end."""
    return text if len(text) <= width else "..." + text[-(width - 3) :]


def _facts(facts: Sequence[Fact]) -> list[str]:
    label = max((len(f.label) for f in facts), default=0)
    figure = max((len(f.figure) for f in facts), default=0)
    lines = []
    for f in facts:
        share = "" if f.share is None else f"{f.share:.1%}"
        lines.append(fit(f"  {f.label:<{label}}  {f.figure:>{figure}}  {share:>7}  {f.remark}".rstrip()))
    return lines


def _until_flexible(columns: Sequence[Column]) -> list[Column]:
    """The columns to the left of the one that gives way."""
    return list(columns[: next(i for i, c in enumerate(columns) if c.flexible)])


def _cells(columns: Sequence[Column], line: Line) -> list[str]:
    """The texts of a line, cut to what a column takes at most; the flexible one indented."""
    cells = []
    for column, cell in zip(columns, line.cells, strict=True):
        cut = fit_end if column.keep_end else fit
        cell = cut(cell, column.most) if column.most else cell
        cells.append(" " * line.indent + cell if column.flexible else cell)
    return cells


def _widths(table: Table) -> list[int]:
    """Widths of the columns: as wide as their widest cell; the flexible one gives way."""
    rows = [[c.header for c in table.columns], *(_cells(table.columns, line) for line in table.lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    spare = WIDTH - (sum(widths) + len(_GAP) * (len(widths) - 1))
    flexible = len(_until_flexible(table.columns))
    widths[flexible] = max(widths[flexible] + min(spare, 0), len(table.columns[flexible].header), 8)
    return widths


def _row(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    return fit(
        _GAP.join(f"{fit(cell, w):{c.align}{w}}" for c, cell, w in zip(columns, cells, widths, strict=True)).rstrip()
    )


def _below(line: Line, column: int) -> list[str]:
    text = line.below(WIDTH - column) if line.below is not None else ""
    return [fit(" " * column + text)] if text else []
