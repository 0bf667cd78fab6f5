"""The heads by hand, which our plans are set against, the models, and what the table calls behind and keeps."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import split
from benchmarks.common import Options
from benchmarks.kept import Kept
from benchmarks.models import concrete, unet
from benchmarks.split_models import again, gemma, head, with_gradients
from benchmarks.split_table import fill, head_behind, make_report, model_behind
from tests.helpers import assert_trees_close


@pytest.mark.parametrize("by_hand", [again(4), with_gradients(4)])
def test_heads_by_hand_are_the_head(by_hand):
    model = head(32, 8, 24)
    keys = iter(jax.random.split(jax.random.key(0), 3))
    params = {name: jax.random.normal(next(keys), s.shape, "float32") for name, s in model.params.items()}
    labels = jax.random.randint(next(keys), (32,), 0, 24)
    found = jax.value_and_grad(by_hand)(params, labels)
    assert_trees_close(found, jax.value_and_grad(model.loss)(params, labels))


def rows(**found):
    """Rows by step, of the least or a plan's FLOPs or overhead."""
    whole = {"as written": split.Row("cpu", "a", "as written", 1000, 100, 100.0)}
    return whole | {step: split.Row("cpu", "a", step, **facts) for step, facts in found.items()}


def test_a_model_is_behind_where_slices_gain_too_little_or_cost_more():
    def planned(overhead):
        return {"peak_bytes": 300, "overhead": overhead}

    refused = {"peak_bytes": 400, "refused": True}
    good = {"least": {"peak_bytes": 200}, "least, no slices": {"peak_bytes": 400}}
    good |= {"30%": planned(0.1), "30%, no slices": planned(0.3), "20%": planned(0.2), "20%, no slices": refused}
    assert [*model_behind(rows(**good))] == []
    assert len([*model_behind(rows(**good | {"least": {"peak_bytes": 300}}))]) == 1
    assert len([*model_behind(rows(**good | {"30%": planned(0.4)}))]) == 1
    assert len([*model_behind(rows(**good | {"30%": refused}))]) == 1
    assert [*model_behind(rows(**good | {"30%": {"problem": "no result"}}))] == []


def test_a_head_is_behind_where_a_hand_computes_less_or_needs_less():
    kinds = ("again", "with gradients")
    good = {f"by hand, {n}, {kind}": {"peak_bytes": 300, "flops": 100.0} for n in (8, 32) for kind in kinds}
    good |= {f"ours, in the bytes of 8, {kind}": {"peak_bytes": 300, "flops": 100.0} for kind in kinds}
    assert [*head_behind(rows(**good, **{"ours, least": {"peak_bytes": 300}}))] == []
    assert [*head_behind(rows(**good, **{"ours, least": {"peak_bytes": 301}}))] == ["a cpu least"]
    more = good | {"ours, in the bytes of 8, again": {"peak_bytes": 300, "flops": 102.0}}
    assert [*head_behind(rows(**more, **{"ours, least": {"peak_bytes": 300}}))] == ["a cpu again"]


def test_the_table_keeps_what_other_runs_made(tmp_path):
    for name in ("vit", "unet"):
        report = make_report(tmp_path)
        kept = Kept(tmp_path / "split.json", split.Row, lambda row: (row.target, row.model, row.step))
        kept.put(split.Row("cpu", name, "as written", 1000, 100, 100.0, made="today"))
        kept.put(split.Row("cpu", name, "30%", problem="no result in 600 s"))
        fill(report, kept.read(), split.PLACES, split.TARGETS)
    assert [row[0] for row in report.rows] == ["vit", "unet"]
    assert [len(row) == len(report.tables[1].columns) for row in report.tables[1].rows] == [True] * 4
    text = (tmp_path / "split.md").read_text()
    assert "given up: vit cpu 30% (no result in 600 s), unet cpu 30% (no result in 600 s)" in text
    assert "made with today" in text


@pytest.mark.parametrize("groups", [0, 4])
def test_unet_with_groups_is_normalised_by_image(groups):
    model = unet(levels=1, width=8, batch=2, size=8, classes=3, groups=groups)
    params, batch = concrete(model)
    changed = batch | {"images": batch["images"].at[1].mul(3.0)}

    def of_the_first(batch):
        return jax.grad(lambda images: model.loss(params, batch | {"images": images}))(batch["images"])[0]

    assert bool((of_the_first(batch) == of_the_first(changed)).all()) == bool(groups)


def test_gemma_has_a_gradient_everywhere():
    model = gemma(layers=2, width=16, hidden=32, heads=2, size=8, vocab=64, sequence=8, batch=2)
    keys = iter(jax.random.split(jax.random.key(0), 16))
    params = jax.tree.map(lambda s: jax.random.normal(next(keys), s.shape, s.dtype) / 4, model.params)
    tokens = jax.random.randint(next(keys), (2, 8), 0, 64)
    batch = {"tokens": tokens, "targets": tokens[:, ::-1]}
    value, gradients = jax.value_and_grad(model.loss)(params, batch)
    assert jnp.isfinite(value)
    assert all(g.any() for g in jax.tree.leaves(gradients))
    assert jax.tree.leaves(params)[0].dtype == jnp.bfloat16


@pytest.mark.slow
def test_the_table_is_made(tmp_path):
    report = split.run(Options(quick=True, targets=("cpu",), results=tmp_path))
    assert {row[0] for row in report.tables[1].rows} == {"marin", "gpt2_4"}
    assert report.facts[1] == "given up: none"
    before = (tmp_path / "split.json").read_text()
    second = split.run(Options(quick=True, targets=("cpu",), models=("marin",), results=tmp_path))
    assert (tmp_path / "split.json").read_text() == before
    assert second.tables[1].rows == report.tables[1].rows


@pytest.mark.slow
def test_a_step_that_takes_too_long_is_given_up(tmp_path):
    wanted = Options(quick=True, targets=("cpu",), models=("marin",), results=tmp_path, timeout_seconds=0.1)
    assert "given up: marin cpu as written (no result in 0 s)" in split.run(wanted).facts
