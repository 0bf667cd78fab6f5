"""Which values of a segment to save: the parametric minimum cut.

In: ``SegmentProblem`` (equations, seconds, bytes; numbers only). Out: ``Selection`` for each point of the
convex hull of kept bytes against recomputed seconds: which values are saved, and by which action.

Model (after Checkmate's and PyTorch's min-cut partitioner, as a closure problem): ``a_v`` = value v is available
in the backward pass, ``r_n`` = equation n runs again. Needed values have ``a_v = 1``; ``r_n`` implies ``a_u``
for its inputs u and ``a_v`` for its outputs v; v is saved when ``a_v - r_n = 1``. Minimise
``sum(seconds_n r_n) + price * sum(bytes_v (a_v - r_n))``. All constraints are implications, so one minimum cut
(Picard 1976) is exact for each price. Where other actions are offered, a saved value costs the cheapest of them at that
price, ``min_k(price * bytes_vk + seconds_vk)``, under the same constraints. Splitting the interval between two hull
points by the price of their chord finds every hull point (Eisner & Severance 1976). Complexity: two cuts per hull
point, each ``scipy.sparse.csgraph.maximum_flow`` on ``ops + values + 2`` nodes.

The lower bound on recomputation (``recompute_bound``): when the backward pass starts, what is saved is within the
budget, so everything needed and not saved runs again at least once, whatever the schedule. For every price p >= 0 the
minimum over all selections of ``seconds + p * bytes`` less ``p * budget`` is therefore a lower bound (Lagrangian
duality); the best price is found by bisection, since the bound is concave in the price. Nested schedules may need more.

Limits: capacities are rounded to 30-bit integers; a point that is best only by less than 1e-7 of all seconds
may be missed. Points inside the hull need ``solve.milp``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from remat_plan.solve.pareto import undominated

_SCALE = float(1 << 28)
_INFINITE = (1 << 30) - 1


class Offer(NamedTuple):
    """Another action for the values of a segment: per value the bytes that it keeps, and the seconds that it takes."""

    value_bytes: tuple[int, ...]
    value_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SegmentProblem:
    """A segment in numbers local to it.

    Attributes:
        op_inputs, op_outputs: per equation, values made inside the segment (what comes from outside is there).
        value_bytes: what saving the value costs; 0 for values that are stored anyway.
        needed: values that the backward pass reads.
        fixed: equations that must not run again; what is read of their outputs is saved.
        offers: actions beside saving a value as it is, which is number 0: numbers 1, 2, ...
    """

    op_inputs: tuple[tuple[int, ...], ...]
    op_outputs: tuple[tuple[int, ...], ...]
    op_seconds: tuple[float, ...]
    value_bytes: tuple[int, ...]
    saveable: tuple[bool, ...]
    needed: frozenset[int]
    fixed: frozenset[int] = frozenset()
    offers: tuple[Offer, ...] = ()

    @property
    def actions(self) -> tuple[Offer, ...]:
        """All actions, by their numbers."""
        return (Offer(self.value_bytes, (0.0,) * len(self.value_bytes)), *self.offers)


def joined(first: SegmentProblem, second: SegmentProblem) -> SegmentProblem:
    """Return two problems that share nothing but their budget as one; numbers of the second come behind the first's.

    Neither has offers.
    """
    values, ops = len(first.value_bytes), len(first.op_inputs)

    def moved(rows: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(v + values for v in row) for row in rows)

    return SegmentProblem(
        first.op_inputs + moved(second.op_inputs),
        first.op_outputs + moved(second.op_outputs),
        first.op_seconds + second.op_seconds,
        first.value_bytes + second.value_bytes,
        first.saveable + second.saveable,
        first.needed | {v + values for v in second.needed},
        first.fixed | {n + ops for n in second.fixed},
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """What is saved, (value, action) by numbers, and what follows: equations run again, bytes kept, seconds added."""

    actions: tuple[tuple[int, int], ...]
    recomputed: frozenset[int]
    kept_bytes: int
    seconds: float

    @property
    def saved(self) -> frozenset[int]:
        """The saved values, by whatever action."""
        return frozenset([v for v, _ in self.actions])


def producers(problem: SegmentProblem) -> list[int]:
    """Return per value the equation that makes it."""
    made_by = [-1] * len(problem.value_bytes)
    for n, outputs in enumerate(problem.op_outputs):
        for v in outputs:
            made_by[v] = n
    return made_by


def complete(problem: SegmentProblem, saved: Mapping[int, int]) -> Selection:
    """Return the selection that saves exactly ``saved`` (value to action) and recomputes what is needed and missing.

    What is missing and made by a ``fixed`` equation is saved too, as it is.
    """
    made_by = producers(problem)
    recomputed: set[int] = set()
    fixed: dict[int, int] = {}
    stack = [v for v in problem.needed if v not in saved]
    while stack:
        v = stack.pop()
        n = made_by[v]
        if n < 0:
            raise ValueError("a needed value has no producer in the segment")
        if n in problem.fixed and problem.saveable[v]:
            fixed[v] = 0
        elif n not in recomputed:
            recomputed.add(n)
            stack.extend(u for u in problem.op_inputs[n] if u not in saved)
    actions, ways = tuple(sorted({**saved, **fixed}.items())), problem.actions
    kept = sum(ways[k].value_bytes[v] for v, k in actions)
    seconds = sum((problem.op_seconds[n] for n in sorted(recomputed)), 0.0)
    seconds += sum(ways[k].value_seconds[v] for v, k in actions)
    return Selection(actions, frozenset(recomputed), kept, seconds)


def save_none(problem: SegmentProblem) -> Selection:
    """Keep nothing beyond what is stored anyway: the least bytes."""
    free = {v: 0 for v, b in enumerate(problem.value_bytes) if b == 0 and problem.saveable[v]}
    least, ways = prune(problem, complete(problem, free)), problem.actions
    smallest = {v: min(range(len(ways)), key=lambda k: ways[k].value_bytes[v]) for v in least.saved}
    return complete(problem, smallest)


def save_needed(problem: SegmentProblem) -> Selection:
    """Keep every needed value: nothing dear is run again."""
    return prune(problem, complete(problem, {v: 0 for v in problem.needed if problem.saveable[v]}))


def save_most(problem: SegmentProblem) -> Selection:
    """Recompute the fewest seconds: keep what is needed, and what those needed values are made of that may not be
    saved."""
    needed = save_needed(problem)
    if all(problem.saveable[v] for v in problem.needed):
        return needed
    price = 1e-6 * sum(problem.op_seconds) / max(sum(problem.value_bytes), 1)
    dear = lagrangian(problem, price)
    return dear if (dear.seconds, dear.kept_bytes) < (needed.seconds, needed.kept_bytes) else needed


def prune(problem: SegmentProblem, selection: Selection) -> Selection:
    """Drop saved values that nobody reads (neither the backward pass nor a recomputed equation)."""
    read = set(problem.needed)
    for n in selection.recomputed:
        read.update(problem.op_inputs[n])
    saved = {v: k for v, k in selection.actions if v in read}
    return selection if len(saved) == len(selection.actions) else complete(problem, saved)


class _Network:
    """The flow network of a problem; only capacities depend on the price."""

    def __init__(self, problem: SegmentProblem):
        self.problem = problem
        n_ops = len(problem.op_inputs)
        self.n_ops, self.n_values = n_ops, len(problem.value_bytes)
        self.source, self.sink = n_ops + self.n_values, n_ops + self.n_values + 1
        tails, heads = [], []
        for n, (inputs, outputs) in enumerate(zip(problem.op_inputs, problem.op_outputs, strict=True)):
            for v in dict.fromkeys((*inputs, *outputs)):  # once: capacities of equal arcs would be added up
                tails.append(n)
                heads.append(n_ops + v)
        self.tails, self.heads = np.array(tails, dtype=np.int64), np.array(heads, dtype=np.int64)
        self.bytes, self.extra = (np.array(rows, dtype=float) for rows in zip(*problem.actions, strict=True))
        self.seconds = np.array(problem.op_seconds, dtype=float)
        self.made = np.array([n for n, out in enumerate(problem.op_outputs) for _ in out], dtype=np.int64)
        self.made_value = np.array([v for out in problem.op_outputs for v in out], dtype=np.int64)
        self.forced = np.zeros(self.n_values, dtype=bool)
        self.forced[list(problem.needed)] = True
        self.unsaveable = np.array([not s for s in problem.saveable], dtype=bool)
        self.fixed = np.zeros(n_ops, dtype=bool)
        self.fixed[list(problem.fixed)] = True

    def weights(self, price: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cost of setting each ``r_n`` and each ``a_v`` to one, and the cheapest action for each value."""
        costs = price * self.bytes + self.extra
        value, cheapest = costs.min(axis=0), costs.argmin(axis=0)
        if self.unsaveable.any():
            value = np.where(self.unsaveable, 4.0 * (self.seconds.sum() + value.sum()), value)
        op = self.seconds.copy()
        np.subtract.at(op, self.made, value[self.made_value])
        return op, value, cheapest

    def solve(self, price: float) -> dict[int, int]:
        """Return the values saved at a price (seconds per byte), each with its action."""
        from scipy.sparse import csr_array  # here: importing it takes longer than all of remat_plan
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        op, value, cheapest = self.weights(price)
        cost = np.concatenate([op, value])
        total = float(np.abs(cost).sum())
        scale = _SCALE / total if total > 0 else 0.0
        capacity = np.rint(np.abs(cost) * scale).astype(np.int64)
        capacity[self.n_ops :][self.forced] = _INFINITE
        capacity[: self.n_ops][self.fixed] = _INFINITE
        gains = cost < 0
        gains[: self.n_ops] &= ~self.fixed
        gains[self.n_ops :] |= self.forced
        nodes = np.arange(len(cost))
        tails = np.concatenate([self.tails, np.full(gains.sum(), self.source), nodes[~gains]])
        heads = np.concatenate([self.heads, nodes[gains], np.full((~gains).sum(), self.sink)])
        caps = np.concatenate([np.full(len(self.tails), _INFINITE), capacity[gains], capacity[~gains]])
        # Forced values still pay their price: it is constant for them, so only the arc from the source remains.
        graph = csr_array((caps.astype(np.int32), (tails, heads)), shape=(self.sink + 1, self.sink + 1))
        flow = maximum_flow(graph, self.source, self.sink).flow
        residual = graph - flow
        residual.data = (residual.data > 0).astype(np.int32)
        residual.eliminate_zeros()
        reach = np.zeros(self.sink + 1, dtype=bool)
        reach[breadth_first_order(residual, self.source, return_predecessors=False)] = True
        available, again = reach[self.n_ops : self.source], reach[: self.n_ops]
        rerun = np.zeros(self.n_values, dtype=bool)
        rerun[self.made_value] = again[self.made]
        return {int(v): int(cheapest[v]) for v in np.flatnonzero(available & ~rerun & ~self.unsaveable)}


