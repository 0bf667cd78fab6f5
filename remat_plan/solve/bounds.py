"""A certified lower bound on recomputation.

In: the ``SegmentProblem`` of the whole program, bytes that may be saved. Out: seconds that *any* schedule must
recompute.

When the backward pass starts, what is saved is within the budget, so everything needed and not saved runs again
at least once, whatever the schedule. For every price p >= 0 the minimum over all selections of
``seconds + p * bytes`` less ``p * budget`` is therefore a lower bound (Lagrangian duality); the best price is
found by bisection, since the bound is concave in the price.

Limits: the bound is the linear-programming bound of the one-visit problem; nested schedules may need more.
"""

from __future__ import annotations

from remat_plan.solve.min_cut import SegmentProblem, lagrangian, save_most, save_none

_ITERATIONS = 12


def recompute_bound(problem: SegmentProblem, budget_bytes: float) -> float:
    """Return seconds that every schedule saving at most ``budget_bytes`` recomputes.

    >>> chain = SegmentProblem(((), (0,), (1,)), ((0,), (1,), (2,)), (1.0, 2.0, 1.0), (8, 4, 8), (True,) * 3,
    ...                        frozenset({1, 2}))
    >>> round(recompute_bound(chain, 4), 6)
    1.0
    """
    low, high = save_none(problem), save_most(problem)
    if budget_bytes >= high.kept_bytes or low.seconds <= high.seconds:
        return 0.0
    left, right = low, high
    best = 0.0
    for _ in range(_ITERATIONS):
        if right.kept_bytes <= left.kept_bytes or left.seconds <= right.seconds:
            break
        price = (left.seconds - right.seconds) / (right.kept_bytes - left.kept_bytes)
        point = lagrangian(problem, price)
        value = point.seconds + price * point.kept_bytes
        best = max(best, value - price * budget_bytes)
        if value >= (left.seconds + price * left.kept_bytes) * (1 - 1e-9):
            break
        # Keep the side of the hull that the budget lies on.
        left, right = (point, right) if point.kept_bytes <= budget_bytes else (left, point)
    return max(best, 0.0)
