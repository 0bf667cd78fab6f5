"""Who runs the marked functions while a training step is traced.

In: a runner, for as long as a step is traced. Out: that runner, for marked functions (``plans.book.PlanBook``) to ask.

A mark is a function under ``rp.remat`` that was given neither a budget nor a strategy: ``rp.fit`` finds its schedule
for the step around it. The context is one that ``jax.jit`` and the other caches of JAX are keyed by
(``jax.make_user_context``), so that a function inside the step is traced again for every runner.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import jax

if TYPE_CHECKING:
    from remat_plan.traced.programs import Traced


class MarkRunner(Protocol):
    """Runs marked functions; hashable, and one object for one way to run them."""

    def run_mark(self, trace: Callable[[], Traced], request: Any) -> Any:
        """Return what a call of a marked function returns; ``request`` (``search.candidates.Request``) is what it says
        of its plan."""
        ...


INSIDE: Any = object()
"""In place of a runner while a marked function is traced: a mark in a mark is a part of it, so the schedule of the
outer one says what becomes of its values."""

_RUNNER: Any = jax.make_user_context(None)


def runner() -> MarkRunner | None:
    """The runner that marks are under; None outside a training step that is being fitted or run."""
    return _RUNNER.value


def running_marks(by: MarkRunner) -> AbstractContextManager[None]:
    """A context in which marks are run by a runner."""
    return _RUNNER(by)
