"""The schedules of a training step for a budget, with the last word on its peak.

In: a ``TrainingStep``, its ``Mark``s with their ``Site``s, a target, a budget. Out: ``Fitted``.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Sequence
from dataclasses import replace

import jax

from remat_plan.graph.schedule import WRITTEN, is_written
from remat_plan.search.confirm import fastest
from remat_plan.search.driver import Driver, Fitted, most_compiles
from remat_plan.search.known import Known, KnownProgram
from remat_plan.search.mark import Choice, Mark, held_bytes, price, rate
from remat_plan.small.progress import Progress
from remat_plan.training.sites import Site, Trial
from remat_plan.training.step import TrainingStep
from remat_plan.verify.compile import CompiledMemory
from remat_plan.verify.targets import Target

_LOG = logging.getLogger("remat_plan")


class Measuring:
    """A step and what is marked in it, compiled under schedules for the marks; each choice of them once.

    Attributes:
        known: what was compiled in this process of steps that are told to be the same, with default options.
    """

    def __init__(
        self, step: TrainingStep, marks: Sequence[Mark], sites: Sequence[Site], target: Target, progress: Progress
    ):
        self.step, self.marks, self.sites = step, tuple(marks), tuple(sites)
        self.target, self.progress, self.hardware = target, progress, marks[0].judge.hardware
        self.plain: Choice = tuple(mark.judge.program.plain for mark in marks)
        self.written: Choice = tuple(WRITTEN for _ in marks)
        self.has_own_remat = any(mark.judge.program.has_own_remat for mark in marks)
        leaves, tree = jax.tree.flatten(step.structs)
        programs = tuple(mark.judge.identity for mark in marks)
        actions = tuple(mark.request.constraints.allowed_actions for mark in marks)
        told = step.settings.donate_argnums, target.name, target.platform, actions, step.hosted
        # A step of the same name with other code around the marks needs other bytes.
        code = getattr(inspect.unwrap(step.fn), "__code__", getattr(step.fn, "__qualname__", ""))
        self.known = KnownProgram((programs, tuple(leaves), tree, code, told))
        self._known: dict[Choice, CompiledMemory] = {}
        self._trials: dict[Choice, Trial] = {}

    def trial(self, choice: Choice) -> Trial:
        """What runs the marks under a choice; the same one that was compiled."""
        if choice not in self._trials:
            self._trials[choice] = Trial(self.sites, choice)
        return self._trials[choice]

    def compile(self, choice: Choice) -> CompiledMemory:
        """What the compiled step needs."""
        if choice not in self._known:
            self.progress.say(f"compiling the step for {self.target.name} ({self.compiles + 1})")
            memory = self._known[choice] = self.step.compile(self.trial(choice), self.target, self.hardware)
            if not any(map(is_written, choice)):
                self.known.add(choice, replace(memory, executable=None))  # which would be kept as long
            _LOG.debug("compiled the step for %s in %.1f s: %d bytes", self.target.name, memory.compile_seconds,
                       memory.total_bytes)  # fmt: skip
        return self._known[choice]

    def knows(self, choice: Choice) -> bool:
        """Whether a choice was compiled."""
        return choice in self._known

    def allows(self, choice: Choice) -> bool:
        """Whether a choice, which may have been compiled for others, respects the constraints of the marks."""
        pairs = list(zip(self.marks, choice, strict=True))
        return all(mark.candidates.allows(mark.request, s) and mark.judge.fits_host(s) for mark, s in pairs)

    @property
    def compiles(self) -> int:
        return len(self._known)

    @property
    def peaks(self) -> list[int]:
        """Peaks of the compiled step under all choices that were compiled."""
        return [memory.total_bytes for memory in self._known.values()]

    @property
    def as_written(self) -> CompiledMemory:
        return self.compile(self.written)


def search_step(measuring: Measuring, budget_bytes: int) -> Fitted:
    """Find the fastest schedules of a step."""
    written = measuring.written
    fitting = [written] if measuring.as_written.total_bytes <= budget_bytes else []
    if not fitting or measuring.has_own_remat:
        found = search_choices(measuring, budget_bytes, first_rate(measuring), held_bytes(measuring.as_written))[0]
        if found.fits:
            fitting.append(found.choice)
        elif not fitting:
            as_written = Fitted(written, measuring.as_written, False)
            return min(found, as_written, key=lambda fitted: fitted.memory.total_bytes)
    best = fastest(fitting, functools.partial(price, measuring.marks), written)
    return Fitted(best, measuring.compile(best), True)


def search_choices(measuring: Measuring, budget_bytes: int, rate: float, held_bytes: int) -> tuple[Fitted, Known]:
    """Search among the schedules of the planner; beside what was found, what every choice that was tried needs.

    ``rate`` is what a predicted byte is expected to come out at.
    """
    known = {choice: memory for choice, memory in measuring.known.now().items() if measuring.allows(choice)}
    if not measuring.has_own_remat and measuring.knows(measuring.written):  # which is the one that recomputes nothing
        known[measuring.plain] = measuring.as_written
    refused = measuring.target.compiles_slowly and measuring.as_written.over_device_memory  # within seconds
    left = most_compiles(measuring.target) - (not refused)
    driver = Driver(measuring.marks, measuring.compile, held_bytes, rate, known, left=left)
    found = driver.search(budget_bytes)
    if not found.fits and not all(mark.is_loss for mark in measuring.marks):
        driver.measure(tuple(mark.whole() for mark in measuring.marks))
        least = driver.least()
        found = Fitted(least, driver.tried[least], driver.fits(least, budget_bytes))
    return found, driver.tried


def first_rate(measuring: Measuring) -> float:
    """What a predicted byte of the step as written comes out at.

    Where what is written is not what was predicted, since it has ``jax.checkpoint`` in it, it tells how much of a byte
    is on one device.
    """
    if measuring.has_own_remat and not measuring.step.spans_devices:
        return 1.0
    written = measuring.as_written
    return rate(measuring.marks, measuring.plain, written.total_bytes - held_bytes(written))
