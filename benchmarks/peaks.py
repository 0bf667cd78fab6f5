"""Predicted against compiled peaks, on an H100 and a TPU v5e that are not here: no search, only the evaluator.

In: the models of ``MODELS`` with few layers of their true width, plain and under the first schedule of some strategies.
Out: ``results/peaks.md``, and ``peaks.json`` beside it with what was compiled: a schedule that is still the same is not
compiled again, predictions are made anew in each run. Needs the extras ``cuda12`` and ``tpu``. What is for a TPU is
compiled with little optimisation, as the search does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common import Options, Report, Session, mb, versions
from benchmarks.kept import Kept
from benchmarks.models import MODELS, Model, small
from benchmarks.predictions import stored
from remat_plan.graph.schedule import Schedule
from remat_plan.planning.constraints import NO_CONSTRAINTS
from remat_plan.planning.strategies.find import make_task
from remat_plan.planning.strategies.records import Settings
from remat_plan.planning.strategies.registry import lookup
from remat_plan.report.strategies import Strategies
from remat_plan.search.candidates import Request
from remat_plan.small.budget import BudgetError
from remat_plan.verify.compile import compile_memory

SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"layers": 4},
    "gpt2_scan": {"layers": 4},
    "resnet50": {"depths": (2, 2, 2, 2), "batch": 16},
    "unet": {"levels": 3},
    "vit": {"layers": 4},
    "densenet": {"layers": 8},
    "mlp": {"layers": 8},
}
TARGETS = ("gpu:h100", "tpu:v5e:1x1")
DTYPES = ("float32", "bfloat16")
UNIFORM = ("each_block", "memory", "dots")
BOUND = 0.10
COLUMNS = ("model", "dtype", "target", "schedule", "predicted MB", "compiled MB", "predicted / compiled")
_INTRO = """`auto` is the plan at half of the predicted plain peak, without compiles; its row is missing where that is
below the least predicted. The other schedules are the first of each strategy."""


@dataclass(frozen=True)
class Compiled:
    """A schedule that was compiled.

    Attributes:
        target, model, dtype, name: what it is.
        schedule: as data.
        peak_bytes: of the module.
        made: with which versions, and when.
    """

    target: str
    model: str
    dtype: str
    name: str
    schedule: list[Any]
    peak_bytes: int
    made: str

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it apart."""
        return self.target, self.model, self.dtype, self.name


def first_schedules(session: Session, strategies: Sequence[str]) -> Iterator[tuple[str, Schedule]]:
    """The plain schedule and the first one of each strategy, by name."""
    program = session.program
    yield "plain", program.plain
    task = make_task(program.graph, session.judge.hardware, NO_CONSTRAINTS, Settings())
    for name in strategies:
        find = Strategies()[name].find
        assert find is not None
        yield name, find(task).schedules[0]


def schedules(session: Session) -> Iterator[tuple[str, Schedule]]:
    """The schedules to compile, by name."""
    yield from first_schedules(session, UNIFORM)
    program, judge = session.program, session.judge
    half = judge.predicted_bytes(program.plain) // 2
    try:
        plan = session.make_plan(half, Request(lookup("auto"), False, (0,), False, (), "replan"))
    except BudgetError:
        return
    yield "auto", plan.schedule


def run(options: Options) -> Report:
    """Compile all; write and return the table."""
    report = Report("peaks", _INTRO, COLUMNS, options.results)
    kept = Kept(options.results / "peaks.json", Compiled, lambda compiled: compiled.key)
    ratios: dict[str, dict[str, float]] = {target: {} for target in TARGETS}
    for target in options.targets or TARGETS:
        for name in options.choose(tuple(SIZES)):
            for dtype in DTYPES:
                model = small(name, dtype=dtype) if options.quick else MODELS[name](**SIZES[name], dtype=dtype)
                found = ratios.setdefault(target, {})
                for schedule, ratio in measure(report, model, dtype, target, kept):
                    found[f"{name} {dtype} {schedule}"] = ratio
                report.facts = facts(ratios)
    report.finish(facts(ratios) + [f"compiled with {made}" for made in dict.fromkeys(c.made for c in kept.read())])
    return report


def measure(
    report: Report,
    model: Model,
    dtype: str,
    target: str,
    kept: Kept[Compiled],
    chosen: Callable[[Session], Iterator[tuple[str, Schedule]]] = schedules,
) -> Iterator[tuple[str, float]]:
    """Add the rows of one model, by default for all ``schedules``; yield the ratio of each schedule."""
    session = Session(model, target)
    judge = session.judge
    for name, schedule in chosen(session):
        predicted, data = judge.predicted_bytes(schedule), stored(schedule)
        found = kept.find((target, model.name, dtype, name))
        if found is None or found.schedule != data:
            fast = judge.target.compiles_slowly
            peak_bytes = compile_memory(judge.step(schedule), judge.structs, judge.target, fast=fast).total_bytes
            found = kept.put(Compiled(target, model.name, dtype, name, data, peak_bytes, versions()))
        compiled = found.peak_bytes
        report.add(model.name, dtype, target, name, mb(predicted), mb(compiled), f"{predicted / compiled:.3f}")
        yield name, predicted / compiled


def facts(ratios: dict[str, dict[str, float]]) -> list[str]:
    """Range of the ratios for each target, and those that are far off."""
    lines = []
    for target, found in ratios.items():
        if not found:
            continue
        far = [f"{name} ({ratio:.2f})" for name, ratio in found.items() if abs(ratio - 1) > BOUND]
        lines.append(f"{target}: {min(found.values()):.2f} to {max(found.values()):.2f} of {len(found)} schedules")
        lines.append(f"{target}, more than {BOUND:.0%} off: {', '.join(far) or 'none'}")
    return lines
