"""What was compiled of a program in this process, whatever it was asked for.

In: what programs, devices and settings are told apart by. Out: ``KnownProgram``, which searches of one program share:
what was compiled once, for another budget or by another strategy, is a candidate ever after. It is compiled again
before it is used, since programs that are told apart by texts may differ in what texts leave out.

Several threads may read and add at once; a search goes by what was known when it began.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from remat_plan import _compat
from remat_plan.small.recent import Recent
from remat_plan.verify.compile import CompiledMemory

Known = dict[Any, CompiledMemory]
"""By a schedule, or by one schedule for each mark of a step."""

_MOST = 64
"""Of how many programs how many schedules each are remembered, those that were compiled last: a few numbers each."""

_programs: Recent[Hashable, Recent[Any, CompiledMemory]] = Recent(_MOST)
_adding = threading.Lock()


class KnownProgram:
    """What is known of one program; nothing is kept of one that nothing was compiled of.

    Args:
        identity: equal for the same program, compiled for the same device in the same way.
    """

    def __init__(self, identity: Hashable):
        self._key = identity, _compat.trace_context()

    def now(self) -> Known:
        """What was compiled by now, what was compiled last at the end."""
        compiled = _programs.use(self._key)
        return {} if compiled is None else dict(reversed(compiled.latest_first()))

    def add(self, schedules: Any, memory: CompiledMemory) -> None:
        """Remember what was compiled: of a schedule, or of one for each mark."""
        with _adding:
            _programs.find(self._key, lambda: Recent(_MOST)).keep(schedules, memory)


def forget() -> None:
    """Forget everything, so that the next search of a program is its first."""
    _programs.clear()
