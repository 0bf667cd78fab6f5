"""The minimum cut against trying every subset."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_plan.solve import min_cut
from remat_plan.solve.min_cut import SegmentProblem
from tests.solve.problems import all_selections, lower_hull, segments


def feasible(problem):
    """Whether everything needed can be made again or saved (always so in a program)."""
    try:
        min_cut.save_none(problem)
    except ValueError:
        return False
    return True


@settings(max_examples=150)
@given(segments(), st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.5, 1.0, 2.0, 10.0]))
def test_a_price_gives_the_cheapest_selection_of_all(problem, price):
    found = min_cut.lagrangian(problem, price)
    best = min(s.seconds + price * s.kept_bytes for s in all_selections(problem))
    assert found.seconds + price * found.kept_bytes == pytest.approx(best, rel=1e-5, abs=1e-5)
    check_selection(problem, found)


@settings(max_examples=60)
@given(segments(most_ops=4, offers=1), st.sampled_from([0.0, 0.1, 0.5, 1.0, 10.0]))
def test_a_price_chooses_the_cheapest_action_for_each_value(problem, price):
    found = min_cut.lagrangian(problem, price)
    best = min(s.seconds + price * s.kept_bytes for s in all_selections(problem))
    assert found.seconds + price * found.kept_bytes == pytest.approx(best, rel=1e-5, abs=1e-5)
    check_selection(problem, found)


def check_selection(problem, selection):
    """A selection is what it says."""
    assert all(problem.saveable[v] for v in selection.saved)
    assert selection.kept_bytes == sum(problem.actions[k].value_bytes[v] for v, k in selection.actions)
    extra = sum(problem.actions[k].value_seconds[v] for v, k in selection.actions)
    assert selection.seconds == pytest.approx(extra + sum(problem.op_seconds[n] for n in selection.recomputed))
    there = set(selection.saved)
    for n in sorted(selection.recomputed):
        assert set(problem.op_inputs[n]) <= there
        there.update(problem.op_outputs[n])
    assert problem.needed <= there


@settings(max_examples=150)
@given(st.one_of(segments(), segments(most_ops=3, offers=2)))
def test_the_hull_is_the_convex_hull_of_all_selections(problem):
    found = min_cut.hull(problem, max_points=200)
    want = lower_hull((s.kept_bytes, s.seconds) for s in all_selections(problem))
    got = {(s.kept_bytes, round(s.seconds, 9)) for s in found}
    for point in want:
        assert any(b <= point[0] and t <= point[1] + 1e-6 for b, t in got), (point, got)
    for selection in found:
        check_selection(problem, selection)
    order = [(s.kept_bytes, -s.seconds) for s in found]
    assert order == sorted(order)


@given(segments(most_ops=6))
def test_extremes(problem):
    everything = list(all_selections(problem))
    least = min_cut.save_none(problem)
    assert least.kept_bytes == 0
    assert least.seconds == min(s.seconds for s in everything if s.kept_bytes == 0)
    most = min_cut.save_needed(problem)
    if all(problem.saveable):
        assert most.seconds == 0
    check_selection(problem, most)


@given(segments(most_ops=6), st.data())
def test_pruning_changes_neither_recomputation_nor_needs(problem, data):
    saved = {v: 0 for v, s in enumerate(problem.saveable) if s and data.draw(st.booleans())}
    full = min_cut.complete(problem, saved)
    pruned = min_cut.prune(problem, full)
    assert pruned.saved <= full.saved
    assert pruned.recomputed == full.recomputed
    check_selection(problem, pruned)


def test_a_value_read_many_times_by_one_equation():
    """Arcs of the network must not add up past 32 bits."""
    problem = SegmentProblem(
        ((), (0,) * 5, (1,) * 3), ((0,), (1,), (2,)), (5.0, 1.0, 1.0), (4, 12, 1), (True,) * 3, frozenset({2})
    )
    best = {p: min(s.seconds + p * s.kept_bytes for s in all_selections(problem)) for p in (0.1, 0.4, 1.0, 3.0)}
    for price, value in best.items():
        found = min_cut.lagrangian(problem, price)
        assert found.seconds + price * found.kept_bytes == pytest.approx(value, rel=1e-6)


def test_sizes_and_times_of_real_programs():
    """Gigabytes and microseconds: the scaling to integers must not lose them."""
    n = 60
    rng = np.random.default_rng(0)
    problem = SegmentProblem(
        tuple((i - 1,) if i else () for i in range(n)),
        tuple((i,) for i in range(n)),
        tuple(float(x) for x in rng.choice([1e-13, 1e-6, 3e-4], n)),
        tuple(int(x) for x in rng.choice([4, 10**6, 10**9], n)),
        (True,) * n,
        frozenset(range(0, n, 2)),
    )
    found = min_cut.hull(problem, 60)
    assert len(found) > 5
    for a, b, c in zip(found, found[1:], found[2:], strict=False):
        first = (a.seconds - b.seconds) / (b.kept_bytes - a.kept_bytes)
        second = (b.seconds - c.seconds) / (c.kept_bytes - b.kept_bytes)
        assert first >= second * (1 - 1e-3), "not convex"


def test_equal_problems_have_equal_answers():
    problem = SegmentProblem(((), (0,), (0,)), ((0,), (1,), (2,)), (1.0,) * 3, (4,) * 3, (True,) * 3, frozenset({1, 2}))
    assert min_cut.hull(problem) == min_cut.hull(problem)
    assert [(s.kept_bytes, s.seconds) for s in min_cut.hull(problem)] == [(0, 3.0), (8, 0.0)]


def test_pareto_keeps_what_no_other_beats():
    def point(size, seconds):
        return min_cut.Selection(((size, 0),), frozenset(), size, seconds)

    points = [point(1, 5.0), point(2, 5.0), point(3, 2.0), point(4, 3.0), point(5, 0.0)]
    assert [p.kept_bytes for p in min_cut.front(points[::-1])] == [1, 3, 5]


def test_what_cannot_be_made_again_is_an_error():
    problem = SegmentProblem((), (), (), (4,), (True,), frozenset({0}))
    with pytest.raises(ValueError, match="no producer"):
        min_cut.complete(problem, {})
