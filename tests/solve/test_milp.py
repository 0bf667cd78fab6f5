"""The integer program against trying every subset, and against the hull."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_plan.solve import milp, min_cut
from tests.solve.problems import all_selections, segments
from tests.solve.test_min_cut import check_selection


@settings(max_examples=60)
@given(st.one_of(segments(), segments(most_ops=3, offers=2)), st.integers(0, 30))
def test_no_subset_within_the_budget_is_better(problem, budget):
    found = milp.exact(problem, budget)
    best = min(s.seconds for s in all_selections(problem) if s.kept_bytes <= budget)
    assert found.kept_bytes <= budget
    assert found.seconds == pytest.approx(best, abs=1e-6)
    check_selection(problem, found)


@settings(max_examples=30)
@given(segments(most_ops=8))
def test_at_the_points_of_the_hull_it_agrees_with_the_minimum_cut(problem):
    for selection in min_cut.hull(problem, 100):
        assert milp.exact(problem, selection.kept_bytes).seconds == pytest.approx(selection.seconds, abs=1e-5)


@settings(max_examples=20)
@given(segments(most_ops=8), st.sampled_from([0.05, 0.2, 0.5]))
def test_gaps_are_filled_with_points_of_the_pareto_front(problem, share):
    hull = min_cut.hull(problem, 100)
    found = milp.between(problem, hull, share=share)
    assert {(s.kept_bytes, s.seconds) for s in hull} <= {(s.kept_bytes, s.seconds) for s in found}
    order = [(s.kept_bytes, -s.seconds) for s in found]
    assert order == sorted(order)
    everything = list(all_selections(problem))
    for selection in found:
        check_selection(problem, selection)
        best = min(s.seconds for s in everything if s.kept_bytes <= selection.kept_bytes)
        assert selection.seconds == pytest.approx(best, rel=2e-3, abs=1e-5)


def test_it_finds_points_inside_the_hull():
    """Three equal values: the hull has none of them or all."""
    problem = min_cut.SegmentProblem(
        ((),) * 4, ((0,), (1,), (2,), (3,)), (4.0, 4.0, 4.0, 0.1), (4, 4, 4, 1), (True,) * 4, frozenset(range(4))
    )
    hull = min_cut.hull(problem)
    assert [(s.kept_bytes, s.seconds) for s in hull] == [(0, pytest.approx(12.1)), (12, pytest.approx(0.1)), (13, 0.0)]
    found = [(s.kept_bytes, round(s.seconds, 6)) for s in milp.between(problem, hull, share=0.33)]
    assert found == [(0, 12.1), (4, 8.1), (8, 4.1), (12, 0.1), (13, 0.0)]


def test_same_problem_same_answer():
    problem = min_cut.SegmentProblem(
        tuple((i - 1,) if i else () for i in range(30)), tuple((i,) for i in range(30)),
        tuple(1.0 + i % 3 for i in range(30)), tuple(3 + i % 5 for i in range(30)), (True,) * 30, frozenset(range(30)),
    )  # fmt: skip
    assert milp.exact(problem, 40) == milp.exact(problem, 40)


def test_a_budget_below_what_must_be_kept_is_an_error(monkeypatch):
    problem = min_cut.SegmentProblem(((),), ((0,),), (1.0,), (4,), (True,), frozenset({0}))
    with pytest.raises(ValueError, match="cannot be made again"):
        milp.exact(problem, -1)


def test_what_must_not_run_again_need_not_be_kept_where_what_follows_is_smaller():
    problem = min_cut.SegmentProblem(
        ((), (0,)), ((0,), (1,)), (1.0, 1.0), (10, 2), (True, True), frozenset({1}), frozenset({0})
    )
    assert min_cut.save_none(problem).kept_bytes == 10
    assert milp.exact(problem, 4).actions == ((1, 0),)
    with pytest.raises(ValueError, match="cannot be made again"):
        milp.exact(problem, 1)
    hull = min_cut.hull(problem, 10)
    assert milp.between(problem, [*hull, min_cut.save_none(problem)], share=0.1) == hull
