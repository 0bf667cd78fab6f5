"""Measured seconds of policies and plans against predicted ones, with the rates of the table and with measured rates.

In: models of a size that this machine runs in about a second. Out: ``results/timing.md``, and ``timing.json`` beside it
with what was measured, the schedules of plans and the rates of the device: a model that is in there is not run again
unless it is named. Predictions are made anew in each run, by the rates that are stored; where all models are there,
nothing is measured.

All steps of a model run in turns with the plain one; see ``remat_plan.clock.turns``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import jax

from benchmarks.common import Options, Report, Session, mb, raw_step, versions
from benchmarks.models import concrete
from benchmarks.predictions import PLAIN, Steps, restored, steps_of, stored
from remat_plan.clock.steps import device_name, run_of, with_values
from remat_plan.clock.store import hardware_of
from remat_plan.clock.turns import Ratio, Run, time_in_turns
from remat_plan.cost.hardware import Hardware, hardware_for
from remat_plan.small.budget import BudgetError
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

NAMES = (*SIZES, "llama")
SHARES = ("50%", "30%")
ROUNDS, QUICK_ROUNDS = 9, 2
_COLUMNS = (
    *("model", "step", "peak MB", "seconds", "overhead %", "between", "CPU %"),
    *("table %", "measured rates %", "off by, table", "off by, rates"),
)
_INTRO = """Every step ran {rounds} times, in turns with the plain step of its model. Seconds are the median; overhead
is the median over rounds of the seconds over those of the plain step in the same round, less one; the true median is in
the next column 19 times of 20. CPU: the same of seconds of all processors, in which other processes count less. Then
what the evaluator predicts with the rates of the table, and with rates measured on this machine; and by how many points
each is off. `plan at` is our plan (by measured rates) at the peak of that policy on every block. The line of versions
below is of the predictions; what was measured when is told at the end."""


@dataclass(frozen=True)
class Measured:
    """One step that was run; overheads are shares.

    Attributes:
        model, step: what ran.
        peak_bytes: compiled.
        seconds: the median.
        overhead, low, high: with its interval.
        processor_overhead: of seconds of all processors.
        against: for a plan at the peak of a policy, how much longer it takes than that, and its interval.
        schedule: of a plan, as data.
    """

    model: str
    step: str
    peak_bytes: int
    seconds: float
    overhead: float
    low: float
    high: float
    processor_overhead: float
    against: tuple[float, float, float] | None = None
    schedule: list[Any] | None = None


@dataclass(frozen=True)
class Row:
    """A step that was run beside what is predicted of it: overheads by the rates of the table and by measured rates.

    Predictions are None for a plan whose schedule was not stored.
    """

    measured: Measured
    table: float | None = None
    rates: float | None = None

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        ran = self.measured
        return (
            *(ran.model, ran.step, mb(ran.peak_bytes), f"{ran.seconds:.3g}"),
            *(_points(ran.overhead), f"{_points(ran.low)} to {_points(ran.high)}", _points(ran.processor_overhead)),
            *("" if share is None else _points(share) for share in (self.table, self.rates)),
            *("" if share is None else _points(share - ran.overhead) for share in (self.table, self.rates)),
        )


@dataclass
class Store:
    """What was measured, as it is in ``timing.json``.

    Attributes:
        devices: by model, the name of what it ran on.
        hardware: by model, the rates that were measured there before it ran.
        versions: by model, with which versions it was run, and when.
        steps: what was run.
    """

    devices: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Hardware] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    steps: list[Measured] = field(default_factory=list)

    @staticmethod
    def read(path: Path) -> Store:
        """What was stored; nothing where there is no file."""
        if not path.exists():
            return Store()
        data = json.loads(path.read_text(encoding="utf-8"))
        steps = [
            Measured(**{**step, "against": None if step["against"] is None else tuple(step["against"])})
            for step in data["steps"]
        ]
        hardware = {name: Hardware(**rates) for name, rates in data["hardware"].items()}
        return Store(data["devices"], hardware, data["versions"], steps)

    def write(self, path: Path) -> None:
        """Write all of it, one step a line."""
        hardware = {name: _fields(rates) for name, rates in self.hardware.items()}
        head = {"devices": self.devices, "hardware": hardware, "versions": self.versions}
        lines = ",\n".join(json.dumps(asdict(step)) for step in self.steps)
        path.write_text(json.dumps(head, indent=1)[:-2] + f',\n "steps": [\n{lines}\n]}}\n', encoding="utf-8")


def run(options: Options) -> Report:
    """Measure what is missing; predict all; write and return the table."""
    path = options.results / "timing.json"
    store = Store.read(path)
    known = {step.model for step in store.steps}
    missing = options.models or tuple(name for name in NAMES if name not in known)
    here = resolve(None)
    for name in (n for n in NAMES if n in missing):
        rounds = QUICK_ROUNDS if options.quick else ROUNDS
        made = list(measure_case(steps_of(name, options, SIZES), rounds))
        store.steps = [step for step in store.steps if step.model != name] + made
        store.devices[name], store.hardware[name] = device_name(here.device), hardware_of(here, "measured")
        store.versions[name] = versions()
        store.write(path)
    return table(store, options)


def table(store: Store, options: Options) -> Report:
    """Predict all that is stored; write and return the table. Nothing is run."""
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    report = Report("timing", _INTRO.format(rounds=rounds), _COLUMNS, options.results)
    rows: list[Row] = []
    for name in dict.fromkeys(step.model for step in store.steps):
        measured = [step for step in store.steps if step.model == name]
        for row in predict(steps_of(name, options, SIZES), measured, store.hardware[name]):
            rows.append(row)
            report.add(*row.cells())
    report.finish(facts(rows, store))
    return report


def predict(steps: Steps, measured: Sequence[Measured], rates: Hardware) -> Iterator[Row]:
    """What is predicted by the rates of the table and by measured ones; nothing of a plan without its schedule."""
    both = hardware_for("cpu", "cpu"), rates
    plain = [steps.plain_seconds(hardware) for hardware in both]
    for ran in measured:
        if ran.schedule is None and ran.step not in steps.losses:
            yield Row(ran)
            continue
        seconds = [steps.timeline(ran.step, restored(ran.schedule), hardware).seconds for hardware in both]
        yield Row(ran, *(after / before - 1 for after, before in zip(seconds, plain, strict=True)))


def measure_case(steps: Steps, rounds: int) -> Iterator[Measured]:
    """Run all steps of a model in turns."""
    session = Session(steps.model, None, cost="measured")
    judge, case = session.judge, steps.model
    arguments = concrete(case) if steps.name in SIZES else with_values((case.params, case.batch))
    values = tuple(jax.tree.leaves(arguments))
    ready = [_Ready(PLAIN, run_of(judge.step(judge.unplanned), values, judge.target), 0)]
    policies = [_written(steps, name, values) for name in steps.losses]
    ready += policies
    wanted = [(f"plan at {p.name}", p.peak_bytes) for p in policies] + [(f"plan at {s}", s) for s in SHARES]
    for name, budget in wanted:
        try:
            schedule = session.plan(budget).plan.schedule
        except BudgetError:
            continue
        run = run_of(judge.step(schedule), values, judge.target)
        ready.append(_Ready(name, run, judge.compiled_bytes(schedule), stored(schedule)))
    samples = time_in_turns([step.run for step in ready], rounds)
    first, by_name = samples[0], {step.name: found for step, found in zip(ready, samples, strict=True)}
    for step, found in zip(ready[1:], samples[1:], strict=True):
        ratio = Ratio.of(first.seconds, found.seconds)
        policy = by_name.get(step.name.removeprefix("plan at "))
        against = Ratio.of(policy.seconds, found.seconds) if policy is not None and policy is not found else None
        yield Measured(
            *(steps.name, step.name, step.peak_bytes, found.median_seconds),
            *(ratio.value - 1, ratio.low - 1, ratio.high - 1),
            Ratio.of(first.processor_seconds, found.processor_seconds).value - 1,
            None if against is None else (against.value - 1, against.low - 1, against.high - 1),
            step.schedule,
        )


@dataclass(frozen=True)
class _Ready:
    """A step that can be run; the schedule of a plan as data."""

    name: str
    run: Run
    peak_bytes: int
    schedule: list[Any] | None = None


def _written(steps: Steps, policy: str, values: Sequence[Any]) -> _Ready:
    target = resolve(None)
    step, structs = raw_step(steps.model, steps.losses[policy])
    return _Ready(policy, run_of(step, values, target), compile_memory(step, structs, target).total_bytes)


def facts(rows: Sequence[Row], store: Store) -> list[str]:
    """How far predictions are off, and where plans are slower than the policy at whose peak they are."""
    if not rows:
        return []
    found = []
    told = [(r.measured, r.table, r.rates) for r in rows if r.table is not None and r.rates is not None]
    for word, off in (
        ("rates of the table", [abs(table - ran.overhead) for ran, table, _ in told]),
        ("measured rates", [abs(rates - ran.overhead) for ran, _, rates in told]),
        (
            "measured rates, against seconds of all processors",
            [abs(rates - ran.processor_overhead) for ran, _, rates in told],
        ),
    ):
        worst = told[off.index(max(off))][0]
        found.append(
            f"off by, {word}: {100 * median(off):.1f} points in the median of {len(off)} steps, "
            f"{100 * max(off):.1f} at worst ({worst.model}, {worst.step})"
        )
    compared = [(r.measured, r.measured.against) for r in rows if r.measured.against]
    slower = [f"{ran.model}, {ran.step} ({_points(a[0])} %)" for ran, a in compared if a[1] > 0]
    found.append(
        f"of {len(compared)} plans at the peak of a policy, slower beyond noise: {', '.join(slower) or 'none'}"
    )
    for name, hardware in store.hardware.items():
        memory, products = hardware.bytes_per_second / 1e9, hardware.matrix_flops / 1e9
        found.append(
            f"{name}: {store.versions[name]}, on {store.devices[name]}: memory {memory:.1f} GB/s, large products "
            f"{products:.0f} GFLOP/s, fresh memory {1e9 * hardware.fresh_seconds_per_byte:.2f} ns/byte"
        )
    return found


def _fields(hardware: Hardware) -> dict[str, Any]:
    fields = {name: getattr(hardware, name) for name in Hardware.__dataclass_fields__}
    return {**fields, "rates": dict(hardware.rates)}


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"
