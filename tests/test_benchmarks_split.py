"""The heads by hand, which our plans are set against, and what the table of slices calls behind."""

from typing import ClassVar

import jax
import pytest

from benchmarks import split
from benchmarks.common import Options, Report
from remat_plan.verify.targets import resolve
from tests.helpers import assert_trees_close


@pytest.mark.parametrize("by_hand", [split.again(4), split.with_gradients(4)])
def test_heads_by_hand_are_the_head(by_hand):
    model = split.head(32, 8, 24)
    keys = iter(jax.random.split(jax.random.key(0), 3))
    params = {name: jax.random.normal(next(keys), s.shape, "float32") for name, s in model.params.items()}
    labels = jax.random.randint(next(keys), (32,), 0, 24)
    found = jax.value_and_grad(by_hand)(params, labels)
    assert_trees_close(found, jax.value_and_grad(model.loss)(params, labels))


class Known(split.Place):
    """A model whose steps need what is said here."""

    peaks: ClassVar = {}

    def written(self, step, loss):
        return self.peaks[step], 100.0

    def least(self, step, **options):
        return self.peaks[step]

    def planned(self, step, budget, **options):
        return self.peaks.get(step)


class Plan:
    def __init__(self, overhead, step_flops=100.0):
        self.overhead, self.step_flops = overhead, step_flops


def behind(rows, **peaks):
    place = Known(Report("split", "", split._COLUMNS, None), "a", None, resolve("cpu"), 1000, 100, 100.0)
    place.__class__.peaks = peaks
    return [*rows(place)]


def test_a_model_is_behind_where_slices_gain_too_little_or_cost_more():
    good = {"least": 200, "least, no slices": 400, "30%": Plan(0.1), "30%, no slices": Plan(0.3), "20%": Plan(0.2)}
    assert behind(split._model_rows, **good) == []
    assert len(behind(split._model_rows, **{**good, "least": 300})) == 1
    assert len(behind(split._model_rows, **{**good, "30%": Plan(0.4)})) == 1
    assert len(behind(split._model_rows, **{**good, "30%": None})) == 1


def test_a_head_is_behind_where_a_hand_computes_less_or_needs_less():
    hands = {f"by hand, {n}, {kind}": 300 for n in (8, 32) for kind in ("again", "with gradients")}
    good = hands | {f"ours, in the bytes of 8, {kind}": Plan(0.0) for kind in ("again", "with gradients")}
    assert behind(split._head_rows, **good, **{"ours, least": 300}) == []
    assert behind(split._head_rows, **good, **{"ours, least": 301}) == ["a cpu least"]
    more = good | {"ours, in the bytes of 8, again": Plan(0.0, 102.0)}
    assert behind(split._head_rows, **more, **{"ours, least": 300}) == ["a cpu again"]


@pytest.mark.slow
def test_the_table_is_made(tmp_path):
    report = split.run(Options(quick=True, targets=("cpu",), results=tmp_path))
    assert {row[0] for row in report.rows} == {"marin", "gpt2_4"}
