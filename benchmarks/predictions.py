"""What the evaluator says of steps that were measured or compiled before: policies by name, plans by their schedules.

In: a model under policies, a step's name, the schedule of a plan. Out: its ``Timeline`` by any rates.

Tables of predictions against other figures keep those figures in JSON and make the predictions anew from here, so that
a change of the evaluator shows in them without measuring or compiling again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax

from benchmarks.authors import llama
from benchmarks.common import Options, Session, raw_step
from benchmarks.models import Model
from remat_plan.cost.backend import Backend
from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import Timeline, evaluate
from remat_plan.cost.platforms import backend_for
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import Schedule
from remat_plan.results.codec import decode, encode
from remat_plan.traced.programs import Program, trace_program

POLICIES = ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")
PLAIN = "plain"


@dataclass(frozen=True)
class Steps:
    """A model, and its loss under policies on every block.

    Attributes:
        name: of the model.
        model: the model.
        losses: by policy.
    """

    name: str
    model: Model
    losses: dict[str, Callable[..., Any]]

    @cached_property
    def program(self) -> Program:
        """The model as it is planned."""
        return trace_program(self.model.loss, (self.model.params, self.model.batch), {}, 0, False, (), "replan")

    @cached_property
    def _jaxprs(self) -> dict[str, Any]:
        return {}

    @cached_property
    def _rules(self) -> dict[tuple[Hardware, Backend], Rules]:
        return {}

    def jaxpr(self, policy: str) -> Any:
        """The gradient step under a policy, traced once."""
        if policy not in self._jaxprs:
            step, structs = raw_step(self.model, self.losses[policy])
            self._jaxprs[policy] = jax.make_jaxpr(step)(*structs)
        return self._jaxprs[policy]

    def plain_seconds(self, hardware: Hardware) -> float:
        """Seconds that overheads are set against; see ``Judge.plain_seconds``."""
        seconds = self.timeline(PLAIN, None, hardware).seconds
        return seconds * Session(self.model, None).judge.unmerged_share(hardware) if hardware.measured else seconds

    def timeline(self, step: str, schedule: Schedule | None, hardware: Hardware) -> Timeline:
        """What the evaluator says of a step: of a policy by its name, of the plain one, or of a schedule."""
        if step in self.losses:
            return evaluate(self.jaxpr(step), hardware)
        key = hardware, backend_for(hardware)
        if key not in self._rules:
            self._rules[key] = Rules(self.program.graph, hardware)
        return StepProgram(self._rules[key]).loss_timeline(schedule or self.program.plain)


def steps_of(name: str, options: Options, sizes: dict[str, dict[str, Any]]) -> Steps:
    """A model at the size of a benchmark, or tiny, with its loss under each policy.

    Args:
        name: of ``benchmarks.models``, with ``_bf16`` behind it for one in bfloat16; or ``"llama"`` for the scanned one
            of ``benchmarks.authors``.
        options: whether models are tiny.
        sizes: changes to the sizes of ``benchmarks.models``.
    """
    if name == "llama":
        made = llama.make_of(llama.CONFIGS["tiny" if options.quick else "small"])
        model = Model(name, made.plain, *made.arguments, loss_with=lambda wrap: made.plain, classes=4)
        return Steps(name, model, dict(list(made.policies.items())[-3:]))
    model = options.model(name.removesuffix("_bf16"), **({} if options.quick else sizes[name]))
    wraps = {p: partial(jax.checkpoint, policy=getattr(jax.checkpoint_policies, p)) for p in POLICIES}
    return Steps(name, model, {p: model.loss_with(wrap) for p, wrap in wraps.items()})


def stored(schedule: Schedule) -> list[Any]:
    """A schedule as data for JSON."""
    return encode(schedule)


def restored(data: list[Any] | None) -> Schedule | None:
    """The schedule that ``stored`` wrote."""
    return None if data is None else decode(Schedule, data)
