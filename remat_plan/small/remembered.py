"""What is remembered of a program from one plan to the next, in this process.

In: what programs are told apart by, what was found by, how it is found. Out: ``remembered``, of what was found before:
options, slices, schedules of a local search, predictions. Another budget asks for the same of all these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from remat_plan import _compat
from remat_plan.small.recent import Recent

_MOST = 16
"""Of so many programs, those that were planned last, so many findings each are remembered. Without any a GPT-2 takes
10 s of processor time for another budget, with them 4; its predictions are 3 MB."""

V = TypeVar("V")

_known: Recent[Hashable, Recent[Hashable, Any]] = Recent(_MOST)


def remembered(identity: Hashable, key: Hashable, make: Callable[[], V]) -> V:
    """What was found of a program under a key, made where nothing is.

    ``identity`` is equal for programs for which the same is found; where either is None it is made each time.
    """
    if identity is None:
        return make()
    return _known.find((identity, _compat.trace_context()), lambda: Recent(_MOST)).find(key, make)


def forget() -> None:
    """Forget everything."""
    _known.clear()
