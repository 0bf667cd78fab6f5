"""How often a kernel would hold the code of a step that it takes in (XLA:CPU).

In: the steps of a program and the kernels that take them in, from the last to the first. Out: whether one more may be.

A kernel is emitted element by element. A step that is read at several places in it, as what a strided slice, a pad or
a concatenation reads, is emitted once for each of them, and so is all that it is computed from: through the levels of
an associative scan that doubles at each. XLA:CPU takes nothing in that it would emit more than fifteen times, and what
opens a block of code of its own only where it is emitted once and read once (``FusionNodeIndexingEvaluation``).

Limits: reshapes between a step and its reader are not seen; XLA counts them as another place. XLA:GPU has a limit on
all the code of a kernel instead, but mostly decides by what it costs to compute something again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from remat_plan.cost.rules import Kind
from remat_plan.cost.steps import ELSEWHERE, NOBODY, Step

_OPENS_BLOCK = frozenset({"pad", "concatenate", "dynamic_update_slice"})
_AT_NEW_PLACES = ELSEWHERE - {"transpose"}
"""What asks for elements at places that it works out anew, as sums do; XLA takes a transpose for none."""

_MOST = 15
"""So often the code of one step may be in a kernel."""


@dataclass(slots=True)
class _Code:
    """What is known of the code of a kernel; it is found once it is asked for.

    Attributes:
        counted: of how many of its steps the following is known.
        copies: by step, how often it is emitted; ``NOBODY`` is the kernel itself, which asks at one place.
        asking: by value, the steps at whose places it is asked for.
    """

    counted: int = 0
    copies: dict[int, int] = field(default_factory=lambda: {NOBODY: 1})
    asking: dict[int, set[int]] = field(default_factory=dict)


class Emissions:
    """How often the code of each step is in the kernels that compute it; ``users`` are by step those that read it."""

    def __init__(self, steps: Sequence[Step], users: Sequence[Sequence[int]]):
        self._steps, self._users = steps, users
        self._elsewhere = [step.primitive in _AT_NEW_PLACES or step.kind == Kind.REDUCE for step in steps]
        self._members: list[list[int]] = [[] for _ in steps]  # of each kernel, from the last step to the first
        self._doublings = [0] * len(steps)  # how many of them ask for elements at new places
        self._code: defaultdict[int, _Code] = defaultdict(_Code)

    def take(self, index: int, kernels: Iterable[int]) -> None:
        """Note that kernels compute a step."""
        elsewhere = self._elsewhere[index]
        for kernel in kernels:
            self._members[kernel].append(index)
            self._doublings[kernel] += elsewhere

    def are_too_many(self, index: int, kernel: int) -> bool:
        """Tell whether XLA leaves a step out of a kernel, for the code that it would be."""
        step = self._steps[index]
        is_fusion, opens_block = len(self._members[kernel]) > 1, step.primitive in _OPENS_BLOCK
        if not is_fusion or step.primitive == "broadcast_in_dim":  # which would be written otherwise
            return False
        if opens_block and len(self._users[index]) > 1:
            return True
        most = 1 if opens_block else _MOST
        return 1 << self._doublings[kernel] > most and self._copies(step, kernel) > most

    def _copies(self, step: Step, kernel: int) -> int:
        """How often a kernel would emit a step, after all that it has."""
        code, members = self._code[kernel], self._members[kernel]
        for index in members[code.counted :]:
            member = self._steps[index]
            places = _places(member, code) or {NOBODY}
            code.copies[index] = sum([code.copies[place] for place in places])
            through = {index} if self._elsewhere[index] else places
            for value in member.reads:
                code.asking.setdefault(value, set()).update(through)
        code.counted = len(members)
        return sum([code.copies[place] for place in _places(step, code)])


def _places(step: Step, code: _Code) -> set[int]:
    """The steps at whose places a kernel asks for what a step makes; nobody asks for the kernel's own result."""
    return set().union(*[code.asking[value] for value in step.writes if value in code.asking])
