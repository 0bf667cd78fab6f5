"""The optimizer's state in the host's memory, where a training step needs that to be within its budget, or is faster.

In: what was found for a step with its state on the device, its budget. Out: the same, or what was found with as much of
the state on the host as may go there; and a note that says which, and why.

The state is moved only if the compiled step needs fewer bytes on the device with it (see ``training.update`` for what
can be moved). Of two steps within the budget it is the one that takes fewer seconds by its compiled module, or where
modules do not tell, by the evaluator and the link's rate.

Limits: XLA:GPU drops the memory kinds of arguments where no GPU is attached, so that nothing is proven there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax

from remat_plan.graph.schedule import is_written
from remat_plan.planning.offloads import LEAST_SHARE
from remat_plan.search.driver import Fitted
from remat_plan.small.budget import format_bytes
from remat_plan.training.schedules import Measuring, search_step
from remat_plan.training.step import TrainingStep
from remat_plan.training.update import Update
from remat_plan.verify.place import device_bytes

_LOG = logging.getLogger("remat_plan")

_STAYS = "the optimizer's state stays on the device: "
_NONE = (
    "none of it is donated, read by nothing but the update, and updated element by element, each array by itself "
    "(donate_argnums names arguments that may be given up)"
)
_UNPROVEN = "XLA:GPU drops the memory kinds of arguments where no GPU is attached, so nothing can be proven there"


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found for a training step.

    Attributes:
        measuring: the step, which may have its state on the host.
        found: what was found for it.
        compiles: how often it was compiled, with its state here or there.
        note: what is to be said of the state; None where it was not to be moved.
    """

    measuring: Measuring
    found: Fitted
    compiles: int
    note: str | None = None


def search_with_state(
    measuring: Measuring, found: Fitted, budget_bytes: int, measure: Callable[[TrainingStep], Measuring]
) -> Searched:
    """Search with the optimizer's state on the host too.

    Args:
        measuring, found: the step with its state on the device, and what was found for it.
        budget_bytes: of the step, on one device.
        measure: finds the marks of a step.

    Returns:
        The step that is better, and what was found for it.
    """

    def stays(why: str | None, tried: int = 0) -> Searched:
        return Searched(measuring, found, measuring.compiles + tried, why and _STAYS + why)

    step, target, asked = measuring.step, measuring.target, measuring.step.settings.host
    if asked.may_offload is not True or step.is_traced:
        return stays(None)
    if found.fits and all(map(is_written, found.choice)):
        return stays("the budget is met without")
    if not measuring.hardware.link_bytes_per_second:
        return stays(f"the memory of {measuring.marks[0].judge.device} is its host's")
    if target.platform == "gpu" and not target.attached:
        return stays(_UNPROVEN)
    if step.settings.out_shardings is not None:
        return stays("out_shardings says where results lie")
    hosted = movable(measuring)
    if not hosted:
        return stays(_NONE)
    size_bytes = hosted_bytes(moved := replace(step, hosted=hosted))
    if asked.host_bytes is None:
        other = Measuring(moved, measuring.marks, measuring.sites, target, measuring.progress)
    else:
        left = replace(asked, host_bytes=asked.host_bytes - size_bytes)
        other = measure(replace(moved, settings=replace(step.settings, host=left)))
    try:
        needed, least = other.as_written.total_bytes, measuring.as_written.total_bytes
    except RuntimeError as error:  # of the compiler, which knows no such transfer; the step without it was compiled
        _LOG.info("the optimizer's state cannot be moved: %s", error)
        return stays("the compiler refuses to move it")
    if needed >= least:
        needs = f"the compiled step needs {format_bytes(needed)} with it on the host, {format_bytes(least)} without"
        return stays(needs, other.compiles)
    there = search_step(other, budget_bytes)
    if there.memory.host_bytes > (math.inf if asked.host_bytes is None else asked.host_bytes):
        return stays("the compiled step needs more than host_budget for it", other.compiles)
    if not _is_better(other, there, measuring, found):
        return stays("the step is faster so" if found.fits else None, other.compiles)
    told = f"{format_bytes(size_bytes)} of the optimizer's state stay in the host's memory; each call updates them "
    note = f"{told}in slices, and returns them there. step.put(*args) moves them before the first call"
    return Searched(other, there, measuring.compiles + other.compiles, note)


def movable(measuring: Measuring) -> frozenset[int]:
    """Return which leaves of a step's arguments may go to the host, the largest first as far as host_budget goes."""
    step = measuring.step
    counts = [len(jax.tree.leaves(part)) for part in step.structs]
    donated = [i in step.settings.donate_argnums for i, count in enumerate(counts) for _ in range(count)]
    sizes = dict(enumerate(map(device_bytes, jax.tree.leaves(step.structs))))
    least = LEAST_SHARE * max((sizes[n] for n in sizes if donated[n]), default=0)
    wanted = sorted((n for n in sizes if donated[n] and sizes[n] >= least), key=lambda n: -sizes[n])
    traced = step.trace(measuring.trial(measuring.written))
    limit = step.settings.host.host_bytes
    left, found = math.inf if limit is None else limit, []
    for n in sorted(Update.of(traced.jaxpr, step.structs, traced.out_info, wanted).hosted, key=wanted.index):
        if sizes[n] <= left:
            found.append(n)
            left -= sizes[n]
    return frozenset(found)


def hosted_bytes(step: TrainingStep) -> int:
    """Bytes of what a step leaves on the host, of one device's share."""
    return device_bytes([x for n, x in enumerate(jax.tree.leaves(step.structs)) if n in step.hosted])


def _is_better(other: Measuring, there: Fitted, measuring: Measuring, found: Fitted) -> bool:
    """Whether a step is better with its state on the host."""
    if there.fits != found.fits:
        return there.fits
    if not found.fits:
        return there.memory.total_bytes < found.memory.total_bytes
    if there.memory.seconds is not None and found.memory.seconds is not None:
        return there.memory.seconds < found.memory.seconds
    seconds = [
        sum(mark.seconds(schedule) for mark, schedule in zip(one.marks, fitted.choice, strict=True))
        for one, fitted in ((other, there), (measuring, found))
    ]
    return seconds[0] + other.hardware.link_seconds(hosted_bytes(other.step)) < seconds[1]
