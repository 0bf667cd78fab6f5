"""Plain text: figures are there, lines fit, what repeats is folded, nesting is a tree."""

import dataclasses
import itertools
import random

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.graph.schedule import as_is
from remat_plan.report import analyses, plans, text
from remat_plan.report.entries import plan_entries
from remat_plan.report.plans import plan_status
from remat_plan.report.tables import format_flops
from remat_plan.results.analysis import Residual
from remat_plan.results.curves import Tradeoff, TradeoffPoint
from remat_plan.results.evidence import Search
from remat_plan.small.budget import format_bytes


def table(plan):
    """The lines of the table of decisions, header and footnotes left out."""
    lines = str(plan).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("---")) + 1
    return [line for line in lines[start:] if not line.startswith(("Bytes and", "What blocks", "Rows below"))]


def line_of(shown, label):
    return next(line for line in shown.splitlines() if line.strip().startswith(label))


def test_the_figures_of_a_plan_are_shown(plan):
    shown = str(plan)
    assert plan.fingerprint in shown
    assert plan.target in shown
    for label, size in [
        ("plain peak", plan.written_peak_bytes),
        ("budget", plan.budget_bytes),
        ("predicted peak", plan.predicted_peak_bytes),
    ]:
        assert format_bytes(size) in line_of(shown, label)
        assert f"{size / plan.written_peak_bytes:.1%}" in line_of(shown, label)
    assert f"{plan.overhead:.1%}" in line_of(shown, "overhead")
    assert format_flops(plan.plain_flops) in line_of(shown, "FLOPs, plain")
    assert format_flops(plan.step_flops) in line_of(shown, "FLOPs, planned")
    assert "asked for: 40%" in line_of(shown, "budget")


def test_a_gap_is_shown_where_there_is_a_bound(plan):
    bounded, unbounded = (dataclasses.replace(plan, lower_bound=bound) for bound in (plan.overhead / 2, 0.0))
    assert f"{bounded.gap:.1%}" in line_of(str(bounded), "gap")
    assert not [line for line in str(unbounded).splitlines() if line.strip().startswith("gap")]


def test_the_compiled_peak_is_shown_when_it_was_compiled(plan, verified):
    assert "verify=False" in line_of(str(plan), "compiled peak")
    line = line_of(str(verified), "compiled peak")
    assert format_bytes(verified.compiled_peak_bytes) in line
    assert "to spare" in line
    over = dataclasses.replace(verified, budget_bytes=verified.compiled_peak_bytes - 5000)
    assert "5 kB above the budget" in line_of(str(over), "compiled peak")


def test_the_overhead_is_one_figure_the_best_known_and_says_whose(plan, verified, identity):
    chosen = dataclasses.replace(verified.search.rows[0], chosen=True, measured_overhead=0.042)
    measured = dataclasses.replace(verified, search=Search((chosen,)))
    unchanged = dataclasses.replace(measured, schedule=identity.schedule, compiled_overhead=0.0)
    for shown, overhead, source in (
        (unchanged, 0.0, "compiled"),
        (plan, plan.overhead, "predicted"),
        (verified, verified.compiled_overhead, "compiled"),
        (measured, 0.042, "measured"),
    ):
        (line,) = [line for line in str(shown).splitlines() if line.strip().startswith("overhead")]
        assert f"{overhead:.1%}  {source}: " in line
        assert f"overhead {overhead:.1%} {source}" in repr(shown)
        assert f"{overhead:+.1%} {source}," in plan_status(shown, len, 2)
        html = shown._repr_html_()
        assert html.count(">overhead</td>") == 1
        assert f">{overhead:.1%}<" in html
        assert f"{source}: " in html


def test_one_sentence_says_why_recomputing_takes_no_time(verified):
    def said(overhead, **others):
        changed = dataclasses.replace(verified, compiled_overhead=overhead, **others)
        return line_of(str(changed), "overhead")

    assert verified.step_flops > verified.plain_flops
    assert "0.0%  compiled: recomputing is free here, with less memory traffic" in said(0.0004)
    assert "-12.5%  compiled: faster than the plain step, with less memory traffic" in said(-0.125)
    assert "0.1%  compiled: extra seconds" in said(0.0006)
    assert "extra seconds" in said(0.0, step_flops=verified.plain_flops), "nothing is recomputed"


