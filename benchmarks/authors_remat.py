"""Our plans against the rematerialisation that the authors of scanned models wrote, at the memory of each policy.

In: ``benchmarks.authors``. Out: ``results/authors.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from benchmarks.authors import AUTHORS, Made
from benchmarks.common import Options, Planned, Report, Session, mb, percent, raw_step
from benchmarks.models import Model
from remat_plan._compat import live_jaxpr
from remat_plan.clock.steps import run_of, with_values
from remat_plan.clock.turns import Ratio, time_in_turns
from remat_plan.cost.memory import evaluate
from remat_plan.cost.rules import jaxpr_flops
from remat_plan.small.budget import BudgetError
from remat_plan.verify.compile import compile_memory

EQUAL = 1e-3
FROM_PLAIN, FROM_THEIRS = "plain", "theirs"
COLUMNS = tuple(
    "model|size|policy|planned from|their MB|our MB|their GFLOP|our GFLOP|FLOPs %|seconds %|measured %|overhead %|"
    "compiles|planning s|ours is".split("|")
)
_INTRO = """Models as their authors wrote them, each with the rematerialisation that comes with it
(`benchmarks/authors`). Our budget is the compiled peak of the authors' gradient step; we plan the loss without
rematerialisation (`plain`) and the loss with theirs (`theirs`: its checkpoints are planned again). MB: compiled peaks,
arguments and gradients included. GFLOP: of the jaxpr of the gradient step without its dead code, every loop as often as
it runs and of a conditional the branch with the most; XLA's own count has each loop once. FLOPs %, seconds %
(predicted): ours above theirs. Measured: the same by the clock, where ours has more FLOPs; both steps run in turns, the
median of {rounds} pairs and the interval that holds it 19 times of 20. Overhead: predicted, against the step without
rematerialisation. A row is behind where ours needs more bytes or over 0.1 % more FLOPs."""
_ROUNDS = 7


@dataclass(frozen=True)
class Step:
    """A compiled gradient step: its peak, its FLOPs by trip counts, its predicted seconds."""

    peak_bytes: int
    flops: float
    seconds: float


@dataclass(frozen=True)
class Row:
    """One policy, and our plan at its memory; without a plan, the least peak that ours comes to.

    Attributes:
        ours: None where the budget is below that.
        measured: ours over theirs by the clock; None where it was not asked.
    """

    model: str
    size: str
    policy: str
    source: str
    theirs: Step
    ours: Step | None
    planned: Planned | None
    least_bytes: int = 0
    measured: Ratio | None = None

    @property
    def more_flops(self) -> float:
        """Ours above theirs, as a share."""
        return self.ours.flops / self.theirs.flops - 1 if self.ours else 0.0

    @property
    def more_seconds(self) -> float:
        """The same of predicted seconds."""
        return self.ours.seconds / self.theirs.seconds - 1 if self.ours else 0.0

    @property
    def behind(self) -> str:
        """What ours falls short in; empty where it does not."""
        if self.ours is None:
            return f"needs {percent(self.least_bytes / self.theirs.peak_bytes - 1)} % more bytes"
        if self.ours.peak_bytes > self.theirs.peak_bytes:
            return f"{percent(self.ours.peak_bytes / self.theirs.peak_bytes - 1)} % more bytes"
        return f"{percent(self.more_flops)} % more FLOPs" if self.more_flops > EQUAL else ""

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        head = (self.model, self.size, self.policy, self.source, mb(self.theirs.peak_bytes))
        verdict = f"**behind**: {self.behind}" if self.behind else "equal"
        if self.ours is None or self.planned is None:
            return (*head, f"least {mb(self.least_bytes)}", f"{self.theirs.flops / 1e9:.4g}", *[""] * 7, verdict)
        if not self.behind and self.more_flops < -EQUAL:
            verdict = "ahead"
        return (
            *head,
            mb(self.ours.peak_bytes),
            *(f"{self.theirs.flops / 1e9:.4g}", f"{self.ours.flops / 1e9:.4g}", f"{100 * self.more_flops:+.2f}"),
            f"{100 * self.more_seconds:+.2f}",
            interval(self.measured) if self.measured else "",
            percent(self.planned.plan.overhead),
            *(str(self.planned.compiles), f"{self.planned.seconds:.1f}", verdict),
        )


def interval(ratio: Ratio) -> str:
    """How much longer ours takes, in per cent, and the interval around it."""
    median, low, high = (100 * (x - 1) for x in (ratio.value, ratio.low, ratio.high))
    return f"{median:+.1f} ({low:+.1f} to {high:+.1f})"


def as_model(name: str, loss: Callable[..., Any], made: Made) -> Model:
    """A loss as the record that sessions take."""
    params, batch = made.arguments
    return Model(name, loss, params, batch, lambda wrap: loss, 1)


def _flops(step: Callable[..., Any], structs: Sequence[Any]) -> tuple[Any, float]:
    """The jaxpr of a step, and its FLOPs without dead code."""
    jaxpr = jax.make_jaxpr(step)(*structs)
    return jaxpr, jaxpr_flops(live_jaxpr(jaxpr)[0])


def their_step(model: Model, session: Session) -> Step:
    """The gradient step of a loss as its author wrote it."""
    step, structs = raw_step(model, model.loss)
    jaxpr, flops = _flops(step, structs)
    peak = compile_memory(step, structs, session.judge.target).total_bytes
    return Step(peak, flops, evaluate(jaxpr, session.judge.hardware).seconds)


def our_step(planned: Planned, session: Session) -> Step:
    """The gradient step of a plan."""
    plan = planned.plan
    assert plan.compiled_peak_bytes is not None
    jaxpr, flops = _flops(session.judge.step(plan.schedule), session.judge.structs)
    return Step(plan.compiled_peak_bytes, flops, evaluate(jaxpr, session.judge.hardware).seconds)


def compete(session: Session, written: Model, theirs: Step, *names: str) -> Row:
    """Plan at the memory of theirs, which is ``written``; ``names`` are the first fields of a row."""
    model, size, policy, source = names
    try:
        planned = session.plan(theirs.peak_bytes)
    except BudgetError as error:
        return Row(model, size, policy, source, theirs, None, None, error.minimum_bytes)
    row = Row(model, size, policy, source, theirs, our_step(planned, session), planned)
    return replace(row, measured=_measured(session, written, planned)) if row.more_flops > EQUAL else row


def _measured(session: Session, written: Model, planned: Planned) -> Ratio:
    """How much longer our step takes than the one that is written, by the clock."""
    judge = session.judge
    theirs, ours = raw_step(written, written.loss), (judge.step(planned.plan.schedule), judge.structs)
    runs = [run_of(step, with_values(list(structs)), judge.target) for step, structs in (theirs, ours)]
    before, after = time_in_turns(runs, _ROUNDS)
    return Ratio.of(before.seconds, after.seconds)


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    size = "tiny" if options.quick else options.size
    report = Report("authors", _INTRO.format(rounds=_ROUNDS), COLUMNS, options.results)
    rows: list[Row] = []
    for name in options.choose(tuple(AUTHORS)):
        made = AUTHORS[name](size)
        plain = Session(as_model(name, made.plain, made))
        for policy, loss in made.policies.items():
            if options.policies and policy not in options.policies:
                continue
            model = as_model(name, loss, made)
            theirs = their_step(model, plain)
            for source, session in ((FROM_PLAIN, plain), (FROM_THEIRS, Session(model))):
                rows.append(compete(session, model, theirs, name, size, policy, source))
                report.facts = facts(rows)
                report.add(*rows[-1].cells())
    report.finish(facts(rows))
    return report


def facts(rows: list[Row]) -> list[str]:
    """What was found."""
    behind = [f"{r.model} {r.policy} from {r.source} ({r.behind})" for r in rows if r.behind]
    losing = [r for r in rows if r.behind and r.more_seconds > 0]
    longer = [r for r in rows if r.measured and r.measured.low > 1]
    slower = [f"{r.model} {r.policy} from {r.source} ({100 * r.more_seconds:+.2f} %)" for r in losing]
    return [
        f"{len(rows)} rows, {len(behind)} behind: {', '.join(behind) or 'none'}",
        f"of these predicted to take more time: {', '.join(slower) or 'none'}",
        f"measured to take more time: {', '.join(f'{r.model} {r.policy} from {r.source}' for r in longer) or 'none'}",
        f"ahead by over 0.1 % of FLOPs: {sum(not r.behind and r.more_flops < -EQUAL for r in rows)} rows",
    ]
