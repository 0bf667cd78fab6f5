"""Which functions show which result.

In: nothing. Out: a ``Renderer`` for each type of ``results`` that is shown. Imported when the first result is shown;
rich and matplotlib are imported when something is drawn by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remat_plan.report import html, measured, plots, searched, steps, tables, text
from remat_plan.report.tables import Table
from remat_plan.report.terminal import render
from remat_plan.results.analysis import Analysis
from remat_plan.results.batch_sizes import BatchSizes
from remat_plan.results.comparison import Comparison
from remat_plan.results.measurement import Measurement
from remat_plan.results.plan import Plan
from remat_plan.results.shown import Renderer
from remat_plan.results.step_report import StepReport
from remat_plan.results.tradeoff import Tradeoff
from remat_plan.results.tried import Search


def _by_table(
    line: Callable[[Any], str],
    table: Callable[[Any], Table],
    fragment: Callable[[Any], str],
    plot: Callable[[Any, Any], Any],
) -> Renderer:
    """A renderer whose plain text and rich renderable are one table, laid out in two ways."""

    def lay_out(thing: Any) -> str:
        return text.layout(table(thing))

    def draw(thing: Any) -> Any:
        return render(table(thing))

    return Renderer(line, lay_out, draw, fragment, plot)


RENDERERS: dict[type, Renderer] = {
    Plan: _by_table(text.plan_line, tables.plan_table, html.plan_html, plots.plot_plan),
    Analysis: _by_table(text.analysis_line, tables.analysis_table, html.analysis_html, plots.plot_analysis),
    Tradeoff: _by_table(text.tradeoff_line, tables.tradeoff_table, html.tradeoff_html, plots.plot_tradeoff),
    Comparison: _by_table(text.comparison_line, tables.comparison_table, html.comparison_html, plots.plot_comparison),
    StepReport: _by_table(
        steps.step_line, steps.step_table, lambda r: html.table_html(steps.step_table(r)), steps.plot_step
    ),
    BatchSizes: _by_table(
        steps.batch_line, steps.batch_table, lambda s: html.table_html(steps.batch_table(s)), steps.plot_batches
    ),
    Measurement: _by_table(
        measured.measurement_line,
        measured.measurement_table,
        lambda m: html.table_html(measured.measurement_table(m)),
        measured.plot_measurement,
    ),
    Search: _by_table(
        searched.search_line,
        searched.search_table,
        lambda s: html.table_html(searched.search_table(s)),
        searched.plot_search,
    ),
}
