"""The filter of all fronts, against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from remat_plan.solve.pareto import undominated

costs = st.tuples(*(st.integers(0, 4) for _ in range(3)))


@given(st.lists(costs, max_size=12))
def test_what_is_left_out_is_beaten_and_what_is_kept_is_not(things):
    kept = undominated(things, lambda thing: thing)
    beats = lambda one, other: all(a <= b for a, b in zip(one, other, strict=True))  # noqa: E731
    assert all(any(beats(k, thing) for k in kept) for thing in things)
    assert not any(beats(one, other) for one in kept for other in kept if one is not other)
    assert kept == sorted(kept)


def test_of_equal_ones_the_first_is_kept():
    assert undominated([("a", 1), ("b", 1)], lambda thing: thing[1:]) == [("a", 1)]
