"""The certified lower bound is never above the optimum, and not far below it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_plan.solve import min_cut
from remat_plan.solve.min_cut import recompute_bound
from tests.solve.problems import all_selections, lower_hull, segments


@settings(max_examples=200)
@given(segments(), st.integers(0, 40))
def test_never_above_the_optimum(problem, budget):
    best = min(s.seconds for s in all_selections(problem) if s.kept_bytes <= budget)
    assert recompute_bound(problem, budget) <= best * (1 + 1e-6) + 1e-6


@settings(max_examples=60)
@given(segments(unsaveable=False), st.integers(0, 40))
def test_it_is_the_value_of_the_convex_hull(problem, budget):
    hull = lower_hull((s.kept_bytes, s.seconds) for s in all_selections(problem))
    want = hull[-1][1]
    for (b0, s0), (b1, s1) in zip(hull, hull[1:], strict=False):
        if b0 <= budget < b1:
            want = s0 + (s1 - s0) * (budget - b0) / (b1 - b0)
    assert recompute_bound(problem, budget) == pytest.approx(want, rel=1e-5, abs=1e-5)


@settings(max_examples=30)
@given(segments())
def test_more_bytes_never_raise_it(problem):
    bounds = [recompute_bound(problem, b) for b in range(0, 40, 3)]
    assert all(a >= b - 1e-6 for a, b in zip(bounds, bounds[1:], strict=False))
    assert recompute_bound(problem, 1e12) <= min_cut.save_needed(problem).seconds + 1e-9
