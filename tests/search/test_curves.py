"""The search for the point closest to the budget: any peaks, few measurements, and minima that can be asked for."""

from hypothesis import given
from hypothesis import strategies as st

from remat_plan.search.curves import MAX_MEASURES, TOLERANCE, find_point


@st.composite
def curves(draw):
    """Limits, and peaks that follow them roughly, not always upwards."""
    steps = draw(st.lists(st.integers(1, 50), min_size=1, max_size=60))
    limits = [sum(steps[: i + 1]) for i in range(len(steps))]
    noise = draw(st.lists(st.integers(-40, 40), min_size=len(steps), max_size=len(steps)))
    base = draw(st.integers(0, 200))
    return limits, base, [max(base + limit + n, 1) for limit, n in zip(limits, noise, strict=True)]


def run(curve, budget, start=None):
    limits, base, peaks = curve
    asked = []

    def measure(point):
        assert point not in asked, "each point is compiled at most once"
        asked.append(point)
        return peaks[point]

    found = find_point(limits, base, budget, measure, start)
    assert [p for p, _ in found.measured] == asked
    return found, asked


@given(curves(), st.integers(1, 2000), st.none() | st.integers(0, 10**6))
def test_what_is_found_fits(curve, budget, start):
    peaks = curve[2]
    found, asked = run(curve, budget, None if start is None else start % len(peaks))
    assert len(asked) <= MAX_MEASURES + 6
    if found.point is not None:
        assert peaks[found.point] <= budget
        assert found.point in asked
    else:
        assert all(peaks[p] > budget for p in asked)


@given(curves(), st.integers(1, 2000), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_least_peak_of_a_failed_search_can_be_asked_for(curve, budget, start, other):
    n = len(curve[2])
    found, _ = run(curve, budget, start % n)
    if found.point is None:
        again, _ = run(curve, found.least[1], other % n)
        assert again.point is not None


@given(st.lists(st.integers(1, 50), min_size=2, max_size=60), st.integers(0, 200), st.integers(0, 100))
def test_where_peaks_follow_limits_the_best_point_is_found(steps, base, percent):
    limits = [sum(steps[: i + 1]) for i in range(len(steps))]
    peaks = [base + limit for limit in limits]
    budget = peaks[0] + (peaks[-1] - peaks[0]) * percent // 100
    found, asked = run((limits, base, peaks), budget)
    best = max(p for p, peak in enumerate(peaks) if peak <= budget)
    assert found.point == best or peaks[found.point] >= (1 - TOLERANCE) * budget or len(asked) >= MAX_MEASURES


def test_everything_fits():
    found, asked = run(([10, 20, 30], 0, [10, 20, 30]), 1000)
    assert found.point == 2
    assert asked == [2]
