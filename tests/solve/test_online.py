"""The online schedule: what it stores, and that no step runs more often than it must."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from remat_plan.solve.binomial import advances, beta, make_splits
from tests.solve.reference import advances_online, stored_after


def runs_of_each_step(length, slots):
    """How often each step runs without residuals, forward and backward."""
    counts = np.ones(length, int)
    splits = make_splits(max(length, 1), slots)
    stack, end = list(stored_after(length, slots)), length
    while stack:
        start = stack.pop()
        held, last = splits.descend(start, end, slots - len(stack))
        counts[start:last] += 1
        for a in held[1:]:
            assert start < a < end
        stack.extend(held)
        end = last
    assert end == 0
    return counts


def test_small_cases_by_hand():
    """Three slots: full at step 2; then the latest is lifted, and those before a higher one make room."""
    assert [stored_after(n, 3) for n in range(1, 8)] == [
        (0,),
        (0, 1),
        (0, 1, 2),
        (0, 1, 3),
        (0, 3, 4),
        (0, 3, 5),
        (0, 3, 6),
    ]


@given(st.integers(1, 600), st.integers(1, 20))
def test_no_step_runs_more_often_than_the_least_possible(length, slots):
    """Wang, Moin and Iaccarino: at most t times for up to beta(slots, t) steps, whatever the length comes out as."""
    t = 0
    while beta(slots, t) < length:
        t += 1
    assert (
        runs_of_each_step(length, slots).max() <= t + 1
    )  # the last step too runs forward, since its carry is asked for


@given(st.integers(1, 600), st.integers(1, 20))
def test_stored_carries_are_in_order_and_the_first_stays(length, slots):
    stored = stored_after(length, slots)
    assert stored[0] == 0
    assert list(stored) == sorted(set(stored))
    assert len(stored) == min(length, slots)
    assert stored[-1] < length


def test_not_far_from_the_offline_optimum():
    for slots in (3, 8, 16):
        for length in (20, 100, 500, 1000):
            mine = advances_online(length, slots) + 2 * length  # forward, again for residuals
            assert mine <= 1.2 * (advances(length, slots) + length)


def test_no_steps():
    assert advances_online(0, 4) == 0
