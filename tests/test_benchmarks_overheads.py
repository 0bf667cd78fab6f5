"""The table of predicted against compiled overheads: goes on where it stopped, predicts anew, says what is off."""

import json

import pytest

from benchmarks import overheads
from benchmarks.common import Options
from benchmarks.kept import Kept
from benchmarks.overheads import Compiled, Row, facts
from benchmarks.predictions import restored, steps_of, stored

PLAIN = Compiled("gpu:h100", "vit", "plain", 1000, 1.0)
POLICY = Compiled("gpu:h100", "vit", "dots_saveable", 900, 1.2)
ELSEWHERE = Compiled("gpu:h100", "gru", "memory", 900, 1.2)
PLANNED = Compiled("gpu:h100", "vit", "plan at dots_saveable", 900, 1.3, [])


def kept(path):
    return Kept(path, Compiled, lambda made: (made.target, made.model, made.step))


def test_facts_name_the_worst_and_plans_that_are_slower_than_their_policy():
    off, slower, others, points = facts(
        [Row(POLICY, 900, 0.25, 0.2), Row(PLANNED, 900, 0.1, 0.3), Row(ELSEWHERE, 900, 0.1, 0.2)]
    )
    assert off == "gpu:h100: 2 steps, off by 12.5 points in the median, 20.0 at worst (vit, plan at dots_saveable)"
    assert slower == "gpu:h100: of 1 plans slower than the policy, compiled: vit, plan at dots_saveable"
    assert points == "gpu:h100, architectures: off by 10.0 points on average"
    assert others == "gpu:h100, held out: 1 steps, off by 10.0 points in the median, 10.0 at worst (gru, memory)"


def test_those_that_no_rule_is_read_off_are_counted_by_themselves_too():
    fresh = Row(Compiled("gpu:h100", "dit", "memory", 900, 1.2), 900, 0.3, 0.2)
    *_, points, of_fresh = facts([Row(ELSEWHERE, 900, 0.1, 0.4), fresh])
    assert points.endswith("off by 20.0 points on average")
    assert of_fresh == "gpu:h100, architectures that no rule is read off: off by 10.0 points on average"


def test_what_was_compiled_is_not_compiled_again(monkeypatch, tmp_path):
    """The step that is missing is compiled and kept; predictions are made in each run."""
    path = tmp_path / "overheads.json"
    given = []

    def compile_missing(steps, target, found):
        given.append([c.step for c in found])
        return [] if len(found) > 1 else [POLICY]

    monkeypatch.setattr(overheads, "compile_missing", compile_missing)
    kept(path).put(PLAIN)
    options = Options(quick=True, results=tmp_path, models=("vit",), targets=("gpu:h100",))
    first, second = overheads.run(options), overheads.run(options)
    assert given == [["plain"], ["plain", "dots_saveable"]]
    assert [c["step"] for c in json.loads(path.read_text())] == ["plain", "dots_saveable"]
    assert first.rows == second.rows
    assert first.rows[0][:3] == ("gpu:h100", "vit", "dots_saveable")
    assert first.rows[0][6] == "+20.0"


@pytest.mark.parametrize("target", ["cpu"])
@pytest.mark.slow
def test_a_tiny_model_is_compiled(target):
    options = Options(quick=True)
    steps = steps_of("vit", options, overheads.SIZES)
    found = list(overheads.compile_missing(steps, target, []))
    plans = [c for c in found if c.schedule is not None]
    assert found[0].step == "plain"
    assert plans
    for plan in plans:
        schedule = restored(plan.schedule)
        assert stored(schedule) == plan.schedule
    assert len(list(overheads.rows_of(steps, target, found))) >= len(steps.losses)
    assert not list(overheads.compile_missing(steps, target, found))
