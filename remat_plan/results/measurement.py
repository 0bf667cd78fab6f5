"""The plain and the planned step of a plan, run in turns on one device: ``Plan.measure``.

In: a program on arrays, the schedule of its plan. Out: ``Measurement``, from the ``Samples`` of both steps: printed,
shown, drawn, stored as JSON.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax

from remat_plan.clock.steps import check_arrays, device_name, ones, peak_bytes, run_of
from remat_plan.clock.turns import LEAST_PAIRS, Ratio, Run, Samples, time_in_turns
from remat_plan.graph.schedule import Schedule
from remat_plan.results.shown import Shown
from remat_plan.small.wording import name_of
from remat_plan.traced.programs import Program, make_runner, run_plain
from remat_plan.verify.step import GradientStep, PullbackStep
from remat_plan.verify.targets import Target

ROUNDS = 15
"""How often both steps run by default: the interval around the median leaves the three largest and smallest out."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds of one step, and bytes.

    Attributes:
        seconds: the median over all rounds.
        spread_seconds: the distance between the quartiles.
        peak_bytes: the peak that the device reports; None if it reports none (a CPU), or if the process had used more
            before.
    """

    seconds: float
    spread_seconds: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Measurement(Shown):
    """The plain and the planned step, measured.

    Attributes:
        name: what was run.
        plain, planned: seconds and bytes of each.
        overhead: extra seconds of the planned step as a share of the plain one's: the median over rounds, each of which
            ran both. Below 0 if the planned step is faster.
        overhead_low, overhead_high: an interval that holds the true median 19 times out of 20; of fewer than six
            rounds, the least and the largest.
        predicted_overhead: by the plan.
        rounds, calls: the number of rounds, and of calls of the plain and the planned step in each.
        device: its name.
        versions: of jax and jaxlib.
    """

    name: str
    plain: StepSeconds
    planned: StepSeconds
    overhead: float
    overhead_low: float
    overhead_high: float
    predicted_overhead: float
    rounds: int
    calls: tuple[int, int]
    device: str
    versions: str

    @property
    def interval(self) -> str:
        """What ``overhead_low`` and ``overhead_high`` are."""
        return "95% interval of the median" if self.rounds >= LEAST_PAIRS else "lowest and highest round"

    @staticmethod
    def of(
        name: str,
        plain: Samples,
        planned: Samples,
        predicted_overhead: float,
        target: Target,
        peaks: tuple[int | None, int | None] = (None, None),
    ) -> Measurement:
        """Put together what was timed; ``peaks`` are of the plain and the planned step."""
        ratio = Ratio.of(plain.seconds, planned.seconds)
        return Measurement(
            name,
            StepSeconds(plain.median_seconds, plain.spread_seconds, peaks[0]),
            StepSeconds(planned.median_seconds, planned.spread_seconds, peaks[1]),
            overhead=ratio.value - 1,
            overhead_low=ratio.low - 1,
            overhead_high=ratio.high - 1,
            predicted_overhead=predicted_overhead,
            rounds=len(plain.seconds),
            calls=(plain.calls, planned.calls),
            device=device_name(target.device),
            versions=f"jax {jax.__version__}, jaxlib {importlib.metadata.version('jaxlib')}",
        )


def measure_runs(name: str, runs: tuple[Run, Run], target: Target, rounds: int, overhead: float) -> Measurement:
    """Run a plain and a planned step in turns; the overhead is the one that was predicted."""
    peaks = _peaks(runs, target)
    plain, planned = time_in_turns(runs, rounds)
    return Measurement.of(name, plain, planned, overhead, target, peaks)


def measure_program(program: Program, schedule: Schedule, target: Target, rounds: int, overhead: float) -> Measurement:
    """Run the plain and the planned gradient step of a program in turns on its own arrays; see ``Plan.measure``."""
    kind = GradientStep if program.is_loss else PullbackStep
    planned = make_runner(program, schedule)
    values = step_values(program)

    def run(function: Callable[[Sequence[Any]], Any]) -> Run:
        return run_of(kind(lambda *values: function(values), program.call.differentiated), values, target)

    runs = run(lambda values: run_plain(program, values)), run(planned)
    return measure_runs(f"gradient step of {name_of(program.call.fn)}", runs, target, rounds, overhead)


def step_values(program: Program) -> list[Any]:
    """The arguments of a program's gradient step, its own and ones for cotangents; ``TypeError`` if there are none."""
    check_arrays(program.call.leaves, "measuring")
    return [*program.call.leaves, *ones(program.cotangents)]


def _peaks(runs: tuple[Run, Run], target: Target) -> tuple[int | None, int | None]:
    """Run both steps once and return the peaks that the device reports.

    It reports the largest since the process began, so the planned step runs first, and a peak that did not grow is
    not known.
    """
    plain, planned = runs
    peaks = [peak_bytes(target.device)]
    for run in (planned, plain):
        run.seconds()
        peaks.append(peak_bytes(target.device))
    grown = [after if before is not None and after and after > before else None for before, after in pairwise(peaks)]
    return grown[1], grown[0]