def lagrangian(problem: SegmentProblem, price: float) -> Selection:
    """Return the selection that minimises ``seconds + price * kept bytes`` (price in seconds per byte)."""
    return prune(problem, complete(problem, _Network(problem).solve(price)))


def hull(problem: SegmentProblem, max_points: int = 24) -> list[Selection]:
    """Return the selections on the convex hull of kept bytes against seconds, from fewest bytes to most.

    Splitting stops at ``max_points`` (a limit on nodes, so that results do not depend on time).

    >>> chain = SegmentProblem(((), (0,), (1,)), ((0,), (1,), (2,)), (1.0, 2.0, 1.0), (8, 4, 8), (True,) * 3,
    ...                        frozenset({1, 2}))
    >>> [(s.kept_bytes, s.seconds) for s in hull(chain)]
    [(0, 4.0), (4, 1.0), (12, 0.0)]
    """
    low, high = save_none(problem), save_most(problem)
    if not problem.op_inputs or low.kept_bytes >= high.kept_bytes:
        return [low if low.seconds <= high.seconds else high]
    network = _Network(problem)
    points = [low, high]
    stack = [(low, high)]
    while stack and len(points) < max_points:
        left, right = stack.pop(0)
        if right.kept_bytes <= left.kept_bytes or left.seconds <= right.seconds:
            continue
        price = (left.seconds - right.seconds) / (right.kept_bytes - left.kept_bytes)
        new = prune(problem, complete(problem, network.solve(price)))
        chord = left.seconds + price * left.kept_bytes
        if new.seconds + price * new.kept_bytes < chord * (1 - 1e-6) - 1e-15:
            points.append(new)
            stack += [(left, new), (new, right)]
    return front(points)


def front(points: Iterable[Selection]) -> list[Selection]:
    """Keep the points that no other beats in both bytes and seconds, from fewest bytes to most."""
    ordered = sorted(points, key=lambda p: p.actions)
    return undominated(ordered, lambda p: (p.kept_bytes, p.seconds))


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
    for _ in range(12):
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
