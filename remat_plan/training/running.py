"""A fitted step as it runs: the program that the search compiled, as long as arguments are of its kind and lie alike.

In: what was found for a step, a call that it was fitted for. Out: ``Running``.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Sharding

from remat_plan.traced.reuse import warn_where_undone
from remat_plan.training.calls import StepCall, lies_as, sharding_of
from remat_plan.training.fitted import Found
from remat_plan.verify.targets import Target


class Running:
    """A fitted step for calls of one kind whose arrays lie in certain places.

    Attributes:
        executable: the compiled step; None until it is first run, where the search left nothing that can be.
        placed: the sharding of each array; None for one device, whichever it is.
    """

    def __init__(self, found: Found, call: StepCall, target: Target):
        self.found, self.kind, self._target = found, call.kind, target
        self.jitted, self._nested = (found.step.jitted(found.trial, nested=nested) for nested in (False, True))
        self.executable: Any = None
        self.placed: tuple[Sharding | None, ...] = tuple(x.sharding for x in jax.tree.leaves(found.step.structs))
        if found.executable is not None:
            self._use(found.executable, call)

    def accepts(self, call: StepCall) -> bool:
        """Whether this is the step for a call of its kind: all arrays lie where they are expected.

        Inside a trace, where they lie is not known.
        """
        moves = self.executable is not None
        places = zip(call.leaves, self.placed, strict=True)
        pairs = [(x, self._beside(x, s) if n in self.found.step.hosted else s) for n, (x, s) in enumerate(places)]
        return call.is_traced or all(lies_as(leaf, sharding, moves) for leaf, sharding in pairs)

    def _beside(self, leaf: Any, sharding: Sharding | None) -> Sharding | None:
        """The sharding that is expected of what is to be on the host, in the memory in which it is now."""
        own = sharding_of(leaf)
        kind = None if own is None else own.memory_kind
        return sharding if sharding is None or kind is None else sharding.with_memory_kind(kind)

    def compile(self, call: StepCall) -> None:
        """Compile the step for the arrays of a call, if that was not done and they can be run here."""
        if self.executable is None and self._target.attached and call.has_arrays and not call.is_traced:
            memory = self.found.step.compile_to_run(self.found.trial, call.arrays, self._target)
            self._use(memory.executable, call)

    def __call__(self, call: StepCall) -> Any:
        if call.is_traced:
            for schedule in self.found.trial.schedules:
                warn_where_undone(schedule)
            run = self._nested
        else:
            self.compile(call)
            run = self.jitted if self.executable is None else self.executable
        return self.found.step.result(self.found.trial, run(*self.found.step.put(call.arrays, self._target)))

    def _use(self, executable: Any, call: StepCall) -> None:
        """Run a compiled step; what it does not read may come from where it lay."""
        expected = self.kind.tree.flatten_up_to(executable.input_shardings[0])
        self.placed = tuple(known or sharding_of(x) for known, x in zip(expected, call.leaves, strict=True))
        self.executable = executable