def test_seconds_are_shown_where_they_are_known(plan):
    assert f"planned in {plan.planning_seconds:.1f} s" in str(plan)
    assert "planned in" not in str(rp.Plan.from_json(plan.to_json()))


def test_text_is_the_same_each_time_and_after_json(plan):
    again = dataclasses.replace(rp.Plan.from_json(plan.to_json()), planning_seconds=plan.planning_seconds)
    assert str(again) == str(plan)


def test_notes_are_shown(plan):
    assert "note: look here" in str(dataclasses.replace(plan, notes=("look here",)))


def test_a_plan_that_leaves_all_as_it_is_says_so(identity):
    (line,) = table(identity)
    assert "unchanged" in line
    assert f"0-{identity.schedule[0].end - 1}" in line


def test_the_table_covers_all_equations(plan):
    entries = [e for e in plan_entries(plan) if e.indent == 0]
    assert entries[0].start == 0
    assert entries[-1].end == plan.schedule[-1].end
    assert all(a.end == b.start for a, b in itertools.pairwise(entries))


def test_what_is_done_is_said_in_words(with_schedule):
    saves_one, saves_six, values, plain = table(with_schedule("af."))
    assert "save tanh float32[250000] :0, recompute the rest" in saves_one
    assert "save 6 values, recompute the rest" in saves_six
    assert "6 MB" in saves_six
    assert "6 GFLOP" in saves_six
    assert saves_six.endswith("model.py:6")
    assert values.strip().startswith("tanh float32[250000] :0; tanh float32[250000] :1;")
    assert values.endswith(" more")
    assert "unchanged" in plain


def test_equal_neighbours_are_one_line(with_schedule):
    (line,) = table(with_schedule("a" * 1000))
    assert line.startswith("1000 x")
    assert "0-9999" in line


def test_equal_groups_are_folded(with_schedule):
    rows = [line for line in table(with_schedule("d" + "ba" * 11 + "c")) if "tanh" not in line.split("save")[0]]
    assert [("times:" in r, "save" in r) for r in rows] == [
        (False, True), (True, False), (False, True), (False, True), (False, True),
    ]  # fmt: skip
    assert "10-229" in rows[1]
    assert "11 times:" in rows[1]
    assert "10-19" in rows[2]
    assert "20-29" in rows[3]
    assert rows[2].index("save") == rows[1].index("11 times:") + 2
    assert rows[4].index("save") == rows[1].index("11 times:")


def test_groups_of_a_folded_table_merge_with_rows_that_are_merged_already(with_schedule):
    """decisions.decide merges equal neighbours itself; folding sees through it."""
    plan = with_schedule("aab" * 3)
    merged = []
    for d in plan.decisions:
        if merged and merged[-1].like == d.like:
            first = merged.pop()
            where = (first.equations[0], d.equations[1])
            d = dataclasses.replace(first, count=first.count + 1, equations=where)
        merged.append(d)
    assert len(merged) == 6
    assert str(dataclasses.replace(plan, decisions=tuple(merged))) == str(plan)


