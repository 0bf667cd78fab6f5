"""The benchmark of whole training steps runs: its tables are written, and no step is over its budget."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp

pytest.importorskip("flax")
pytest.importorskip("optax")

from benchmarks import fit
from benchmarks.__main__ import main
from benchmarks.kept import Kept
from benchmarks.steps import STEPS, Step

# The evaluator may say that it has to assume a cost.
pytestmark = pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive:UserWarning")

ROW = fit.Row("gpt2", "cpu", "50%", 1000, 2000, 990, 0.1, 3, 1.0)


def mlp(quick):
    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def train_step(params, x):
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(rp.remat(loss))(params, x))

    params = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 8

    def make_args(batch):
        return params, jax.ShapeDtypeStruct((batch, 64), jnp.float32)

    return Step("mlp", train_step, make_args, 2048, multiple_of=512)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with what the benchmark writes for one model."""
    folder = tmp_path_factory.mktemp("fit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "STEPS", {"gpt2": mlp})
        main(["fit", "--quick", "--models", "gpt2", "--targets", "cpu", "--results", str(folder)])
    return folder


@pytest.mark.slow
def test_tables_are_written(results):
    text = (results / "fit.md").read_text()
    assert "| mlp | cpu | 60% | " in text
    assert "| mlp | cpu | minimum | " in text
    assert "| mlp | cpu | 8MB | " in text
    assert "over the budget: none (2 fitted steps)" in text
    assert "over the budget or the overhead: none (1 searches)" in text
    assert "Not finished" not in text
    assert "on average" in text


@pytest.mark.slow
def test_rows_that_are_kept_are_not_made_again(results, monkeypatch):
    text = (results / "fit.md").read_text()
    monkeypatch.setattr(fit, "STEPS", {"gpt2": mlp})
    monkeypatch.setattr(fit, "fit_row", lambda *given: pytest.fail(f"made again: {given}"))
    monkeypatch.setattr(fit, "batch_row", lambda *given: pytest.fail(f"made again: {given}"))
    again = fit.run(fit.Options(quick=True, models=("gpt2",), targets=("cpu",), results=results))
    assert again.text() == text
    assert len(again.rows) == 2
    assert len(again.tables[0].rows) == 1


def test_what_another_run_wrote_stays(tmp_path):
    """Two runs at once share a file: each reads before it writes."""
    one, other = (Kept(tmp_path / "rows.json", fit.Row, lambda row: row.title) for _ in range(2))
    assert one.find(ROW.title) is None
    one.put(ROW)
    other.put(dataclasses.replace(ROW, budget="35%"))
    one.put(dataclasses.replace(ROW, compiles=4))
    assert [(row.budget, row.compiles) for row in one.read()] == [("35%", 3), ("50%", 4)]


def test_a_step_over_its_budget_is_a_failure():
    over = dataclasses.replace(ROW, planned_bytes=1010)
    assert not ROW.is_over
    assert "1.00" in ROW.cells()
    assert "**FAILED: -1.00**" in over.cells()
    assert fit.fit_facts([ROW, over], [])[4] == "all: 0.00 % under the budget and 3.0 compiles on average"
    assert fit.fit_facts([ROW, over], [])[0] == "over the budget: gpt2 cpu 50% (2 fitted steps)"
    refused = dataclasses.replace(ROW, planned_bytes=None)
    assert "minimum is 0.002" in refused.cells()
    assert fit.fit_facts([refused], [])[1] == "refused, below the least peak: gpt2 cpu 50%"
    assert all(len(row.cells()) == len(fit._COLUMNS) for row in (ROW, over, refused))


def test_a_target_without_a_compiler_is_named(tmp_path, monkeypatch):
    def resolve(target):
        raise ImportError(target)

    monkeypatch.setattr(fit, "resolve", resolve)
    report = fit.run(fit.Options(targets=("gpu:h100",), results=tmp_path))
    assert report.facts[-1] == "targets not measured: gpu:h100 (no compiler here: ImportError)"


def test_steps_are_shapes_of_the_sizes_named():
    parameters = {"gpt2": 98e6, "llama": 1.345e9, "resnet50": 25.6e6, "vit": 86.6e6}
    for name, make in STEPS.items():
        step = make(False)
        args = step.make_args(step.batch)
        assert all(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(args)), name
        copies = 2 if name == "resnet50" else 3
        assert step.state_bytes == pytest.approx(copies * 4 * parameters[name], rel=0.01), name


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_quick(name, tmp_path):
    main(["fit", "--quick", "--models", name, "--targets", "cpu", "--results", str(tmp_path)])
    text = (tmp_path / "fit.md").read_text()
    assert "over the budget: none (2 fitted steps)" in text
    assert "over the budget or the overhead: none (1 searches)" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_full_size_steps_fit(name):
    row = fit.fit_row(STEPS[name](False), "cpu", "50%")
    assert row.planned_bytes is not None
    assert row.planned_bytes <= row.budget_bytes
