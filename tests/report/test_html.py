"""HTML: well formed, escaped, from no network; charts have all points."""

import dataclasses
import random
import re
from html.parser import HTMLParser

import pytest

import remat_plan as rp
from remat_plan.report import svg
from remat_plan.report.charts import PLAIN, Axis, Chart, Series
from remat_plan.report.entries import plan_entries
from remat_plan.report.html import ENTRIES, page
from remat_plan.results.curves import Tradeoff, TradeoffPoint
from remat_plan.small.budget import format_bytes

NASTY = "<script>alert('&\"')</script>"


class Reader(HTMLParser):
    """Checks that elements are closed in order; collects texts and attributes."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.texts, self.attributes = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += [(tag, *a) for a in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.texts.append(data)


def read(fragment):
    reader = Reader()
    reader.feed(fragment)
    reader.close()
    assert reader.open == []
    return reader


def shown(reader):
    return "\n".join(reader.texts)


def test_fragments_are_well_formed_and_self_contained(plan, verified, identity, analysis, curve, comparison):
    for thing in (plan, verified, identity, analysis, curve, comparison):
        fragment = thing._repr_html_()
        reader = read(fragment)
        assert (fragment[:4], fragment[-6:]) == ("<div", "</div>")
        assert not {"script", "link", "img", "iframe", "html", "body"} & set(reader.seen)
        assert not [word for word in ("http", "url(", "@import") if word in fragment]


def test_no_rule_of_a_notebook_reaches_a_table(plan, analysis, curve, comparison):
    """What Jupyter says of tables, rows and cells is said in an attribute of each, which no rule of a page beats."""
    said = {
        "table": ("table-layout:", "margin:", "border"),
        "tr": ("background:transparent", "border"),
        "th": ("text-align:", "vertical-align:", "background:", "border:", "padding:", "white-space:nowrap"),
        "td": ("text-align:", "vertical-align:", "background:", "border:", "padding:"),
        "code": ("background:transparent", "color:inherit", "padding:"),
    }
    for thing in (plan, analysis, curve, comparison, rp.strategies()):
        reader = read(thing._repr_html_())
        styles = [(tag, value) for tag, name, value in reader.attributes if name == "style" and tag in said]
        assert len(styles) == sum(tag in said for tag in reader.seen)
        assert all(word in value for tag, value in styles for word in said[tag])


def test_prose_is_on_the_left_and_figures_on_the_right(plan):
    cells = re.findall(r'text-align:(left|right)[^"]*"[^>]*>([^<]+)<', plan._repr_html_())
    assert {side for side, text in cells if re.fullmatch(r"[\d.,]+ ([kMG]?B|[kMG]?FLOP)", text)} == {"right"}
    assert {side for side, text in cells if re.match("recompute all|unchanged|plain peak|save ", text)} == {"left"}


def test_no_colour_of_one_theme(plan, analysis, curve, comparison):
    """Black or white text or ground would be gone in a dark or a light notebook."""
    for thing in (plan, analysis, curve, comparison, rp.strategies()):
        assert not re.search(r'#(0{3}|0{6}|f{3}|f{6})\b|[:=]"?(black|white)\b', thing._repr_html_(), re.I)


def test_what_has_no_colour_of_its_own_takes_that_of_the_page(plan):
    charts = re.findall(r"<svg [^>]*>", plan._repr_html_())
    assert len(charts) > 3  # keys of the legend are charts too
    assert all('fill="currentColor"' in chart for chart in charts)


def test_style_is_for_the_fragment_only(plan):
    style = re.search(r"<style>(.*?)</style>", plan._repr_html_(), re.S).group(1)
    selectors = [s.strip() for rule in style.split("}")[:-1] for s in rule.split("{")[0].split(",")]
    assert all(s.startswith(".remat-plan") for s in selectors)


def test_the_figures_of_a_plan_are_shown(verified):
    verified = dataclasses.replace(verified, lower_bound=verified.overhead / 2)
    texts = shown(read(verified._repr_html_()))
    for size in (
        verified.written_peak_bytes, verified.budget_bytes, verified.predicted_peak_bytes,
        verified.compiled_peak_bytes, verified.plain_timeline.peak_bytes, verified.planned_timeline.owned_bytes,
    ):  # fmt: skip
        assert format_bytes(size) in texts
    assert verified.fingerprint in texts
    assert f"{verified.gap:.1%}" in texts
    assert "position in the gradient step (% of its instructions)" in texts


def test_the_timeline_has_all_points(plan):
    chart = plan._repr_html_().split('role="img"')[1]
    lines = re.findall(r'<polyline points="([^"]*)"', chart)
    assert [len(line.split()) for line in lines] == [
        len(t.positions) for t in (plan.plain_timeline, plan.planned_timeline)
    ]
    heights = [float(point.split(",")[1]) for point in lines[0].split()]
    highest = heights.index(min(heights))
    assert plan.plain_timeline.live_bytes[highest] == plan.plain_timeline.peak_bytes


def test_pointing_at_the_timeline_tells_values(plan):
    titles = re.findall(r"<title>(at .*?)</title>", plan._repr_html_())
    assert len(titles) == 100
    assert any(f"plain {format_bytes(plan.plain_timeline.peak_bytes)}" in t for t in titles)
    assert any(f"planned {format_bytes(plan.planned_timeline.peak_bytes)}" in t for t in titles)


def test_compiled_peaks_are_marked_where_the_peaks_are_predicted(plan, verified):
    assert "compiled peak" not in plan._repr_html_().split("<svg", 1)[1]  # not compiled
    chart = verified._repr_html_()
    for word, size in (("plain", verified.plain_peak_bytes), ("planned", verified.compiled_peak_bytes)):
        assert chart.count(f"{word}: compiled peak {format_bytes(size)}") == 2  # in the legend, and at the marker
        assert f"{word}: predicted peak" in chart


def test_the_budget_is_a_line_where_it_is_in_sight(plan):
    assert "stroke-dasharray" in plan._repr_html_()
    far = dataclasses.replace(plan, budget_bytes=100 * plan.written_peak_bytes)
    assert "stroke-dasharray" not in far._repr_html_()
    assert f">budget: {format_bytes(far.budget_bytes)}</span>" in far._repr_html_()
    assert ">budget: none</span>" in dataclasses.replace(plan, budget_bytes=None)._repr_html_()


def test_there_is_a_row_for_each_entry(plan, with_schedule):
    for made in (plan, with_schedule([["a", ["b", "b"]], "a", ".", "f"])):
        body = made._repr_html_().split("<tbody>")[-1]
        assert body.count("<tr ") == len(plan_entries(made))
    nested = with_schedule([["a", ["b", "b"]]])._repr_html_()
    assert [f"padding-left:{n}px" in nested for n in (0, 20, 40, 60)] == [True, True, True, False]


def test_long_tables_are_cut(with_schedule):
    long = with_schedule(random.Random(0).choices("abcdefgh", k=300))
    fragment = long._repr_html_()
    assert f"... and {len(plan_entries(long)) - ENTRIES} more rows" in fragment
    read(fragment)


def test_everything_is_escaped(plan, analysis, curve, comparison):
    decisions = tuple(dataclasses.replace(d, source=NASTY, saved=(NASTY,) * len(d.saved)) for d in plan.decisions)
    bad_plan = dataclasses.replace(
        plan, target=NASTY, strategy=NASTY, budget=NASTY, notes=(NASTY,), decisions=decisions
    )
    rows = tuple(
        dataclasses.replace(r, name=NASTY, source=NASTY, function=NASTY, read_by=NASTY, dtype=NASTY)
        for r in analysis.residuals
    )
    for thing in (
        bad_plan,
        dataclasses.replace(analysis, residuals=rows),
        dataclasses.replace(curve, target=NASTY),
        dataclasses.replace(
            comparison,
            target=NASTY,
            rows=tuple(dataclasses.replace(r, strategy=NASTY, budget=NASTY, problem=NASTY) for r in comparison.rows),
        ),
    ):
        reader = read(thing._repr_html_())
        assert "script" not in reader.seen
        assert not any(name.startswith("on") for _, name, _ in reader.attributes)
        assert "alert" in shown(reader)


def test_names_of_the_program_are_escaped(analysis):
    fragment = analysis._repr_html_()
    assert "<b>" not in fragment
    assert "&lt;b&gt;activation&lt;/b&gt;" in fragment
    assert "'<b>activation</b>'" in shown(read(fragment))


def test_a_curve_has_a_dot_and_a_row_for_each_point(curve):
    fragment = curve._repr_html_()
    assert fragment.split('role="img"')[1].count("<circle") == len(curve.points)
    assert fragment.split("<tbody>")[-1].count("<tr ") == len(curve.points)
    for point in curve.points:
        assert f"peak {format_bytes(point.peak_bytes)}, overhead {point.overhead:.1%}" in fragment


def test_a_comparison_has_a_dot_for_each_plan_and_a_row_for_each_budget(comparison):
    fragment = comparison._repr_html_()
    plans = [row.plan for row in comparison.rows if row.plan is not None]
    assert fragment.split('role="img"')[1].count("<circle") == len(plans) == 2
    assert fragment.split("<tbody>")[-1].count("<tr ") == len(comparison.rows)
    for plan in plans:
        assert f"auto: peak {format_bytes(plan.predicted_peak_bytes)}, overhead {plan.overhead:.1%}" in fragment
    none = dataclasses.replace(comparison, rows=comparison.rows[2:])
    assert "<circle" not in none._repr_html_()


def test_a_page_is_a_document_around_the_fragment(plan):
    whole = page(NASTY, plan._repr_html_())
    reader = Reader()
    reader.feed(whole.replace("<!doctype html>", "").replace('<meta charset="utf-8">', "").replace(
        '<meta name="viewport" content="width=device-width, initial-scale=1">', ""))  # fmt: skip
    assert reader.open == []
    assert {"html", "head", "title", "body", "svg", "table"} <= set(reader.seen)
    assert "script" not in reader.seen
    assert "color-scheme: light dark" in whole
    assert not [word for word in ("http", "url(", "@import") if word in whole]
    assert len(whole) < 100_000


def test_curves_of_few_points():
    for points in [(), (TradeoffPoint(1000, 0.0),)]:
        read(Tradeoff(points, "cpu", lambda budget, verify: None)._repr_html_())


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 100), (0, 8.8e9), (278_000, 357_000), (0, 1e-3), (5, 5)])
def test_ticks_are_few_round_and_within(low, high):
    ticks = Axis("", low, high, str).ticks()
    assert len(ticks) <= 7
    assert all(low - 1e-9 <= t <= high + 1e-9 for t in ticks)
    if high > low:
        assert len(ticks) >= 2


def test_points_stand_where_the_axes_say():
    axis = Axis("", 0, 10, str)
    chart = svg.render(Chart("", axis, axis, (Series("", PLAIN, [0, 10], [0, 10]),))).split('role="img"')[1]
    (u0, v0), (u1, v1) = (map(float, p.split(",")) for p in re.search(r'points="([^"]*)"', chart).group(1).split())
    assert u0 < u1
    assert v0 > v1  # up is more
