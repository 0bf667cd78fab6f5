"""What a training step needs: plain and fitted, by what it is for; and how large a batch or a sequence may be.

In: what the compiler counts of steps, and what their arguments are. Out: ``StepReport``, ``LargestSizes``: printed,
shown, drawn, stored as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_plan.compiled.collectives import Collective
from remat_plan.results.shown import Shown


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes on one device of one compiled training step, and its seconds.

    Attributes:
        peak_bytes: what the step needs: arguments, results that are not in donated memory, temporaries.
        argument_bytes: its arguments, without those that it does not read.
        result_bytes: results that are not in the memory of donated arguments.
        donated_bytes: results that are.
        temporary_bytes: all else that is alive at the peak.
        activation_bytes: of these, what the marked functions need at their peak beside arguments and gradients;
            predicted by the evaluator, without sharding.
        host_bytes: in the host's memory, in addition to the peak.
        collectives: what devices send each other, by the compiled module.
        seconds: of one run, by the compiled module; None where it does not tell.
    """

    peak_bytes: int
    argument_bytes: int
    result_bytes: int
    donated_bytes: int
    temporary_bytes: int
    activation_bytes: int
    host_bytes: int = 0
    collectives: tuple[Collective, ...] = ()
    seconds: float | None = None

    def sent_bytes(self, pass_name: str) -> int:
        """What one device sends or gathers in a pass: ``"forward"``, ``"again"`` or ``"backward"``."""
        return sum(found.size_bytes for found in self.collectives if found.pass_name == pass_name)


@dataclass(frozen=True, slots=True, repr=False)
class StepReport(Shown):
    """A training step before and after it was fitted.

    Attributes:
        name: of the user's function.
        target: the device.
        budget: as it was asked for.
        budget_bytes: in bytes on one device.
        plain, planned: the step as it was written, and as it was fitted, by the compiler.
        parameter_bytes: of the model's parameters and state, on one device.
        gradient_bytes: of their gradients.
        optimizer_bytes: of the optimizer's state.
        batch_bytes: of all other arguments.
        hosted_bytes: of the optimizer's state, what the fitted step leaves in the host's memory.
        overhead: recomputed seconds over plain seconds of the marked functions, by the evaluator.
        compiled_overhead: seconds of the whole step as fitted over those of the step as written, less one, by the
            modules that XLA made of both (see ``Plan.compiled_overhead``); None where they do not tell.
        marks: how many different programs are marked.
        compiles: how often the step was compiled.
        notes: what else is to be said.
    """

    name: str
    target: str
    budget: str
    budget_bytes: int
    plain: StepBytes
    planned: StepBytes
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    batch_bytes: int
    overhead: float
    compiled_overhead: float | None
    marks: int
    compiles: int
    notes: tuple[str, ...] = ()
    hosted_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LargestSize:
    """The largest size within a limit on overhead.

    Attributes:
        size: of a batch, of a sequence; 0 where not even the smallest fits.
        peak_bytes: of the compiled step on one device; None for 0.
        overhead: recomputed seconds over plain seconds, by the evaluator.
        limit: the overhead that was allowed; 0 for the step as it is; None for any.
        host_bytes: in the host's memory, in addition to the peak.
    """

    size: int
    peak_bytes: int | None
    overhead: float
    limit: float | None
    host_bytes: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class LargestSizes(Shown):
    """How large a batch or a sequence may be, by the overhead that is allowed.

    Attributes:
        name: of the user's function.
        target: the device.
        budget: as it was asked for.
        budget_bytes: in bytes on one device.
        dimension: what it is the size of.
        multiple_of: what sizes are multiples of.
        rows: one for each limit on overhead, the step as it is first.
        compiles: how often a step was compiled.
    """

    name: str
    target: str
    budget: str
    budget_bytes: int
    dimension: str
    multiple_of: int
    rows: tuple[LargestSize, ...]
    compiles: int

    @property
    def plain(self) -> int:
        """The largest size of the step as it is."""
        return self.rows[0].size

    @property
    def largest(self) -> int:
        """The largest size of all."""
        return max(row.size for row in self.rows)