def test_nested_checkpoints_are_a_tree(with_schedule):
    shown = table(with_schedule([["a", ["a", "a"]], "a"]))
    column = shown[0].index("checkpoint around:")
    words = ["checkpoint" if "checkpoint" in line else "save" for line in shown]
    assert [(line.index(w) - column) // 2 for line, w in zip(shown, words, strict=True)] == [0, 1, 1, 2, 0]
    assert shown[3].startswith("2 x")


def test_equal_trees_are_folded(with_schedule):
    shown = table(with_schedule([["a", "a", "a"]] * 32 + [["a", "a"]]))
    assert len(shown) == 4
    assert shown[0].startswith("32 x")
    assert "0-959" in shown[0]
    assert shown[1].startswith(" 3 x")
    assert "0-29" in shown[1]


def test_long_tables_are_cut(with_schedule):
    shown = table(with_schedule(random.Random(0).choices("abcdefgh", k=300)))
    assert shown[-1].startswith("... and ")
    assert shown[-1].endswith(" more rows")
    assert len(shown) <= 2 * plans.ENTRIES + 1


@pytest.mark.parametrize("depth", [0, 3, 30])
def test_plans_fit_the_width(with_schedule, depth):
    items = ["z", "e"]
    for _ in range(depth):
        items = [items, "z"]
    plan = with_schedule(items)
    long = dataclasses.replace(plan.decisions[-1], source="x" * 300 + ".py:123-456", saved=("tanh " + "y" * 300,) * 4)
    plan = dataclasses.replace(plan, decisions=(*plan.decisions[:-1], long), notes=("z" * 300,))
    lines = str(plan).splitlines()
    assert max(map(len, lines)) <= text.WIDTH
    assert any(line.endswith(".py:123-456") for line in lines) or depth == 30


def test_a_plan_is_ascii(plan, identity):
    assert (str(plan) + str(identity)).isascii()


def test_the_totals_of_an_analysis_are_shown(analysis):
    shown = str(analysis)
    for label, size in [
        ("plain JAX saves", analysis.saved_bytes),
        ("minimum required", analysis.minimum_residual_bytes),
        ("arguments", analysis.argument_bytes),
    ]:
        assert format_bytes(size) in line_of(shown, label)
    assert f"{analysis.equations} equations" in shown


def test_equal_residuals_are_one_line_with_a_count(analysis):
    rows = [line for line in str(analysis).splitlines() if "float32[4096,64]" in line and " x " in line]
    assert rows
    total = sum(r.size_bytes for r in analysis.residuals if r.shape == (4096, 64) and r.primitive != "argument")
    counts = sum(int(line.split(" x ")[0].split()[-1]) for line in rows)
    singles = [
        line for line in str(analysis).splitlines() if "float32[4096,64]  " in line and " x " not in line
    ]  # a residual of its own
    assert (counts + len(singles)) * 4096 * 64 * 4 == total


def test_residuals_say_name_status_and_line(analysis):
    shown = str(analysis)
    assert "'<b>activation</b>'" in shown
    assert "conftest.py:" in shown
    assert "saved, internal of tanh's rule" in shown


def _residual(number, **other):
    row = Residual(4 * number, (number,), "float32", "sin", f"/a/b/c.py:{number}", "f", "", "value", True, True, "mul")
    return dataclasses.replace(row, **other)


def test_long_analyses_are_cut_and_fit(analysis):
    rows = tuple(_residual(n, name="n" * 200, read_by="r" * 200, source="/" + "s" * 200) for n in range(1, 51))
    lines = str(dataclasses.replace(analysis, residuals=rows)).splitlines()
    assert max(map(len, lines)) <= text.WIDTH
    assert f"... and {50 - analyses.RESIDUALS} more" in "\n".join(lines)


@pytest.mark.parametrize(
    ("saved", "needed", "status"),
    [(True, True, "saved and needed by mul"), (True, False, "saved by mul, not needed"),
     (False, True, "needed by mul, not saved")],
)  # fmt: skip
def test_status_of_a_residual(analysis, saved, needed, status):
    shown = str(dataclasses.replace(analysis, residuals=(_residual(8, saved=saved, needed=needed),)))
    assert status in shown
    assert "c.py:8" in shown


def test_an_analysis_of_nothing(analysis):
    nothing = dataclasses.replace(analysis, residuals=(), saved_bytes=0, minimum_residual_bytes=0, equations=0)
    assert "0 B" in str(nothing)


def test_a_curve_is_a_table_with_bars(curve):
    lines = str(curve).splitlines()
    assert max(map(len, lines)) <= text.WIDTH
    rule = next(number for number, line in enumerate(lines) if line and set(line) == {"-"})
    rows = lines[rule + 1 :][: len(curve.points)]
    for row, point in zip(rows, curve.points, strict=True):
        assert row.startswith(format_bytes(point.peak_bytes)) or format_bytes(point.peak_bytes) in row
        assert f"{point.overhead:.1%}" in row
    bars = [row.count("#") for row in rows]
    assert bars == sorted(bars)
    assert bars[-1] == max(bars) > 0


def test_a_comparison_has_a_line_for_each_plan(comparison):
    lines = str(comparison).splitlines()
    rows = [line for line in lines if line.startswith("auto")]
    assert [row.split()[1] for row in rows] == ["60%", "40%", "1%"]
    for row, line in zip(comparison.rows[:2], rows, strict=False):
        assert format_bytes(row.plan.predicted_peak_bytes) in line
        assert f"{row.plan.overhead:.1%}" in line
    assert f"least reached: {format_bytes(comparison.rows[2].minimum_bytes)}" in rows[2]
    assert format_bytes(comparison.written_peak_bytes) in lines[0]
    assert "predicted" in lines[-1]
    assert max(map(len, lines)) <= text.WIDTH


def test_curves_of_few_points():
    point = TradeoffPoint(1000, 0.0)
    assert "1 kB" in str(Tradeoff((point,), "cpu", lambda budget, verify: None))
    assert "0 schedules" in str(Tradeoff((), "cpu", lambda budget, verify: None))
    faster = Tradeoff((TradeoffPoint(1000, -0.05),), "cpu", None, plain=TradeoffPoint(2000, 0.0))
    assert "The plain step needs 2 kB; recomputing down to 1 kB is predicted to save time (-5.0%)." in str(faster)
    assert "50.0%" in str(faster)


@pytest.mark.parametrize(
    ("flops", "shown"),
    [(0, "0 FLOP"), (999, "999 FLOP"), (1.5e3, "1.5 kFLOP"), (2.5e12, "2.5 TFLOP"), (1e18, "1e+03 PFLOP")],
)
def test_flops_have_units(flops, shown):
    assert format_flops(flops) == shown


def test_names_for_the_debugger_are_short(plan, analysis, curve, comparison):
    for thing in (plan, analysis, curve, comparison, dataclasses.replace(curve, points=())):
        assert repr(thing).startswith(f"<{type(thing).__name__} ")
        assert len(repr(thing)) < 120
    assert format_bytes(analysis.saved_bytes) in repr(analysis)
    assert repr(comparison) == "<Comparison for cpu: 2 of 3 budgets met>"


def test_cells_of_a_notebook_have_no_path(analysis):
    rows = (_residual(8, source="/tmp/ipykernel_4711/123456.py:8"), _residual(4, source="<ipython-input-3-abc>:7"))
    cells = dataclasses.replace(analysis, residuals=rows)
    for shown in (str(cells), cells._repr_html_()):
        assert "cell:8" in shown
        assert "cell:7" in shown
        assert "ipy" not in shown


def test_cells_have_the_number_that_stands_beside_them(analysis, monkeypatch):
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    shell = interactiveshell.InteractiveShell()
    name = shell.compile.cache("x = 1", number=7)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    cells = dataclasses.replace(analysis, residuals=(_residual(8, source=f"{name}:8"),))
    for shown in (str(cells), cells._repr_html_()):
        assert "In[7]:8" in shown
        assert "ipy" not in shown


def test_of_a_scan_the_lines_of_its_body_are_shown():
    def layer(x, w):
        h = jnp.sin(x @ w)
        return jnp.tanh(h), None

    def loss(ws, x):
        return jnp.mean(jax.lax.scan(layer, x, ws)[0])

    rows = rp.analyze(loss, jnp.ones((6, 8, 8)), jnp.ones((4, 8))).residuals
    first = layer.__code__.co_firstlineno
    internal = [row for row in rows if row.why == "internal"]
    assert internal
    assert all(row.source.endswith(f"test_text.py:{first + 1}-{first + 2}") for row in internal)
    assert {row.function.rpartition(".")[2] for row in internal} == {"layer"}


def test_neighbours_that_stay_as_they_are_are_one_line():
    def loss(w, x):
        for _ in range(3):
            x = jnp.sin(x @ w)
            x = jnp.tanh(x)
        return jnp.mean(x)

    made = rp.plan(loss, jnp.ones((8, 8)), jnp.ones((64, 8)), strategy="everything", verify=False)
    size = made.schedule[-1].end
    schedule = tuple(as_is(start, min(start + 2, size)) for start in range(0, size, 2))
    plan = rp.plan(loss, jnp.ones((8, 8)), jnp.ones((64, 8)), strategy=schedule, verify=False)
    (entry,) = plan_entries(plan)
    assert (entry.start, entry.end, entry.count) == (0, size, 1)
    first = loss.__code__.co_firstlineno
    assert entry.source == f"test_text.py:{first + 2}-{first + 4}"
