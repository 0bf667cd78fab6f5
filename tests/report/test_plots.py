"""Pictures: the lines are the traces, axes have labels and units, no display, nothing leaks."""

import dataclasses
import importlib
import io
import subprocess
import sys

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from remat_plan.results.curves import Tradeoff, TradeoffPoint
from remat_plan.small.budget import format_bytes


@pytest.fixture(autouse=True)
def _no_pyplot(monkeypatch):
    """As in a script that does not use pyplot, whatever other tests imported."""
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)


def picture(ax):
    written = io.BytesIO()
    ax.figure.savefig(written, format="png")
    return written.getvalue()


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def ticks(axis):
    return [axis.get_major_formatter()(t) for t in axis.get_majorticklocs()]


def test_lines_are_the_traces(plan):
    ax = plan.plot()
    for line, trace in zip(ax.get_lines(), (plan.plain_timeline, plan.planned_timeline), strict=False):
        assert list(line.get_ydata()) == list(trace.live_bytes)
        assert list(line.get_xdata()) == pytest.approx([100 * p / (trace.steps - 1) for p in trace.positions])
    before, after, budget = ax.get_lines()
    assert max(before.get_ydata()) == plan.plain_timeline.peak_bytes
    assert max(after.get_ydata()) == plan.planned_timeline.peak_bytes
    assert set(budget.get_ydata()) == {plan.budget_bytes}


def test_owned_bytes_are_shaded(plan):
    (box,) = plan.plot().patches
    assert (box.get_y(), box.get_height()) == (0, plan.planned_timeline.owned_bytes)


def test_axes_have_labels_units_title_and_legend(plan):
    ax = plan.plot()
    assert ax.get_xlim() == (0, 100)
    assert "%" in ax.get_xlabel()
    assert "memory" in ax.get_ylabel()
    assert all(t.endswith("B") for t in ticks(ax.yaxis))
    assert f"{plan.overhead:.1%}" in ax.get_title()
    assert labels(ax) == [
        f"arguments and results: {format_bytes(plan.planned_timeline.owned_bytes)}",
        f"plain: predicted peak {format_bytes(plan.plain_timeline.peak_bytes)}",
        f"planned: predicted peak {format_bytes(plan.planned_timeline.peak_bytes)}",
        f"budget: {format_bytes(plan.budget_bytes)}",
    ]


def test_compiled_peaks_are_markers_at_the_predicted_ones(verified):
    _, _, before, after, _ = verified.plot().get_lines()
    sizes = (verified.plain_peak_bytes, verified.compiled_peak_bytes)
    for line, size, trace in zip(
        (before, after), sizes, (verified.plain_timeline, verified.planned_timeline), strict=True
    ):
        assert list(line.get_ydata()) == [size]
        at = [100 * p / (trace.steps - 1) for p in trace.positions]
        assert trace.live_bytes[at.index(pytest.approx(line.get_xdata()[0]))] == trace.peak_bytes
        assert line.get_linestyle() == "None"
        assert "compiled peak" in line.get_label()


def test_the_budget_can_be_seen_on_a_dark_ground(plan):
    matplotlib = importlib.import_module("matplotlib")
    with matplotlib.rc_context({"text.color": "white"}):
        assert plan.plot().get_lines()[-1].get_color() == "white"


def test_a_budget_far_above_does_not_flatten_the_rest(plan):
    far = dataclasses.replace(plan, budget_bytes=100 * plan.plain_timeline.peak_bytes)
    ax = far.plot()
    assert ax.get_ylim()[1] < 2 * plan.plain_timeline.peak_bytes
    assert len(ax.get_lines()) == 2


def test_pictures_are_written_without_a_display_and_without_pyplot(plan, curve):
    for ax in (plan.plot(), curve.plot()):
        assert picture(ax).startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules


def test_given_axes_are_drawn_on(plan, curve):
    figure = Figure()
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    assert plan.plot(left) is left
    assert curve.plot(right) is right
    assert left.get_lines()
    assert right.get_lines()


def test_pyplot_has_the_figure_where_pyplot_is_in_use(plan, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")  # also where another test took it out of sys.modules

    open_before = pyplot.get_fignums()
    try:
        figure = plan.plot().figure
        assert figure is pyplot.gcf()
        pyplot.close(figure)
        assert pyplot.get_fignums() == open_before
    finally:
        for number in set(pyplot.get_fignums()) - set(open_before):
            pyplot.close(number)


def test_the_curve_is_stairs_through_the_points(curve):
    ax = curve.plot()
    stairs, plain = ax.get_lines()
    assert stairs.get_drawstyle() == "steps-post"
    assert list(stairs.get_xdata()) == [p.peak_bytes for p in curve.points]
    assert list(stairs.get_ydata()) == [p.overhead for p in curve.points]
    assert list(plain.get_xdata()) == [curve.points[-1].peak_bytes]
    assert all(t.endswith("B") for t in ticks(ax.xaxis))
    assert all(t.endswith("%") for t in ticks(ax.yaxis))
    assert curve.target in ax.get_title()
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert len(labels(ax)) == 2


def test_a_comparison_is_a_line_for_each_strategy(comparison):
    ax = comparison.plot()
    line, plain = ax.get_lines()
    made = sorted((r.peak_bytes, r.plan.overhead) for r in comparison.rows if r.plan is not None)
    assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == made
    assert set(plain.get_xdata()) == {comparison.written_peak_bytes}
    assert labels(ax)[0] == "auto"
    assert all(t.endswith("B") for t in ticks(ax.xaxis))
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    picture(dataclasses.replace(comparison, rows=()).plot())


def test_an_analysis_is_a_bar_for_each_group(analysis):
    ax = analysis.plot()
    widths = [bar.get_width() for bar in sorted(ax.patches, key=lambda bar: bar.get_y())]  # from the top
    assert widths == sorted(widths, reverse=True)
    assert sum(widths) <= sum(r.size_bytes for r in analysis.residuals)
    assert all("conftest.py:" in t.get_text() for t in ax.get_yticklabels())
    assert format_bytes(analysis.saved_bytes) in ax.get_title()
    assert all(t.endswith("B") for t in ticks(ax.xaxis))
    assert len(labels(ax)) == 2
    picture(ax)
    picture(dataclasses.replace(analysis, residuals=()).plot())


def test_a_curve_shows_what_saves_time():
    ax = Tradeoff((TradeoffPoint(1000, 0.2), TradeoffPoint(2000, -0.1)), "cpu", lambda budget, verify: None).plot()
    assert ax.get_ylim()[0] <= -0.1


def test_curves_of_few_points():
    for points in [(), (TradeoffPoint(1000, 0.0),)]:
        picture(Tradeoff(points, "cpu", lambda budget, verify: None).plot())


@pytest.mark.parametrize("draw", ["plan", "curve"])
def test_without_matplotlib_the_error_says_what_to_install(draw, request, monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "remat_plan\[plot\]"'):
        request.getfixturevalue(draw).plot()


@pytest.mark.slow
def test_matplotlib_is_not_imported_before_something_is_drawn():
    program = "import sys, remat_plan.report.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
