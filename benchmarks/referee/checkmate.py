"""The optimum of a game as an integer linear program: Checkmate (Jain et al. 2020, arXiv 1910.02653, section 4).

In: ``Game``, bytes. Out: ``Optimum``: the order that recomputes the fewest seconds within them, and the proven bound.

Variables per stage t and forward equation i that ran before it and may be wanted yet: ``R[t,i]``, it runs again in this
stage; ``S[t,i]``, its value is there when the stage begins; ``F[t,i,k]``, it is dropped in the stage behind equation k,
one that reads it.
Their equations (numbers as in the paper):

    minimise    sum(seconds_i R[t,i])                                                     (1a)
    subject to  R[t,j] <= R[t,i] + S[t,i]              i read by j                        (1b)
                S[t+1,i] <= R[t,i] + S[t,i] <= 1                                          (1c)
                R[t,t] = 1                             the equation that is due           (8)
                1 <= R[t,i] + S[t,i]                   i read by the backward equation due
                F[t,i,k] <= R[t,k], 1 - S[t+1,i], 1 - R[t,j]     j > k another reader of i  (5, 6)
                U[t,k] = U[t,k-1] - sum(bytes_i F[t,i,k-1]) + bytes_k R[t,k] <= budget      (2, 3)

The paper has one big-M row for each F; these rows say the same of binary R and S, leave F continuous, and give a
tighter relaxation. Backward equations run once, so their R and S are constants: the bytes of cotangents.
Solved by HiGHS (``scipy.optimize.milp``). ``benchmarks.referee.pebbles`` is an oracle for it.

Limits: about 20 forward equations. In one stage each runs once, in program order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from benchmarks.referee.model import Game
from benchmarks.referee.play import Order

GAP = 1e-4
"""An optimum counts as proven when the bound is within this share of it."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """What the solver proved.

    Attributes:
        order: the best order found; None where none was.
        bound_seconds: no order within the bytes recomputes less; infinite where none is possible.
        proven: whether the order is an optimum, or none is possible.
    """

    order: Order | None
    bound_seconds: float
    proven: bool


@dataclass
class _Rows:
    """Rows ``sum(coefficient * variable) <= limit`` of a sparse matrix, and the variables' bounds."""

    tails: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    data: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)

    def variable(self, cost: float = 0.0, least: float = 0.0, is_whole: bool = True) -> int:
        """A new variable between ``least`` and 1."""
        self.costs.append(cost)
        self.lower.append(least)
        self.whole.append(int(is_whole))
        return len(self.costs) - 1

    def add(self, terms: list[tuple[float, int]], limit: float) -> None:
        """A new row."""
        self.tails += [len(self.limits)] * len(terms)
        self.heads += [v for _, v in terms]
        self.data += [c for c, _ in terms]
        self.limits.append(limit)


class _Model:
    """The integer program of a game."""

    def __init__(self, game: Game, budget_bytes: int):
        self.game, self.rows = game, _Rows()
        self.size = [b / budget_bytes for b in game.value_bytes]
        self.budget_bytes = budget_bytes
        unit = sum(game.seconds)
        known = 0
        self.again: list[dict[int, int]] = []
        self.stored: list[dict[int, int]] = []
        for stage, wanted in zip(game.stages, game.wanted, strict=True):
            self.stored.append({i: self.rows.variable() for i in range(known) if i in wanted})
            due = stage.equation
            self.again.append({i: self.rows.variable(game.seconds[i] / unit) for i in range(known) if i in wanted})
            if due >= 0:
                self.again[-1][due] = self.rows.variable(least=1.0)
                known += 1
        self.stored.append({})
        for t in range(len(game.stages)):
            self.depend(t)
            self.hold(t)

    def depend(self, t: int) -> None:
        """What runs finds what it reads; what is kept was there or ran."""
        again, stored, add = self.again[t], self.stored[t], self.rows.add
        for j, run in again.items():
            for i in self.game.reads[j]:
                add([(1.0, run), (-1.0, again[i]), (-1.0, stored[i])], 0.0)
        for i in self.game.stages[t].reads:
            add([(-1.0, again[i]), (-1.0, stored[i])], -1.0)
        for i, kept in self.stored[t + 1].items():
            add([(1.0, kept), (-1.0, again[i])] + ([(-1.0, stored[i])] if i in stored else []), 0.0)
        for i in again.keys() & stored.keys():
            add([(1.0, again[i]), (1.0, stored[i])], 1.0)

    def hold(self, t: int) -> None:
        """Memory while each equation of a stage runs."""
        stage, again, rows = self.game.stages[t], self.again[t], self.rows
        held = stage.held_bytes / self.budget_bytes
        terms = [(self.size[i], v) for i, v in self.stored[t].items()]
        for k in sorted(again):
            terms = [*terms, (self.size[k], again[k])]
            rows.add(terms, 1.0 - held)
            terms = [*terms, *[(-self.size[i], self.dropped(t, i, k)) for i in {k, *self.game.reads[k]}]]
        if stage.equation < 0:
            rows.add(terms, 1.0 - stage.during_bytes / self.budget_bytes)

    def dropped(self, t: int, i: int, k: int) -> int:
        """The variable of value i dropped behind equation k."""
        rows, again, kept = self.rows, self.again[t], self.stored[t + 1]
        made = rows.variable(is_whole=False)
        rows.add([(1.0, made), (-1.0, again[k])], 0.0)
        if i in kept:
            rows.add([(1.0, made), (1.0, kept[i])], 1.0)
        for j in again:
            if j > k and i in self.game.reads[j]:
                rows.add([(1.0, made), (1.0, again[j])], 1.0)
        if i in self.game.stages[t].reads:
            rows.add([(1.0, made)], 0.0)
        return made

    def order(self, found: np.ndarray) -> Order:
        """The order that a solution stands for."""
        return [
            ([i for i in sorted(again) if i != stage.equation and found[again[i]] > 0.5], stage)
            for stage, again in zip(self.game.stages, self.again, strict=True)
        ]


def solve(game: Game, budget_bytes: int, limit_seconds: float = 60.0) -> Optimum:
    """Return the optimum within a budget (bytes beside what the caller owns)."""
    if budget_bytes < game.least_bytes:
        return Optimum(None, float("inf"), True)
    model = _Model(game, budget_bytes)
    rows = model.rows
    shape = len(rows.limits), len(rows.costs)
    result = milp(
        np.array(rows.costs),
        integrality=np.array(rows.whole),
        bounds=Bounds(cast(Any, np.array(rows.lower)), cast(Any, np.ones(len(rows.costs)))),
        constraints=LinearConstraint(
            cast(Any, csr_array((rows.data, (rows.tails, rows.heads)), shape=shape)),
            -np.inf,
            cast(Any, np.array(rows.limits)),
        ),
        options={"time_limit": limit_seconds, "mip_rel_gap": GAP},
    )
    unit = sum(game.seconds)
    bound = float("inf") if result.status == 2 else max(float(result.mip_dual_bound or 0.0), 0.0) * unit
    return Optimum(None if result.x is None else model.order(result.x), bound, result.status in (0, 2))
