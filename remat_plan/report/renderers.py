"""Which line, table and chart show which result, in every medium.

In: nothing. Out: a ``Renderer`` for each type of ``results`` that is shown. Imported when the first result is shown;
rich and matplotlib are imported when something is drawn by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remat_plan.report import analyses, curves, html, plans, plots, steps, text
from remat_plan.report.charts import BarChart, Chart
from remat_plan.report.tables import Table
from remat_plan.results.analysis import Analysis
from remat_plan.results.curves import Comparison, Tradeoff
from remat_plan.results.evidence import Search
from remat_plan.results.measurement import Measurement
from remat_plan.results.plan import Plan
from remat_plan.results.steps import LargestSizes, StepReport


@dataclass(frozen=True, slots=True)
class Renderer:
    """What shows results of one type in every medium: by a line for the debugger (``repr``), a table, a chart."""

    line: Callable[[Any], str]
    table: Callable[[Any], Table]
    chart: Callable[[Any], Chart | BarChart]

    def text(self, thing: Any) -> str:
        """Plain text, for ``print``."""
        return text.layout(self.table(thing))

    def rich(self, thing: Any) -> Any:
        """A renderable of the package rich."""
        return text.by_rich(self.table(thing))

    def html(self, thing: Any) -> str:
        """A fragment for notebooks; what is a bar chart by matplotlib has its bars in the table, or none."""
        drawn = self.chart(thing)
        return html.render(self.table(thing), drawn if isinstance(drawn, Chart) else None)

    def plot(self, thing: Any, ax: Any) -> Any:
        """A picture by matplotlib, on the axes given or, for None, on new ones; returns the axes."""
        return plots.draw(self.chart(thing), ax)


RENDERERS: dict[type, Renderer] = {
    Plan: Renderer(plans.plan_line, plans.plan_table, plans.plan_chart),
    Analysis: Renderer(analyses.analysis_line, analyses.analysis_table, analyses.analysis_chart),
    Tradeoff: Renderer(curves.tradeoff_line, curves.tradeoff_table, curves.tradeoff_chart),
    Comparison: Renderer(curves.comparison_line, curves.comparison_table, curves.comparison_chart),
    Search: Renderer(curves.search_line, curves.search_table, curves.search_chart),
    StepReport: Renderer(steps.step_line, steps.step_table, steps.step_chart),
    LargestSizes: Renderer(steps.sizes_line, steps.sizes_table, steps.sizes_chart),
    Measurement: Renderer(steps.measurement_line, steps.measurement_table, steps.measurement_chart),
}
