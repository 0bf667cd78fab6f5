"""Whether a value is written once, or computed again in every kernel that reads it.

In: a program, who makes and who reads each value, the kernels that later steps are in. Out: a yes or no for a step.

XLA:GPU fuses a producer into all of its readers where that moves less memory (``PriorityFusion``). A sum of two arrays
that four kernels read is written: eight reads against two reads, a write and four reads. So the sums of a residual
stream are arrays, and not computed again from all that was ever added.

XLA:CPU fuses one of several operands into several readers only where it gets into each on all ways there, as
``InstructionFusion::ComputeGloballyUnfusible`` has it.

Limits: XLA takes producers in the order of what each gains, we take them from the last to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from remat_plan.cost.facts import item_bytes
from remat_plan.cost.rules import FUSIBLE, Kind
from remat_plan.cost.steps import NOBODY, Program, Step

_DEPTH = 4
"""How many steps back the sources of a value are looked for; what lies further back is counted as an array."""


class Copies:
    """What computing a step again in several kernels reads, against writing it once.

    ``maker`` and ``readers`` are by value the positions of steps, ``groups`` by step those of the kernels that compute
    it. They may change between questions: those of steps before the one that is asked for are not used.
    """

    def __init__(
        self, program: Program, maker: Sequence[int], readers: Sequence[Sequence[int]], groups: Sequence[frozenset[int]]
    ):
        self._steps, self._sizes, self._maker = program.steps, program.sizes, maker
        self._readers, self._groups = readers, groups

    def are_dear(self, step: Step, kernels: frozenset[int]) -> bool:
        """Tell whether a step that is computed in each of ``kernels`` reads more than one that is written for them."""
        left = self._sizes[step.writes[0]] * (1 + len(kernels))
        left += sum([self._reading(value, NOBODY, _DEPTH) for value in step.reads])
        for kernel in kernels:
            left -= sum([self._reading(value, kernel, _DEPTH) for value in step.reads])
            if left < 0:
                return True
        return False

    def of(self, kernels: frozenset[int]) -> list[Step]:
        """The steps that kernels make the results of."""
        return [self._steps[kernel] for kernel in kernels]

    def making(self, step: Step) -> tuple[int, int, list[str]]:
        """The bytes of a step and of the arrays that it is made of, and all primitives on the way.

        What something else reads as well counts as an array.
        """
        inside, arrays = [self._maker[step.writes[0]]], set[int]()
        waiting = set(step.reads)
        while waiting:
            value = max(waiting, key=self._maker.__getitem__)  # readers come before what they read
            waiting.remove(value)
            maker = self._maker[value]
            if maker < 0 or self._steps[maker].kind not in FUSIBLE or set(self._readers[value]).difference(inside):
                arrays.add(value)
            else:
                inside.append(maker)
                waiting.update(self._steps[maker].reads)
        read = sum([self._sizes[value] for value in arrays])
        return self._sizes[step.writes[0]], read, [self._steps[maker].primitive for maker in inside]

    def _reading(self, value: int, kernel: int, depth: int) -> int:
        """Bytes that a kernel reads for a value: none where it reads that anyway, less where its sources are less."""
        groups = self._groups
        if any(kernel in groups[user] for user in self._readers[value]):
            return 0
        size, index = self._sizes[value], self._maker[value]
        if not size or not depth or index < 0 or self._steps[index].kind != Kind.CHEAP:
            return size
        total = 0
        for source in self._steps[index].reads:
            total += self._reading(source, kernel, depth - 1)
            if total >= size:
                return size
        return total


def divided(steps: Sequence[Step], users: Sequence[Sequence[int]], takes: Callable[[int, int], bool]) -> set[int]:
    """Return the steps of several operands that are written rather than computed in several kernels.

    They are those that some reader would not take in on all ways there: a product of a sum and its ``tanh`` takes the
    sum in only where it takes in the ``tanh``, which it does not if something else reads that. ``users`` are by step
    those that read it; ``takes`` tells whether one may compute another.
    """
    makers: list[set[int]] = [set() for _ in steps]
    for index, readers in enumerate(users):
        for user in readers:
            if user >= 0:
                makers[user].add(index)
    bits: dict[int, int] = {}  # of the steps in question
    behind = [0] * len(steps)  # by step, the bits of those that it depends on
    ended = [0] * len(steps)  # and of those that are written on a way to it
    found: set[int] = set()
    for index, step in enumerate(steps):
        far = near = 0
        for maker in makers[index]:
            before = behind[maker]
            behind[index] |= before | bits.get(maker, 0)
            repeats = steps[maker].kind == Kind.CHEAP or len(users[maker]) == 1
            if steps[maker].kind in FUSIBLE and repeats and maker not in found and takes(index, maker):
                far |= ended[maker]
            else:
                far |= before
                near |= bits.get(maker, 0)
        found.update([maker for maker in makers[index] if bits.get(maker, 0) & far])
        ended[index] = far | near
        if step.kind == Kind.CHEAP and not step.unary and len(users[index]) > 1:
            bits[index] = 1 << len(bits)
    return found


def may_repeat(least_bytes: int, step: Step, kernels: frozenset[int], copies: Copies) -> bool:
    """Elements of at least so many bytes are computed in several kernels if these read no more."""
    return len(kernels) == 1 or item_bytes(step.eqn) < least_bytes or not copies.are_dear(step, kernels)


def cheap_kind(least_bytes: int, eqn: Any, kind: Kind) -> Kind:
    """An expensive step (``exp``, ``div``) of elements of at least so many bytes is as cheap to repeat as any other.

    Kernels wait for memory, so its arithmetic costs nothing; and rows are fetched from where they are.
    """
    cheap = kind == Kind.EXPENSIVE and item_bytes(eqn) >= least_bytes
    return Kind.CHEAP if cheap else kind
