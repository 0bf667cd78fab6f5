"""What a training step needs outside of its marks: no schedule of theirs changes that.

In: a ``TrainingStep``, a runner of its marks. Out: ``Outside``, by the evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import evaluate
from remat_plan.results.places import line_text
from remat_plan.search.candidates import Request
from remat_plan.traced.marks import MarkRunner
from remat_plan.traced.programs import Traced
from remat_plan.training.step import TrainingStep

_SCOPE = "remat_plan_mark"


@dataclass(frozen=True)
class _Scoped:
    """Runs marks as another runner does, in a scope by which their equations, backward ones too, can be told."""

    runner: MarkRunner

    def run_mark(self, trace: Callable[[], Traced], request: Request) -> Any:
        with jax.named_scope(_SCOPE):
            return self.runner.run_mark(trace, request)


@dataclass(frozen=True)
class Outside:
    """An equation outside of all marks.

    Attributes:
        text: its primitive and the user's line.
        of_peak: what is alive there, as a share of the peak of the step.
    """

    text: str
    of_peak: float


def largest_outside(step: TrainingStep, runner: MarkRunner, hardware: Hardware) -> Outside | None:
    """The equation outside of all marks at which most bytes are alive; None where there is none."""
    jaxpr = step.trace(_Scoped(runner)).jaxpr
    timeline = evaluate(jaxpr, hardware)
    lines = dict(_outside(_compat.open_jaxpr(jaxpr)[0], ""))
    pairs = zip(timeline.live_bytes, timeline.equations, strict=True)
    rows = [(live, eqn) for live, eqn in pairs if id(eqn) in lines]
    if not rows:
        return None
    most, eqn = max(rows, key=lambda row: row[0])
    return Outside(f"{eqn.primitive.name} {lines[id(eqn)]}".strip(), most / timeline.peak_bytes)


def _outside(jaxpr: Any, line: str) -> Iterator[tuple[int, str]]:
    """The equations outside of marks, by ``id``, with the user's line; a function of JAX has that of its call."""
    for eqn in jaxpr.eqns:
        if _SCOPE not in str(eqn.source_info.name_stack):
            own = line_text(eqn) or line
            yield id(eqn), own
            for inner in _compat.sub_jaxprs(eqn.params):
                yield from _outside(_compat.open_jaxpr(inner)[0], own)
