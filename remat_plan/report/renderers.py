"""Which line, table and chart show which result, in every medium.

In: nothing. Out: a ``Renderer`` for each type of ``results`` that is shown. Imported when the first result is shown;
rich and matplotlib are imported when something is drawn by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remat_plan.report import analyses, curves, html, plans, plots, steps, text
from remat_plan.report.charts import BarChart, Chart
from remat_plan.report.tables import Table
from remat_plan.results.analysis import Analysis
from remat_plan.results.curves import Comparison, Tradeoff
from remat_plan.results.evidence import Search
from remat_plan.results.measurement import Measurement
from remat_plan.results.plan import Plan
from remat_plan.results.shown import Renderer
from remat_plan.results.steps import LargestSizes, StepReport


def _renderer(
    line: Callable[[Any], str], table: Callable[[Any], Table], chart: Callable[[Any], Chart | BarChart]
) -> Renderer:
    """Show a result by its data: what is a bar chart by matplotlib has its bars in the table of HTML, or none."""

    def page(thing: Any) -> str:
        drawn = chart(thing)
        return html.render(table(thing), drawn if isinstance(drawn, Chart) else None)

    return Renderer(
        line=line,
        text=lambda thing: text.layout(table(thing)),
        rich=lambda thing: text.by_rich(table(thing)),
        html=page,
        plot=lambda thing, ax: plots.draw(chart(thing), ax),
    )


RENDERERS: dict[type, Renderer] = {
    Plan: _renderer(plans.plan_line, plans.plan_table, plans.plan_chart),
    Analysis: _renderer(analyses.analysis_line, analyses.analysis_table, analyses.analysis_chart),
    Tradeoff: _renderer(curves.tradeoff_line, curves.tradeoff_table, curves.tradeoff_chart),
    Comparison: _renderer(curves.comparison_line, curves.comparison_table, curves.comparison_chart),
    Search: _renderer(curves.search_line, curves.search_table, curves.search_chart),
    StepReport: _renderer(steps.step_line, steps.step_table, steps.step_chart),
    LargestSizes: _renderer(steps.sizes_line, steps.sizes_table, steps.sizes_chart),
    Measurement: _renderer(steps.measurement_line, steps.measurement_table, steps.measurement_chart),
}
