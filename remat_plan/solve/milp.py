"""The exact choice of saved values for a budget: an integer linear program.

In: ``SegmentProblem``, bytes. Out: the ``Selection`` that recomputes the fewest seconds within them.

Model (Checkmate, Jain et al. 2020, arXiv 1910.02653, section 4, for one visit of each equation in the backward
pass, which is when a segment is run again as a whole). Binary variables ``a_v``: value v is available in the
backward pass, and ``r_n``: equation n runs again; v is saved when ``a_v - r_n = 1`` for its producer n.

    minimise    sum(seconds_n r_n)
    subject to  a_v = 1                                  for needed values
                r_n <= a_u                               for inputs u of n (of the segment)
                r_n <= a_v                               for outputs v of n
                a_v <= r_n                               for outputs that may not be saved
                r_n = 0                                  for equations that must not run again
                sum(bytes_v (a_v - r_n)) <= budget

Where other actions are offered, binary variables ``x_vk`` with ``sum_k(x_vk) <= a_v - r_n`` tell which of them keeps v.

Without the last row this is the closure problem of ``solve.min_cut``, whose matrix is totally unimodular; its
multiplier is the price there. So the integrality gap comes from the budget alone, and branch and bound is quick.
Solved by HiGHS (``scipy.optimize.milp``, imported on first use). Bytes are scaled to the budget and seconds to
their sum.

Limits: NP-hard. A node limit and a relative gap, no clock, so that results do not depend on the machine. Meant
for segments of some hundreds of equations; ``min_cut.hull`` does thousands, but only finds convex points.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from remat_plan.solve.min_cut import SegmentProblem, Selection, complete, front, producers, prune, save_none

NODES = 20_000


def exact(problem: SegmentProblem, budget_bytes: int, *, nodes: int = NODES) -> Selection:
    """Return the selection with the fewest recomputed seconds that keeps at most ``budget_bytes``.

    Values that are stored anyway count nothing. Where the branch-and-bound ``nodes`` run out, it is the best found so
    far. ``ValueError`` if what must be kept (it cannot be made again) takes more.

    >>> chain = SegmentProblem(((), (0,), (1,)), ((0,), (1,), (2,)), (1.0, 2.0, 1.0), (8, 4, 8), (True,) * 3,
    ...                        frozenset({1, 2}))
    >>> [exact(chain, b).seconds for b in (0, 4, 8, 12)]
    [4.0, 1.0, 1.0, 0.0]
    """
    least = save_none(problem)
    found = _best(problem, budget_bytes, least, nodes, gap=1e-6)
    if found.kept_bytes > budget_bytes:
        raise ValueError(f"{least.kept_bytes} bytes cannot be made again; the budget is {budget_bytes}.")
    return found


def _best(problem: SegmentProblem, budget_bytes: int, known: Selection, nodes: int, gap: float) -> Selection:
    """What is found within a budget, or what is ``known``, where nothing better is.

    What saves nothing of its own accord need not keep the fewest bytes: of an equation that must not run again, it
    keeps all that is read, where another value behind that may be smaller.
    """
    found = _solve(problem, budget_bytes, nodes, gap) if problem.op_inputs else None
    # HiGHS works to a tolerance: what it returns is completed exactly, and must hold exactly.
    if found is None or found.kept_bytes > budget_bytes:
        return known
    fits = known.kept_bytes <= budget_bytes
    return min(known, found, key=lambda s: (s.seconds, s.kept_bytes)) if fits else found


def between(
    problem: SegmentProblem, selections: Sequence[Selection], *, share: float = 0.1, seconds_share: float = 1.0
) -> list[Selection]:
    """Fill the gaps between the points of a hull (``min_cut.hull``); return the front, from fewest bytes to most.

    Neighbours further apart than a share of the most kept bytes get points at such steps between; so do those further
    apart than a share of all seconds, however few bytes that is.
    """
    found = list(selections)
    ordered = sorted(found, key=lambda s: s.kept_bytes)
    step = share * max((s.kept_bytes for s in ordered), default=0)
    seconds_step = seconds_share * sum(problem.op_seconds)
    if step <= 0 or seconds_step <= 0:
        return front(found)
    for left, right in itertools.pairwise(ordered):
        width = right.kept_bytes - left.kept_bytes
        pieces = int(np.ceil(max(width / step, (left.seconds - right.seconds) / seconds_step)))
        known = right
        for piece in range(pieces - 1, 0, -1):
            budget_bytes = left.kept_bytes + width * piece // pieces
            if known.kept_bytes > budget_bytes:  # else what is best within more bytes is best within these
                known = _best(problem, budget_bytes, left, NODES, gap=1e-3)
                found.append(known)
    return front(found)


def _solve(problem: SegmentProblem, budget_bytes: int, nodes: int, gap: float) -> Selection | None:
    from scipy.optimize import Bounds, LinearConstraint, milp

    n_ops, n_values, n_actions = len(problem.op_inputs), len(problem.value_bytes), len(problem.actions)
    width = n_ops + n_actions * n_values  # r, a, and x of one offer after another
    made_by = producers(problem)
    sizes, extra = (np.array(rows, dtype=float) for rows in zip(*problem.actions, strict=True))
    sizes /= max(budget_bytes, 1)
    saved = np.zeros((n_values, width))  # a_v - r_n
    budget = np.zeros(width)
    for v, n in enumerate(made_by):
        budget[n_ops + v], saved[v, n_ops + v] = sizes[0, v], 1.0
        if n >= 0:
            budget[n] -= sizes[0, v]
            saved[v, n] = -1.0
    budget[n_ops + n_values :] = (sizes[1:] - sizes[0]).ravel()
    seconds = np.array(problem.op_seconds, dtype=float)
    total = max(seconds.sum(), 1e-300)
    lower, upper = np.zeros(width), np.ones(width)
    upper[list(problem.fixed)] = 0.0
    upper[n_ops + n_values :] = (sizes[1:] < sizes[0]).ravel()
    lower[[n_ops + v for v in problem.needed]] = 1.0
    constraints = [
        LinearConstraint(_implications(problem, width), -np.inf, 0.0),
        LinearConstraint(budget[None, :], -np.inf, float(budget_bytes > 0)),
    ]
    if problem.offers:
        saved[:, n_ops + n_values :] = -np.tile(np.eye(n_values), n_actions - 1)
        constraints.append(LinearConstraint(saved, 0.0, np.inf))
    result = milp(
        np.concatenate([seconds / total, np.zeros(n_values), extra[1:].ravel() / total]),
        integrality=np.ones(width),
        bounds=Bounds(cast(Any, lower), cast(Any, upper)),
        constraints=constraints,
        options={"node_limit": nodes, "mip_rel_gap": gap},
    )
    if result.x is None:
        return None
    chosen = result.x > 0.5
    by = chosen[n_ops + n_values :].reshape(-1, n_values)
    selected = {
        v: next((k for k in range(1, n_actions) if by[k - 1, v]), 0)
        for v, n in enumerate(made_by)
        if chosen[n_ops + v] and not (n >= 0 and chosen[n]) and problem.saveable[v]
    }
    return prune(problem, complete(problem, selected))


def _implications(problem: SegmentProblem, width: int) -> Any:
    """The matrix of x - y for pairs of variables with x <= y: r or a <= a or r."""
    from scipy.sparse import csr_array

    n_ops = len(problem.op_inputs)
    rows: list[tuple[int, int]] = []
    for n, (inputs, outputs) in enumerate(zip(problem.op_inputs, problem.op_outputs, strict=True)):
        rows += [(n, n_ops + v) for v in dict.fromkeys((*inputs, *outputs))]
        rows += [(n_ops + v, n) for v in outputs if not problem.saveable[v]]
    count, columns = len(rows), np.array(rows, dtype=np.int64).reshape(-1, 2).T.ravel()
    signs, index = np.repeat([1.0, -1.0], count), np.tile(np.arange(count), 2)
    return csr_array((signs, (index, columns)), shape=(count, width))
