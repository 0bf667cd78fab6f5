"""The table of what rules gain: from kept figures alone, one rule at a time."""

import pytest

from benchmarks.__main__ import main
from benchmarks.common import Options
from benchmarks.kept import Kept
from benchmarks.peaks import Compiled
from benchmarks.predict import IN_SAMPLE, KINDS, Offs, _cells, ranges_of, run, variants

TARGET = "tpu:v5e:1x1"


def kept(path, *peaks):
    """Write a file of figures: a tiny perceptron, plain, at these peaks."""
    rows = Kept(path / "peaks.json", Compiled, lambda compiled: compiled.key)
    for dtype, peak in zip(("float32", "bfloat16"), peaks, strict=False):
        rows.put(Compiled(TARGET, "mlp", dtype, "plain", [], peak, "today"))


def test_gains_are_what_a_rule_takes_off_the_mean():
    full, less = Offs(), Offs()
    for model, with_it, without in (("a", 1.1, 1.3), ("b", 0.9, 0.9), ("b", 1.0, 1.05)):
        full.put((model, str(with_it)), with_it, 1.0)
        less.put((model, str(with_it)), without, 1.0)
    assert less.gain(full) == pytest.approx((0.2 + 0.0 + 0.05) / 3)
    assert less.gain_but_for_one(full) == pytest.approx(0.05 / 2)
    assert less.changed(full) == 2
    cells = _cells(*({kind: Offs() for kind in KINDS} | {IN_SAMPLE: offs} for offs in (less, full)))
    assert cells == ["2", "15.00", *[""] * 4, "+8.33", "+2.50", *[""] * 4]


def test_what_no_rule_was_read_off_is_by_itself(tmp_path):
    rows = Kept(tmp_path / "architectures.json", Compiled, lambda compiled: compiled.key)
    for model in ("glow", "vqvae"):
        rows.put(Compiled(TARGET, model, "float32", "plain", [], 10**8, "today"))
    first = run(Options(quick=True, results=tmp_path)).rows[0]
    assert [bool(cell) for cell in first[3:8]] == [False, True, True, False, False]


def test_ranges_are_least_and_most_and_nothing_where_no_figure_is_kept():
    predicted = {("vit", "plain bfloat16"): 1.02, ("vit", "dots bfloat16"): 0.9, ("mlp", "plain float32"): 1.0}
    half, single = ranges_of("tpu", predicted)
    assert half == ("tpu, bfloat16", "", "", "", "", "0.90 - 1.02", "", "")
    assert single == ("tpu, float32", "", "", "", "", "", "", "1.00 - 1.00")


def test_each_rule_is_left_out_once():
    found = variants(TARGET, ())
    full = found["nothing"]
    assert list(found) == ["nothing", *full.habits(), "all rules"]
    assert all(full.habits() != model.habits() for name, model in found.items() if name != "nothing")
    assert list(variants(TARGET, ("tiles",))) == ["nothing", "tiles", "all rules"]


def test_nothing_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr("jax.stages.Lowered.compile", None)
    kept(tmp_path, 1_000_000, 500_000)
    report = run(Options(quick=True, results=tmp_path))
    assert [row[1] for row in report.rows] == list(variants(TARGET, ()))
    assert (tmp_path / "predict.md").exists()
    first, last = report.rows[0], report.rows[-1]
    assert first[3] != last[3], "predictions follow the rules"
    assert report.facts[0].startswith(f"{TARGET}: off by in sample {first[3]} ({last[3]} without any rule, 2 rows)")


def test_some_rules_are_printed_only(tmp_path, capsys):
    kept(tmp_path, 1_000_000)
    main(["predict", "--quick", "--without", "tiles", "--results", str(tmp_path)])
    assert f"{TARGET} | tiles | " in capsys.readouterr().out
    assert not (tmp_path / "predict.md").exists()
