"""The schedules of a training step for a budget, with the last word on its peak.

In: a ``TrainingStep``, its ``Site``s with their ``Mark``s, a target, a budget. Out: ``Fitted``.

As in ``search.confirm``: where a search compiles fast (TPUs that are not attached), what it comes to is compiled with
default options, and the ratio of the two sets the goal of the next search.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from remat_plan.cost.hardware import Hardware
from remat_plan.graph.schedule import WRITTEN
from remat_plan.report.progress import Progress
from remat_plan.training.levels import CLOSE, Choice, Fitted, Levels, Mark, held_bytes, level_bytes, overhead, price
from remat_plan.training.sites import Site
from remat_plan.training.step import TrainingStep
from remat_plan.training.trial import Trial
from remat_plan.verify.compile import CompiledMemory
from remat_plan.verify.targets import Target

_AGAIN = 2
"""So many choices are compiled fast in a second search, after default options came to another peak than fast ones."""

_AGREEMENT = 0.005
"""The step as written stays unless another choice is predicted to be faster by this share."""


class Measuring:
    """A step, compiled under schedules for its marks; each once.

    Attributes:
        sites: what is marked.
        compiles: how often the step was compiled.
    """

    def __init__(
        self, step: TrainingStep, sites: Sequence[Site], target: Target, hardware: Hardware, progress: Progress
    ):
        self.step, self.sites, self.target, self.progress = step, tuple(sites), target, progress
        self.hardware = hardware
        self.fast = target.platform == "tpu" and not target.attached
        self.compiles = 0
        self._known: dict[tuple[Choice, bool], CompiledMemory] = {}

    def trial(self, choice: Choice) -> Trial:
        """What runs the marks under a choice."""
        return Trial(self.sites, choice)

    def compile(self, choice: Choice, fast: bool = False) -> CompiledMemory:
        """What the compiled step needs; ``fast`` with little optimisation."""
        key = choice, fast
        if key not in self._known:
            self.progress.say(f"compiling the step for {self.target.name} ({self.compiles + 1})")
            self._known[key] = self.step.compile(self.trial(choice), self.target, fast, self.hardware)
            self.compiles += 1
        return self._known[key]

    @property
    def as_written(self) -> CompiledMemory:
        """What the step needs as it was written."""
        return self.compile(tuple(WRITTEN for _ in self.sites))


def search_step(measuring: Measuring, marks: Sequence[Mark], budget_bytes: int) -> Fitted:
    """Find the fastest schedules of a step whose marks are ``measuring.sites``."""
    written: Choice = tuple(WRITTEN for _ in marks)
    fitting = [written] if measuring.as_written.total_bytes <= budget_bytes else []
    if not fitting or any(mark.judge.program.has_own_remat for mark in marks):
        found = _search(measuring, marks, budget_bytes)
        if found.fits:
            fitting.append(found.choice)
        elif not fitting:
            return found
    best = min(fitting, key=lambda choice: price(marks, choice))
    if written in fitting and price(marks, best) > (1 - _AGREEMENT) * price(marks, written):
        best = written
    return Fitted(best, measuring.compile(best), True)


def _search(measuring: Measuring, marks: Sequence[Mark], budget_bytes: int) -> Fitted:
    """Search among the schedules of the planner."""
    held = held_bytes(measuring.as_written)
    levels = Levels(marks, functools.partial(measuring.compile, fast=measuring.fast), held)
    if measuring.step.spans_devices:
        # What the evaluator counts may be spread over the devices, as the compiler sees fit.
        plain = tuple(mark.judge.program.plain for mark in marks)
        temporary = measuring.as_written.total_bytes - held
        levels.rate = min(1.0, temporary / max(level_bytes(marks, plain), 1))
    return confirmed(measuring, levels, budget_bytes)


def confirmed(measuring: Measuring, levels: Levels, budget_bytes: int) -> Fitted:
    """Search, with default options of the compiler having the last word."""
    marks = levels.marks
    found = levels.search(budget_bytes)
    if not measuring.fast:
        return found
    known = [_with_default_options(measuring, found, budget_bytes)]
    if found.fits and not _is_close(marks, known[0], budget_bytes):
        margin = 1.0 if known[0].fits else 0.99
        goal = int(budget_bytes * found.memory.total_bytes / known[0].memory.total_bytes * margin)
        again = levels.search(goal, _AGAIN)
        if again.choice != found.choice:
            known.append(_with_default_options(measuring, again, budget_bytes))
    within = [f for f in known if f.fits]
    return min(within or known, key=lambda f: price(marks, f.choice) if within else f.memory.total_bytes)


def _with_default_options(measuring: Measuring, found: Fitted, budget_bytes: int) -> Fitted:
    """What was found with fast compiles, as it comes out without."""
    memory = measuring.compile(found.choice)
    return Fitted(found.choice, memory, memory.total_bytes <= budget_bytes)


def _is_close(marks: Sequence[Mark], found: Fitted, budget_bytes: int) -> bool:
    """Whether another search would find nothing better."""
    close = found.memory.total_bytes >= (1 - CLOSE) * budget_bytes
    return found.fits and (close or overhead(marks, found.choice) == 0.0)
