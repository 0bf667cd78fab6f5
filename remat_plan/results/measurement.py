"""What was measured: seconds of the plain and of the planned step, run in turns on one device.

In: ``Samples`` of both. Out: ``Measurement``: printed, shown, drawn, stored as JSON.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

import jax

from remat_plan.clock.device import device_name
from remat_plan.clock.turns import Ratio, Samples
from remat_plan.results.shown import Shown
from remat_plan.verify.targets import Target


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds of one step, and bytes.

    Attributes:
        seconds: the median over all rounds.
        spread_seconds: the distance between the quartiles.
        peak_bytes: the most that the device says it had in use up to then; None where it does not say (a CPU), or where
            the process had used more before.
    """

    seconds: float
    spread_seconds: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Measurement(Shown):
    """The plain and the planned step, measured.

    Attributes:
        name: of what was run.
        plain, planned: seconds and bytes of each.
        overhead: seconds of the planned step over those of the plain one, less one: the median over rounds, in each of
            which both ran. Below 0 where the planned step is faster.
        overhead_low, overhead_high: what the true median is between, 19 times of 20.
        predicted_overhead: by the plan.
        rounds, calls: how many rounds, and how often the plain and the planned step were called in each.
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
