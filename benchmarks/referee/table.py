"""The planner, and what else there is, against exact optima on small graphs.

In: ``graphs.GRAPHS``, ``graphs.HELD_OUT``. Out: ``results/referee.md``. Nothing is compiled, nothing runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from benchmarks.common import Options, Report, mean, percent
from benchmarks.referee import checkmate
from benchmarks.referee.contestants import Contest
from benchmarks.referee.graphs import GRAPHS, HELD_OUT
from benchmarks.referee.pebbles import least_seconds
from benchmarks.referee.play import play

SHARES = (0.25, 0.5, 0.75)
"""Budgets: so far from what the largest single equation needs to what the plain step needs."""

MILP_SHARE, MILP_MOST, MILP_SECONDS = 0.5, 11, 60.0
"""The integer program is solved for this budget, of graphs of so many equations at most that were not held out, in so
much time at most; the search through everything is quicker, and solves all."""

_QUICK = ("linear-zigzag", "convolutions-three")
_RIVALS = ("rotor", "chen", "min-cut")
_COLUMNS = ("graph", "equations", "budget", "bytes / plain", "optimum %", "planner %", "again / optimum", "bound %",
            "rotor %", "chen %", "min-cut %", "Checkmate")  # fmt: skip
_INTRO = """Optimum: seconds that the best order recomputes, as a share of the plain step's, found by a search through
all sets of values that may be in memory (`benchmarks/referee/pebbles.py`). Checkmate: what the integer program of Jain
et al. 2020 proved of it within a minute, where it was asked. Planner, rotor, chen, min-cut: how much longer the whole
step takes than under the optimum, by the same cost of every equation (`benchmarks/referee/model.py`); again / optimum:
recomputed seconds of the planner alone over those of the optimum. A dash: nothing that it offers fits. Bound: the lower
bound that a plan prints. Budgets: 0 is what the largest single equation needs, 1 what the plain step needs, beside what
the caller owns. The last graphs, from chain-saw on, were held out: nothing in the planner was chosen by them."""


@dataclass(frozen=True)
class Row:
    """One graph in one budget.

    Attributes:
        best: seconds that the optimum recomputes.
        plain: seconds of the plain step.
        bound: the certified bound, in seconds.
        found: per contestant the seconds that it recomputes; infinite where it has nothing that fits.
        proof: what the integer program said.
    """

    name: str
    equations: int
    share: float
    bytes_share: float
    best: float
    plain: float
    bound: float
    found: dict[str, float]
    proof: str

    def excess(self, who: str) -> float:
        """Seconds of a contestant's step over those of the optimum, less one."""
        return (self.plain + self.found[who]) / (self.plain + self.best) - 1

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        ours = self.found["planner"]
        ratio = "-" if ours == inf else "1" if ours <= self.best * (1 + 1e-9) else f"{ours / self.best:.2f}"
        shown = {who: "-" if self.found[who] == inf else percent(self.excess(who), 1) for who in self.found}
        return (
            *(self.name, str(self.equations), f"{self.share:.2f}", f"{self.bytes_share:.2f}"),
            *(percent(self.best / self.plain, 1), shown["planner"], ratio, percent(self.bound / self.plain, 1)),
            *(*(shown[who] for who in _RIVALS), self.proof),
        )


def run(options: Options) -> Report:
    """Hold all contests; write and return the table."""
    report = Report("referee", _INTRO, _COLUMNS, options.results)
    rows: list[Row] = []
    for name in _QUICK if options.quick else (*GRAPHS, *HELD_OUT):
        for row in rows_of(name):
            rows.append(row)
            report.add(*row.cells())
        report.facts = facts(rows)
    report.finish(facts(rows))
    return report


def rows_of(name: str) -> list[Row]:
    """One graph in all budgets in which something has to run again."""
    contest = Contest(*(GRAPHS | HELD_OUT)[name]())
    game, rows = contest.game, []
    least, plain = game.least_bytes, contest.plain.peak_bytes
    for share in SHARES:
        budget = int(least + share * (plain - least))
        best = least_seconds(game, budget)
        if best in (0.0, inf):
            continue
        offers = {who: contest.best(who, budget) for who in contest.offers}
        found = {who: inf if score is None else score.again_seconds for who, score in offers.items()}
        asked = share == MILP_SHARE and len(game.reads) <= MILP_MOST and name not in HELD_OUT
        proof = _proof(contest, budget, best) if asked else ""
        bound = contest.bound_seconds(budget)
        rows.append(Row(name, len(game.reads), share, budget / plain, best, game.plain_seconds, bound, found, proof))
    return rows


def _proof(contest: Contest, budget_bytes: int, best: float) -> str:
    """What the integer program says of an optimum."""
    game = contest.game
    optimum = checkmate.solve(game, budget_bytes, MILP_SECONDS)
    if optimum.order is not None and optimum.proven:
        score = play(game, optimum.order)
        if score.again_seconds < best * (1 - 1e-9):
            return "DISAGREES"
        more = score.again_seconds - best
        return (
            "agrees" if more <= 2 * checkmate.GAP * best else f"{percent(score.again_seconds / game.plain_seconds, 1)}"
        )
    return f"at least {percent(optimum.bound_seconds / game.plain_seconds, 1)}"


def facts(rows: Sequence[Row]) -> list[str]:
    """What must hold, checked."""
    above = [f"{r.name} {r.share:.2f}" for r in rows if r.bound > r.best * (1 + 1e-6)]
    asked = [r.proof for r in rows if r.proof]
    found = [
        f"the integer program was asked {len(asked)} times, agreed {asked.count('agrees')} times, disagreed "
        f"{asked.count('DISAGREES')} times, and was not done in a minute otherwise",
        f"bound above the optimum: {_listed(above)}",
    ]
    known, held_out = ([row for row in rows if (row.name in HELD_OUT) is held] for held in (False, True))
    found += _summary(known, "")
    if held_out:
        found += _summary(held_out, "held out: ")
    return found


def _summary(rows: Sequence[Row], prefix: str) -> list[str]:
    """How far everybody is from the optimum on some graphs."""
    graphs = dict.fromkeys(row.name for row in rows)
    fitting = [row for row in rows if row.found["planner"] < inf]
    far = [f"{r.name} {r.share:.2f}" for r in fitting if r.excess("planner") > 0.1]
    unmet = [f"{r.name} {r.share:.2f}" for r in rows if r.found["planner"] == inf]
    found = [
        f"{prefix}{len(graphs)} graphs, {len(rows)} budgets",
        f"{prefix}planner beyond 10 %: {_listed(far)}; budget not met by it: {_listed(unmet)}",
    ]
    for who in ("planner", *_RIVALS):
        met = [row.excess(who) for row in rows if row.found[who] < inf]
        found.append(
            f"{prefix}{who}: {len(met)} budgets met; over the optimum {percent(mean(met))} % on average, "
            f"{percent(max(met, default=0.0), 1)} % at worst; within 0.05 % of it in {sum(e < 5e-4 for e in met)}"
        )
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"
