"""The headline results run at quick sizes, their networks are the ones that are named, and pictures follow tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.common import Report, Session
from benchmarks.headlines import HEADLINES, checkmate, logarithm
from benchmarks.headlines.classifiers import VGG16, googlenet, mobilenet, mobilenet_v2, vgg
from benchmarks.headlines.lstm import lstm
from benchmarks.headlines.points import COLUMNS, SQRT, Ask, Point, add_rows, bar, peak_over, resume, temporaries_over
from benchmarks.headlines.resnets import Shape, resnet
from benchmarks.headlines.segmenters import fcn8, segnet, unet

RESNET50 = Shape((3, 4, 6, 3), 64, True, 1, 224, 1000)
TINY = Shape((2, 3), 4, True, 2, 32, 10)


def count(model):
    return sum(x.size for x in jax.tree.leaves(model.params))


def concrete(struct, rng):
    if jnp.issubdtype(struct.dtype, jnp.integer):
        return jnp.asarray(rng.integers(0, 2, struct.shape), struct.dtype)
    return jnp.asarray(rng.normal(size=struct.shape) / 10, struct.dtype)


@pytest.mark.parametrize(
    ("model", "millions"),
    [
        (resnet("resnet50", RESNET50, False), 25.55),
        (vgg("vgg16", VGG16, 1), 138.36),
        (googlenet(1), 6.62),
        (mobilenet(1), 4.23),
        (mobilenet_v2(1), 3.50),
        (unet(1), 17.26),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_networks_have_the_parameters_of_their_papers(model, millions):
    assert count(model) / 1e6 == pytest.approx(millions, abs=0.006)


def test_layers_are_counted_as_in_the_papers():
    assert RESNET50.layers == 50
    assert Shape((15, 121, 182, 15), 64, True, 32, 224, 1000).layers == 1001
    assert Shape((18,) * 3, 16, False, 1280, 32, 10).layers == 110


@pytest.mark.parametrize(
    "model",
    [unet(1, 32, 48), fcn8(1, 32, 64), segnet(1, 32, 32), googlenet(1, 64, 10), lstm(4, 2, 8, 2, 3, 5)],
    ids=lambda m: m.name,
)
def test_losses_are_scalars(model):
    assert jax.eval_shape(model.loss, model.params, model.batch).shape == ()


@pytest.mark.slow
def test_scanned_stages_compute_what_unrolled_ones_do():
    rng = np.random.default_rng(0)
    scanned, unrolled = resnet("r", TINY, True), resnet("r", TINY, False)
    params, batch = (jax.tree.map(lambda s: concrete(s, rng), x) for x in (scanned.params, scanned.batch))
    rows = [
        {**stage, "rest": [jax.tree.map(lambda x, i=i: x[i], stage["rest"]) for i in range(depth - 1)]}
        for stage, depth in zip(params["stages"], TINY.depths, strict=True)
    ]
    wanted = jax.jit(scanned.loss)(params, batch)
    assert float(jax.jit(unrolled.loss)({**params, "stages": rows}, batch)) == pytest.approx(float(wanted), rel=1e-5)


PLAIN = Point("plain", 1100, 1000)


def test_budgets_are_shares_of_the_peak_or_of_the_temporaries():
    half, tenth = peak_over(2).budget, temporaries_over(10).budget
    assert half is not None
    assert half(PLAIN) == 550
    assert tenth is not None
    assert tenth(PLAIN) == pytest.approx(200)


def test_a_bar_is_met_by_the_cheapest_point_that_is_small_enough():
    points = [PLAIN, Point("a", 300, 200, 0.1, 0.10), Point("b", 200, 100, 0.2, 0.30), Point("c", 220, 120, 0.2, 0.19)]
    whole, temporaries = bar("x", points, 5, 20)
    assert "+19.0 % (c)" in whole
    assert whole.endswith("met")
    assert "+10.0 % (a)" in temporaries
    assert bar("x", points, 20, 20)[0].endswith("in no row; the bar is +20 %: missed")


@pytest.mark.slow
def test_rows_say_what_was_compiled_and_what_cannot_be_had(tmp_path):
    report = Report("chain", "", ("layers", *COLUMNS), tmp_path)
    session = Session(logarithm.chain(8, True, 256))
    plain, sqrt = add_rows(report, ("8",), session, [SQRT, Ask("nothing", lambda plain: 1)])
    assert [row[1] for row in report.rows] == ["plain", "sqrt", "nothing"]
    assert sqrt.peak_bytes < plain.peak_bytes
    assert sqrt.flops_share > 0
    assert report.rows[0][3] == report.rows[0][5] == "1.00"
    assert report.rows[2][2].startswith("least ")


def test_an_unfinished_table_is_gone_on_with(tmp_path):
    def table():
        return Report("t", "", ("layers", *COLUMNS), tmp_path)

    first = table()
    for layers in ("8", "8", "16"):
        first.add(layers, *PLAIN.cells(PLAIN))
    again = table()
    assert resume(again, {"8": 2, "16": 2}) == {"8"}
    assert again.rows == first.rows[:2]
    first.finish([])
    assert resume(table(), {"8": 2}) == set()


def test_forward_runs_follow_from_flops(tmp_path):
    report = Report("logarithm", "", logarithm._COLUMNS, tmp_path)
    logarithm.add_chain(report, 8, False, 64)
    by_name = {row[2]: row for row in report.rows}
    assert by_name["plain"][5] == "8"
    runs, theory = float(by_name["binomial"][5]), float(by_name["binomial"][6])
    assert 8 < runs <= theory


def test_one_more_forward_pass_is_about_a_third_of_the_step():
    assert checkmate.forward_share(vgg("vgg", VGG16, 1, 32, 10, 16)) == pytest.approx(1 / 3, abs=0.02)


def test_pictures_are_drawn_from_tables(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.headlines.draw import draw, lines_of

    report = Report("lstm", "", ("steps", *COLUMNS), tmp_path)
    for steps in (128, 64):
        for point in (PLAIN, Point("binomial, 9 carries", 300, 200, 0.2, 0.3)):
            report.add(steps, *point.cells(PLAIN))
    report.add(64, "ours, peak / 9", "least 0.1", *[""] * (len(COLUMNS) - 2))
    made = draw(tmp_path / "images", tmp_path)
    assert [path.name for path in made] == ["lstm.svg"]
    assert "<svg" in made[0].read_text()
    rows = [dict(zip(report.columns, row, strict=True)) for row in report.rows]
    assert lines_of(rows, "steps", "predicted +%") == {
        "plain": [(64.0, 0.0), (128.0, 0.0)],
        "binomial": [(64.0, 30.0), (128.0, 30.0)],
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HEADLINES if not name.endswith("_h100")])  # that compiles for long
def test_quick_writes_its_table(name, tmp_path):
    main(["headlines", "--quick", "--models", name, "--results", str(tmp_path)])
    text = (tmp_path / "headlines" / f"{name}.md").read_text()
    assert "Not finished" not in text
    assert "plain" in text
