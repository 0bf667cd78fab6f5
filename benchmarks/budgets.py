"""Plans of six models for seven budgets: is the compiled peak within the budget, and how closely?

In: models at full size, compiled for the CPU and never run. Out: ``results/budgets.md``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from benchmarks.common import ZOO, Options, Planned, Report, Session, mb, mean, percent
from remat_plan.small.budget import BudgetError

SHARES = (90, 75, 60, 45, 30, 20)
_COLUMNS = tuple(
    "model|budget|budget MB|compiled MB|slack %|predicted / compiled|overhead %|FLOPs x plain|gap %|compiles"
    "|planning s".split("|")
)
_INTRO = """Budgets are shares of the plain step's compiled peak, and the least peak that `BudgetError` reports.
Slack: budget not used. Overhead: recomputed seconds over those of the plain step, by the evaluator. Gap: overhead
above the certified lower bound. Compiles, planning s: what `rp.plan` alone needs (the plain step, the search and
the solve included; compiles that several budgets share are counted for each)."""


@dataclass(frozen=True)
class Row:
    """One plan that was made."""

    model: str
    budget: str
    planned: Planned

    @property
    def slack(self) -> float:
        """Share of the budget that is not used."""
        return 1 - self.compiled / self.allowed

    @property
    def allowed(self) -> int:
        """The budget in bytes."""
        assert self.planned.plan.budget_bytes is not None
        return self.planned.plan.budget_bytes

    @property
    def compiled(self) -> int:
        """Compiled peak."""
        assert self.planned.plan.compiled_peak_bytes is not None
        return self.planned.plan.compiled_peak_bytes

    @property
    def accuracy(self) -> float:
        """Predicted over compiled peak."""
        return self.planned.plan.predicted_peak_bytes / self.compiled

    @property
    def has_finer(self) -> bool:
        """Whether less slack could save time: something is recomputed."""
        return self.planned.plan.overhead >= 1e-3

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        plan = self.planned.plan
        return (
            *(self.model, self.budget, mb(self.allowed), mb(self.compiled), percent(self.slack)),
            *(f"{self.accuracy:.3f}", percent(plan.overhead), f"{plan.step_flops / plan.plain_flops:.3f}"),
            *(percent(plan.gap), str(self.planned.compiles), f"{self.planned.seconds:.1f}"),
        )


def run(options: Options) -> Report:
    """Make all plans; write and return the table."""
    report = Report("budgets", _INTRO, _COLUMNS, options.results)
    rows: list[Row] = []
    for name in options.choose(ZOO):
        session = Session(options.model(name))
        rows += _plans(session, name, report)
        report.facts = facts(rows)
    report.finish(facts(rows))
    return report


def _plans(session: Session, name: str, report: Report) -> list[Row]:
    minimum = session.minimum_bytes()
    rows = []
    for text, budget in [*((f"{s}%", f"{s}%") for s in SHARES), ("minimum", minimum)]:
        try:
            row = Row(name, text, session.plan(budget))
        except BudgetError as error:
            report.add(name, text, mb(error.budget_bytes), f"minimum is {mb(error.minimum_bytes)}", *[""] * 7)
            continue
        rows.append(row)
        report.add(*row.cells())
    return rows


def facts(rows: list[Row]) -> list[str]:
    """What must hold, checked."""
    over = [f"{r.model} {r.budget}" for r in rows if r.slack < 0]
    finer = [r for r in rows if r.has_finer and r.budget != "minimum"]
    far = [f"{r.model} {r.budget} ({r.accuracy:.3f})" for r in rows if abs(r.accuracy - 1) > 0.1]
    wide = [f"{r.model} {r.budget} ({percent(r.slack)} %)" for r in finer if r.slack > 0.03]
    steps = _not_monotone(rows)
    slack = f"{percent(mean([r.slack for r in finer]))} %" if finer else "unknown"
    return [
        f"over the budget: {_listed(over)} ({len(rows)} plans)",
        f"overhead falls as the budget falls: {_listed(steps)}",
        f"mean slack of the {len(finer)} plans that recompute something (overhead of 0.1 % or more; minimum left "
        f"out): {slack}; above 3 %: {_listed(wide)}",
        f"prediction more than 10 % off: {_listed(far)}; mean distance "
        f"{percent(mean([abs(r.accuracy - 1) for r in rows]))} %",
    ]


def _not_monotone(rows: list[Row]) -> list[str]:
    found = []
    for name in dict.fromkeys(r.model for r in rows):
        mine = sorted((r for r in rows if r.model == name), key=lambda r: -r.allowed)
        for larger, smaller in itertools.pairwise(mine):
            if smaller.planned.plan.overhead < larger.planned.plan.overhead - 1e-9:
                found.append(f"{name} {larger.budget} -> {smaller.budget}")
    return found


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "none"
