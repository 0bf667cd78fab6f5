"""Measured seconds of policies and plans against predicted ones, with rates of data sheets and with measured rates.

In: models of a size that this machine runs in about a second. Out: ``results/timing.md``, and ``timing.json`` beside it
with the rows that are done: a model that is in there is not run again unless it is named.

All steps of a model run in turns with the plain one; see ``remat_plan.clock.turns``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax

from benchmarks.authors import llama
from benchmarks.common import Options, Report, Session, mb, raw_step
from benchmarks.models import Model, concrete
from remat_plan.clock.device import device_name
from remat_plan.clock.steps import run_of, with_values
from remat_plan.clock.store import hardware_of
from remat_plan.clock.turns import Ratio, Run, time_in_turns
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import evaluate
from remat_plan.report.progress import Progress
from remat_plan.search.judge import Judge
from remat_plan.units import BudgetError
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve

SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"layers": 4, "batch": 4, "sequence": 256},
    "resnet50": {"batch": 16, "size": 64},
    "unet": {"batch": 2, "width": 32, "size": 96},
    "vit": {"layers": 6, "batch": 4},
    "densenet": {"layers": 16, "batch": 16},
}
"""Changes to the sizes of ``benchmarks.models``, so that one step takes about a second on two cores."""

POLICIES = ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")
SHARES = ("50%", "30%")
ROUNDS, QUICK_ROUNDS = 9, 2
_COLUMNS = (
    *("model", "step", "peak MB", "seconds", "overhead %", "between", "CPU %"),
    *("table %", "measured rates %", "off by, table", "off by, rates"),
)
_INTRO = """Every step ran {rounds} times, in turns with the plain step of its model. Seconds are the median; overhead
is the median over rounds of the seconds over those of the plain step in the same round, less one; the true median is in
the next column 19 times of 20. CPU: the same of seconds of all processors, in which other processes count less. Then
what the evaluator predicts with rates of data sheets, and with rates measured on this machine; and by how many points
each is off. `plan at` is our plan (by measured rates) at the peak of that policy on every block."""


@dataclass(frozen=True)
class Case:
    """A model, and its loss under policies."""

    name: str
    model: Model
    losses: dict[str, Callable[..., Any]]
    arguments: tuple[Any, Any]


@dataclass(frozen=True)
class Row:
    """One step, measured and predicted; overheads are shares.

    Attributes:
        model, step: what ran.
        peak_bytes: compiled.
        seconds: the median.
        overhead, low, high: measured, with its interval.
        processor_overhead: measured, of seconds of all processors.
        table, rates: predicted, by data sheets and by measured rates.
        against: for a plan at the peak of a policy, how much longer it takes than that (measured), and its interval.
    """

    model: str
    step: str
    peak_bytes: int
    seconds: float
    overhead: float
    low: float
    high: float
    processor_overhead: float
    table: float
    rates: float
    against: tuple[float, float, float] | None = None

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        return (
            *(self.model, self.step, mb(self.peak_bytes), f"{self.seconds:.3g}"),
            *(_points(self.overhead), f"{_points(self.low)} to {_points(self.high)}", _points(self.processor_overhead)),
            *(_points(self.table), _points(self.rates)),
            *(_points(self.table - self.overhead), _points(self.rates - self.overhead)),
        )


@dataclass(frozen=True)
class Step:
    """A step that runs, and what is predicted of it."""

    name: str
    run: Run
    peak_bytes: int
    table_seconds: float
    rates_seconds: float


def run(options: Options) -> Report:
    """Measure all; write and return the table."""
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    report = Report("timing", _INTRO.format(rounds=rounds), _COLUMNS, options.results)
    stored = options.results / "timing.json"
    rows = [row for row in _read(stored) if row.model not in options.models]
    for row in rows:
        report.add(*row.cells())
    done = {row.model for row in rows}
    for name in options.choose((*SIZES, "llama")):
        if name in done:
            continue
        for row in measure_case(make_case(name, options), rounds):
            rows.append(row)
            report.add(*row.cells())
        _write(stored, rows)
        report.facts = facts(rows)
    report.finish(facts(rows))
    return report


def make_case(name: str, options: Options) -> Case:
    """A model at the size of this benchmark, or tiny."""
    if name == "llama":
        config = llama.CONFIGS["tiny" if options.quick else "small"]
        made = llama.make_of(config)
        model = Model(name, made.plain, *made.arguments, loss_with=lambda wrap: made.plain, classes=4)
        chosen = dict(list(made.policies.items())[-3:])
        return Case(name, model, chosen, with_values(made.arguments))
    model = options.model(name, **({} if options.quick else SIZES[name]))
    wraps = {p: partial(jax.checkpoint, policy=getattr(jax.checkpoint_policies, p)) for p in POLICIES}
    return Case(name, model, {p: model.loss_with(wrap) for p, wrap in wraps.items()}, concrete(model))


def measure_case(case: Case, rounds: int) -> Iterator[Row]:
    """Run all steps of a model in turns."""
    session = Session(case.model, None, cost="measured")
    table = Judge(session.program, session.judge.target, Progress("benchmarks", False))
    values = tuple(jax.tree.leaves(case.arguments))
    steps = [_planned("plain", session, table, session.judge.unplanned, values)]
    policies = [_written(case, name, loss, table.hardware, session.judge.hardware, values)
                for name, loss in case.losses.items()]  # fmt: skip
    steps += policies
    wanted = [(f"plan at {p.name}", p.peak_bytes) for p in policies] + [(f"plan at {s}", s) for s in SHARES]
    for name, budget in wanted:
        try:
            schedule = session.plan(budget).plan.schedule
        except BudgetError:
            continue
        steps.append(_planned(name, session, table, schedule, values))
    samples = time_in_turns([step.run for step in steps], rounds)
    plain, first = steps[0], samples[0]
    by_name = {step.name: found for step, found in zip(steps, samples, strict=True)}
    for step, found in zip(steps[1:], samples[1:], strict=True):
        ratio = Ratio.of(first.seconds, found.seconds)
        policy = by_name.get(step.name.removeprefix("plan at "))
        against = Ratio.of(policy.seconds, found.seconds) if policy is not None and policy is not found else None
        yield Row(
            *(case.name, step.name, step.peak_bytes, found.median_seconds),
            *(ratio.value - 1, ratio.low - 1, ratio.high - 1),
            Ratio.of(first.processor_seconds, found.processor_seconds).value - 1,
            step.table_seconds / plain.table_seconds - 1,
            step.rates_seconds / plain.rates_seconds - 1,
            None if against is None else (against.value - 1, against.low - 1, against.high - 1),
        )


def _planned(name: str, session: Session, table: Judge, schedule: Any, values: Sequence[Any]) -> Step:
    judge = session.judge
    run = run_of(judge.step(schedule), values, judge.target)
    seconds = table.timeline(schedule).seconds, judge.timeline(schedule).seconds
    return Step(name, run, judge.compiled_bytes(schedule), *seconds)


def _written(
    case: Case, name: str, loss: Callable[..., Any], table: Hardware, rates: Hardware, values: Sequence[Any]
) -> Step:
    target = resolve(None)
    step, structs = raw_step(case.model, loss)
    jaxpr = jax.make_jaxpr(step)(*structs)
    seconds = evaluate(jaxpr, table).seconds, evaluate(jaxpr, rates).seconds
    return Step(name, run_of(step, values, target), compile_memory(step, structs, target).total_bytes, *seconds)


def facts(rows: Sequence[Row]) -> list[str]:
    """How far predictions are off, and where plans are slower than the policy at whose peak they are."""
    if not rows:
        return []
    found = []
    for word, off in (
        ("rates of data sheets", [abs(r.table - r.overhead) for r in rows]),
        ("measured rates", [abs(r.rates - r.overhead) for r in rows]),
        ("measured rates, against seconds of all processors", [abs(r.rates - r.processor_overhead) for r in rows]),
    ):
        worst = rows[off.index(max(off))]
        found.append(
            f"off by, {word}: {100 * median(off):.1f} points in the median, {100 * max(off):.1f} at worst "
            f"({worst.model}, {worst.step})"
        )
    slower = [f"{r.model}, {r.step} ({_points(r.against[0])} %)" for r in rows if r.against and r.against[1] > 0]
    compared = sum(r.against is not None for r in rows)
    found.append(f"of {compared} plans at the peak of a policy, slower beyond noise: {', '.join(slower) or 'none'}")
    hardware = hardware_of(resolve(None), "measured")
    found.append(
        f"{device_name(resolve(None).device)}: memory {hardware.bytes_per_second / 1e9:.1f} GB/s, large products "
        f"{hardware.matrix_flops / 1e9:.0f} GFLOP/s, fresh memory {1e9 * hardware.fresh_seconds_per_byte:.2f} ns/byte"
    )
    return found


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _read(path: Path) -> list[Row]:
    """The rows of a run before; none where there was none."""
    if not path.exists():
        return []
    return [
        Row(**{**row, "against": None if row["against"] is None else tuple(row["against"])})
        for row in json.loads(path.read_text(encoding="utf-8"))
    ]


def _write(path: Path, rows: Sequence[Row]) -> None:
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
