"""A fitted step as it runs: the program that the search compiled, as long as arguments are of its kind and lie alike.

In: a step, the runner of its marks, a call that it was fitted for, the compiled program where there is one. Out:
``Running``.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Sharding

from remat_plan.traced.reuse import warn_where_undone
from remat_plan.training.calls import StepCall, lies_as, sharding_of
from remat_plan.training.sites import Trial
from remat_plan.training.step import TrainingStep
from remat_plan.verify.targets import Target


class Running:
    """A fitted step for calls of one kind whose arrays lie in certain places.

    Attributes:
        step: the step.
        kind: of the calls.
        jitted: the step under ``jax.jit``.
        executable: the compiled step; None until it is first run, where the search left nothing that can be.
        placed: the sharding of each array; None for one device, whichever it is.
    """

    def __init__(self, step: TrainingStep, trial: Trial, call: StepCall, target: Target, executable: Any):
        self.step, self._trial, self._target = step, trial, target
        self.kind = call.kind
        self.jitted, self._nested = step.jitted(trial), step.jitted(trial, nested=True)
        self.executable: Any = None
        self.placed: tuple[Sharding | None, ...] = tuple(x.sharding for x in jax.tree.leaves(step.structs))
        if executable is not None:
            self._use(executable, call)

    def accepts(self, call: StepCall) -> bool:
        """Whether this is the step for a call of its kind: all arrays lie where they are expected.

        Inside a trace, where they lie is not known.
        """
        moves = self.executable is not None
        places = zip(call.leaves, self.placed, strict=True)
        return call.is_traced or all(lies_as(leaf, sharding, moves) for leaf, sharding in places)

    def compile(self, call: StepCall) -> None:
        """Compile the step for the arrays of a call, if that was not done and they can be run here."""
        if self.executable is None and self._target.attached and call.has_arrays and not call.is_traced:
            self._use(self.step.compile_to_run(self._trial, call.arrays, self._target).executable, call)

    def __call__(self, call: StepCall) -> Any:
        """Run the step, and return what the user's step returns."""
        if call.is_traced:
            for schedule in self._trial.schedules:
                warn_where_undone(schedule)
            run = self._nested
        else:
            self.compile(call)
            run = self.jitted if self.executable is None else self.executable
        return self.step.result(self._trial, run(*call.arrays))

    def _use(self, executable: Any, call: StepCall) -> None:
        """Run a compiled step; what it does not read may come from where it lay."""
        expected = self.kind.tree.flatten_up_to(executable.input_shardings[0])
        own = map(sharding_of, call.leaves)
        self.placed = tuple(known or lay for known, lay in zip(expected, own, strict=True))
        self.executable = executable
