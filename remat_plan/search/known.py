"""What was compiled of a program in this process, whatever it was asked for.

In: what programs, devices and settings are told apart by. Out: a dictionary that searches of one program share: what
was compiled once, for another budget or by another strategy, is a candidate ever after. It is compiled again before it
is used, since programs that are told apart by texts may differ in what texts leave out.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from remat_plan import _compat
from remat_plan.recent import Recent
from remat_plan.verify.compile import CompiledMemory

Known = dict[Any, CompiledMemory]
"""By a schedule, or by one schedule for each mark of a step."""

_PROGRAMS = 64
"""Of how many programs it is remembered: a few numbers for each schedule that was compiled."""

_programs: Recent[Hashable, Known] = Recent(_PROGRAMS)


def known_of(identity: Hashable) -> Known:
    """Return what is known of a program, to be added to.

    Args:
        identity: equal for the same program, compiled for the same device in the same way.
    """
    key = identity, _compat.trace_context()
    known = _programs.use(key)
    if known is None:
        known = {}
        _programs.keep(key, known)
    return known


def forget() -> None:
    """Forget everything, so that the next search of a program is its first."""
    _programs.clear()
