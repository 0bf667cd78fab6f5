"""The options of runs: equal runs share them, and long runs do with few."""

from bisect import bisect_right

import pytest

from benchmarks.models import MODELS
from remat_plan.cost.builder import Rules
from remat_plan.graph.ways import Plain, Split
from remat_plan.planning import options
from remat_plan.planning.cuts import find_cuts
from remat_plan.planning.planner import Planner, RegionPlanner
from tests.helpers import CPU, traced


@pytest.fixture(scope="module")
def rules():
    model = MODELS["gpt2"](layers=8)
    program = traced(model.loss, model.params, model.batch)
    return Rules(program.graph, CPU)


@pytest.fixture(scope="module")
def found(rules):
    return options.find_options(rules.graph, find_cuts(rules.graph), rules, RegionPlanner())


def test_equal_runs_share_one_profile(found):
    classes = {id(profile) for profile in found.profiles.values()}
    assert len(classes) < len(found.profiles) / 2
    for span, run in found.runs.items():
        same = [other for other, r in found.runs.items() if r.signature == run.signature]
        assert all(found.profiles[other] is found.profiles[span] for other in same)


def test_no_option_beats_another(found):
    for profile in found.profiles.values():
        rows = [(o.kept_bytes, o.seconds, o.backward_bytes, o.forward_bytes) for o in profile.options]
        assert all(
            any(a > b for a, b in zip(one, other, strict=True)) for one in rows for other in rows if one != other
        )
        assert len(set(rows)) == len(rows)


def test_long_runs_have_the_two_ends_of_their_hull(found):
    long = [span for span, run in found.runs.items() if span[1] > span[0] + 1 and len(run.ops) > options._LONG_RUN]
    assert long
    for span in long:
        profile, run = found.profiles[span], found.runs[span]
        parts = [found.profiles[s, s + 1] for s in range(*span)]
        unsplit = [o for o in profile.options if not isinstance(o.way, Split)]
        assert len(unsplit) <= 2 * options._MAX_LONG + 3, "and those that save its products"
        assert min(o.kept_bytes for o in profile.options) <= sum(min(o.kept_bytes for o in p.options) for p in parts)
        assert any(isinstance(o.way, Plain) for o in profile.options), run.ops


def promised_seconds(curve, limit_bytes):
    """What the dynamic program believes that its schedule for so many bytes costs."""
    return curve.seconds[bisect_right(curve.limits, limit_bytes) - 1]


@pytest.mark.slow
def test_long_runs_need_no_more(rules, monkeypatch):
    few = Planner(rules.graph, rules).curves[0]
    monkeypatch.setattr(options, "_LONG_RUN", 10**6)
    many = Planner(rules.graph, rules).curves[0]
    plain = sum(many.options.profiles[s, s + 1].forward_seconds for s in range(len(many.cuts.positions) - 1))
    assert len(few.limits) > 20
    for limit in range(few.limits[0], few.limits[-1], (few.limits[-1] - few.limits[0]) // 50):
        assert promised_seconds(few, limit) <= promised_seconds(many, limit) + 0.01 * plain
