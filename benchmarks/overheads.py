"""Predicted overheads against those of compiled modules, on a TPU v5e and an H100 that are not here.

In: models of a size that is compiled for a TPU in about a minute. Out: ``results/overheads.md``, and
beside it ``overheads.json`` and ``overheads_held_out.json`` with what was compiled: it goes on where it stopped, and
predictions are made anew in each run. Needs the extras ``cuda12`` and ``tpu``.

Seconds of a compiled module are the TPU compiler's own cycles, and a roofline over the kernels for the GPU
(``remat_plan.compiled``). Plans are those for the predicted peak of a policy, without a search by compiles, so that
what is compared is what was predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.architectures.fresh import FRESH
from benchmarks.architectures.table import ARCHITECTURES
from benchmarks.common import Options, Report, Session, mb, mean, raw_step
from benchmarks.kept import Kept
from benchmarks.peaks import first_schedules
from benchmarks.predictions import PLAIN, Steps, restored, steps_of, stored
from remat_plan.cost.hardware import Hardware, hardware_for
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search.candidates import Request
from remat_plan.small.budget import BudgetError
from remat_plan.verify.compile import compile_memory

SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"layers": 2},
    "vit": {"layers": 2},
    "resnet50": {"depths": (1, 1, 1, 1), "batch": 16},
    "resnet50_bf16": {"depths": (1, 1, 1, 1), "batch": 32, "dtype": "bfloat16"},
    "unet": {"levels": 3},
    "densenet": {"layers": 6},
}
"""Changes to the sizes of ``benchmarks.models``: few layers of their true width."""

TARGETS = ("gpu:h100", "tpu:v5e:1x1")
SHARES = (0.5, 0.3)
IN_SAMPLE, HELD_OUT = "overheads.json", "overheads_held_out.json"
"""Files of what was compiled."""

MEMORY = "memory"
"""The strategy, and the step, of what is held out."""

_COLUMNS = (
    *("target", "model", "step", "predicted MB", "compiled MB"),
    *("predicted overhead %", "compiled overhead %", "off by"),
)
_INTRO = """Overheads over the plain step: predicted by the evaluator, and of the modules that XLA compiled (cycles that
the compiler estimated on the TPU, a roofline of the kernels on the GPU). Steps are policies on every block, plans for
the predicted peaks of these, and plans for shares of the predicted plain peak. Held out are the architectures that no
rule about time was read off: the first schedule of `memory` of each. Nothing was run."""


@dataclass(frozen=True)
class Compiled:
    """A step that was compiled.

    Attributes:
        target, model, step: what it is.
        peak_bytes, seconds: of the module.
        schedule: of a plan, as data.
    """

    target: str
    model: str
    step: str
    peak_bytes: int
    seconds: float
    schedule: list[Any] | None = None


@dataclass(frozen=True)
class Row:
    """A compiled step beside what is predicted of it; overheads are shares."""

    found: Compiled
    predicted_bytes: int
    predicted: float
    compiled: float

    @property
    def off(self) -> float:
        """By how much the prediction is too high."""
        return self.predicted - self.compiled

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        found = self.found
        return (
            *(found.target, found.model, found.step, mb(self.predicted_bytes), mb(found.peak_bytes)),
            *(_points(self.predicted), _points(self.compiled), _points(self.off)),
        )


def run(options: Options) -> Report:
    """Compile what is missing; predict all; write and return the table."""
    report = Report("overheads", _INTRO, _COLUMNS, options.results)
    rows: list[Row] = []
    for target in options.targets or TARGETS:
        for file, names, make in (
            (IN_SAMPLE, (*SIZES, "llama"), partial(steps_of, options=options, sizes=SIZES)),
            (HELD_OUT, () if options.quick else tuple(ARCHITECTURES), held_out),
        ):
            kept = Kept(options.results / file, Compiled, lambda made: (made.target, made.model, made.step))
            for name in options.choose(names):
                steps = make(name)
                found = [made for made in kept.read() if (made.target, made.model) == (target, name)]
                found += map(kept.put, compile_missing(steps, target, tuple(found)))
                for row in rows_of(steps, target, found):
                    rows.append(row)
                    report.add(*row.cells())
                report.facts = facts(rows)
    report.finish(facts(rows))
    return report


def held_out(name: str) -> Steps:
    """An architecture that nothing was tuned for; it has no policies."""
    return Steps(name, ARCHITECTURES[name](), {})


def _wanted(steps: Steps) -> list[str]:
    if not steps.losses:
        return [PLAIN, MEMORY]
    return [PLAIN, *steps.losses, *(f"plan at {p}" for p in steps.losses), *(f"plan at {s:.0%}" for s in SHARES)]


def compile_missing(steps: Steps, target: str, found: Sequence[Compiled]) -> Iterator[Compiled]:
    """Compile the steps of a model that are not ``found`` yet."""
    done = {c.step for c in found}
    wanted = _wanted(steps)
    if done.issuperset(wanted):
        return
    session = Session(steps.model, target)
    judge = session.judge
    for name in wanted:
        if name in done:
            continue
        if name in steps.losses:
            step, structs = raw_step(steps.model, steps.losses[name])
            made = compile_memory(step, structs, judge.target, hardware=judge.hardware)
            yield Compiled(target, steps.name, name, made.total_bytes, made.seconds or 0.0)
            continue
        schedule = None
        if name == MEMORY:
            schedule = dict(first_schedules(session, (MEMORY,)))[MEMORY]
        elif name != PLAIN:
            budget = _budget(steps, name.removeprefix("plan at "), judge.hardware)
            request = Request(lookup("auto"), False, (0,), False, (), "replan")
            try:
                schedule = session.make_plan(budget, request).schedule
            except BudgetError:
                yield Compiled(target, steps.name, name, 0, 0.0)
                continue
        run = judge.unplanned if schedule is None else schedule
        data = None if schedule is None else stored(schedule)
        yield Compiled(target, steps.name, name, judge.compiled_bytes(run), judge.compiled_seconds(run) or 0.0, data)


def _budget(steps: Steps, at: str, hardware: Hardware) -> int:
    """The predicted peak of a policy, or a share of that of the plain step."""
    if at in steps.losses:
        return steps.timeline(at, None, hardware).peak_bytes
    return int(float(at.rstrip("%")) / 100 * steps.timeline(PLAIN, None, hardware).peak_bytes)


def rows_of(steps: Steps, target: str, found: Sequence[Compiled]) -> Iterator[Row]:
    """Predict the steps of a model that were compiled; those that no plan was found for are left out."""
    hardware = hardware_for(target, target.split(":")[0])
    plain = next((c for c in found if c.step == PLAIN), None)
    if plain is None or not plain.seconds:
        return
    before = steps.timeline(PLAIN, None, hardware).seconds
    for compiled in found:
        if compiled is plain or not compiled.seconds:
            continue
        timeline = steps.timeline(compiled.step, restored(compiled.schedule), hardware)
        overheads = timeline.seconds / before - 1.0, compiled.seconds / plain.seconds - 1.0
        yield Row(compiled, timeline.peak_bytes, *overheads)


def facts(rows: Sequence[Row]) -> list[str]:
    """For each target how far predictions are off, and which plans are slower than the policy at their peak."""
    found = []
    for target in dict.fromkeys(row.found.target for row in rows):
        here = [row for row in rows if row.found.target == target]
        tuned = [row for row in here if row.found.step != MEMORY]
        others = [row for row in here if row.found.step == MEMORY]
        found += [f"{target}: {_off(tuned)}", f"{target}: {_slower(tuned)}"] if tuned else []
        found += [f"{target}, held out: {_off(others)}"] if others else []
        for group, rows_of_it in (("", others), (" that no rule is read off", [r for r in others if _is_fresh(r)])):
            if rows_of_it:
                points = 100 * mean([abs(row.off) for row in rows_of_it])
                found.append(f"{target}, architectures{group}: off by {points:.1f} points on average")
    return found


def _is_fresh(row: Row) -> bool:
    return row.found.model in FRESH


def _off(rows: Sequence[Row]) -> str:
    worst = max(rows, key=lambda row: abs(row.off))
    return (
        f"{len(rows)} steps, off by {100 * median(abs(r.off) for r in rows):.1f} points in the median, "
        f"{100 * abs(worst.off):.1f} at worst ({worst.found.model}, {worst.found.step})"
    )


def _slower(rows: Sequence[Row]) -> str:
    here = {(row.found.model, row.found.step): row for row in rows}
    policies = {key: here.get((key[0], key[1].removeprefix("plan at "))) for key in here if key[1].startswith("plan")}
    pairs = [(here[key], policy) for key, policy in policies.items() if policy]
    slower = [f"{p.found.model}, {p.found.step}" for p, policy in pairs if p.compiled > policy.compiled]
    return f"of {len(pairs)} plans slower than the policy, compiled: {', '.join(slower) or 'none'}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"
