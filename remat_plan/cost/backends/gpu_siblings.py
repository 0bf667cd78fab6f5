"""Kernels of XLA:GPU that are made as one.

In: kernels in the order of the program. Out: the same kernels in the order in which XLA:GPU runs them; those that are
launched as one stand side by side.

XLA:GPU makes one kernel of element-wise steps and reductions that go through the same shape (``MultiOutputFusion``):
of siblings, which read the same array, and of a step and what reads its result, as long as none of them waits for
another one by way of a third kernel. It starts with the arrays that are made last. The kernel runs when all that it
reads is there, and no result is written over that: so what a segment computes again for the gradient of a matrix,
``gelu(h)``, is written together with the gradient of ``h``, and not before it, as the program has it. What reads it
waits too.

What a convolution reads in another order of axes is a transposed copy (``kernel_copies``), which XLA makes with nothing
else. A normalisation of rows and the sums that it makes on its way are a kernel of Triton, with one result.

Limits: the order of arrays that do not depend on each other is that of the program.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from remat_plan.cost.fusion import Kernel
from remat_plan.cost.rules import FUSIBLE, Kind
from remat_plan.cost.steps import ELSEWHERE, NOBODY
from remat_plan.cost.work import reduces_rows

_NEAR = 32
"""How many kernels that read a result, and so on, are followed to see whether another one depends on it, and how many
readers of an array are compared. Behind what a segment computes for a gradient there are few; behind what the forward
pass makes is nearly all."""

_SCALAR_BYTES = 8


class _Groups:
    """Which kernels are made as one, by position: ``of`` each one the sorted positions of all that it is made with."""

    def __init__(self, kernels: Sequence[Kernel]):
        self.of = [[position] for position in range(len(kernels))]
        self.readers: dict[int, list[int]] = {}
        for position, kernel in enumerate(kernels):
            for value in kernel.reads:
                self.readers.setdefault(value, []).append(position)
        self._next = [[r for v in kernel.step.writes for r in self.readers.get(v, ())] for kernel in kernels]
        self._far = list(range(len(kernels)))

    def join(self, one: int, other: int, is_read: bool = False) -> None:
        """Make two kernels as one, if neither waits for the other one; ``is_read``: but for the first one's result."""
        first, second = self.of[one], self.of[other]
        if first is second or self._is_before(first, second, is_read) or self._is_before(second, first, False):
            return
        joined = sorted(first + second)
        for position in joined:
            self.of[position] = joined
        for position in range(joined[0], joined[-1]):
            self._far[position] = max(self._far[position], joined[-1])

    def _is_before(self, first: Sequence[int], second: Sequence[int], is_read: bool) -> bool:
        """Tell whether the second ones need what the first ones make, or that is not seen soon.

        With ``is_read`` by way of others only, not that they read it.
        """
        end = second[-1]
        while self._far[end] > end:  # a kernel of a group is made with its last one
            end = self._far[end]
        seen, waiting = set(first), list(first)
        while waiting:
            position = waiting.pop()
            for reader in self._next[position]:
                if reader in second:
                    if not is_read or position not in first:
                        return True
                elif reader not in seen and self.of[reader][0] <= end:
                    if len(seen) > _NEAR:
                        return True
                    seen.update(self.of[reader])
                    waiting.extend(self.of[reader])
        return False


def beside_siblings(kernels: list[Kernel], sizes: Sequence[int]) -> list[Kernel]:
    """Return the kernels with those that are made as one side by side, each with all that these read."""
    of = _grouped(kernels, sizes).of
    found: list[Kernel] = []
    for group in _reordered(kernels, of):
        if len(group) == 1:
            found.append(kernels[group[0]])
            continue
        common = tuple(sorted(_needed(kernels, group)))
        found += [kernels[p]._replace(common=common, keeps=frozenset({*common, *kernels[p].reads})) for p in group]
    return found


def made_as_one(kernels: Sequence[Kernel], sizes: Sequence[int]) -> Mapping[int, list[int]]:
    """Return, by the position of the last one of kernels that are made as one, the others."""
    found: dict[int, list[int]] = {}
    for common, positions in itertools.groupby(range(len(kernels)), key=lambda position: kernels[position].common):
        *others, last = positions
        if common and others:
            found[last] = others
    return found


def _grouped(kernels: Sequence[Kernel], sizes: Sequence[int]) -> _Groups:
    """Find the kernels that are made as one."""
    groups = _Groups(kernels)
    readers, shapes = groups.readers, _shapes(kernels, groups.readers)
    maker = {value: position for position, kernel in enumerate(kernels) for value in kernel.step.writes}
    for value in sorted(readers, key=lambda value: -maker.get(value, NOBODY)):
        if sizes[value] <= _SCALAR_BYTES:
            continue
        alike = [reader for reader in readers[value] if shapes[reader]][:_NEAR]
        alike.sort(key=lambda reader: -len(groups.of[reader]))
        for one, other in itertools.combinations(alike, 2):
            if shapes[one] == shapes[other]:
                groups.join(one, other)
        made = maker.get(value, NOBODY)
        if made >= 0 and kernels[made].step.kind in FUSIBLE and shapes[made]:
            for reader in sorted(alike, key=lambda reader: -len(groups.of[reader])):
                if shapes[reader] == shapes[made] and len(groups.of[made]) == 1:
                    groups.join(made, reader, is_read=True)
    return groups


def _shapes(kernels: Sequence[Kernel], readers: Mapping[int, Sequence[int]]) -> list[tuple[int, ...]]:
    """The shapes that kernels go through; empty for those that are made alone, and for scalars."""
    found = [_shape(kernel) for kernel in kernels]
    for position, kernel in enumerate(kernels):
        if kernel.step.kind == Kind.REDUCE and found[position] and reduces_rows(kernel.step.eqn):
            normalised = [r for r in readers.get(kernel.step.writes[0], ()) if _normalises(kernels[r], kernel)]
            for made in (position, *normalised) if normalised else ():
                found[made] = ()
    return found


def _shape(kernel: Kernel) -> tuple[int, ...]:
    """The shape that an element-wise kernel or a reduction goes through.

    Rows of loops have no equation, what is copied or padded for a convolution has that of the convolution, and a
    product that adds its result to another array is a call of the library.
    """
    step = kernel.step
    if step.eqn is None or len(step.writes) != 1 or any(work.startswith("product") for work in kernel.work):
        return ()
    if step.kind == Kind.REDUCE:
        return getattr(step.eqn.invars[0].aval, "shape", ())
    return step.eqn.outvars[0].aval.shape if step.kind in FUSIBLE and step.primitive not in ELSEWHERE else ()


def _normalises(reader: Kernel, reduction: Kernel) -> bool:
    """Tell whether a kernel reads what a reduction of rows makes, and the rows again."""
    return reader.step.kind in FUSIBLE and not set(reader.reads).isdisjoint(reduction.reads)


def _needed(kernels: Sequence[Kernel], group: Sequence[int]) -> set[int]:
    """What a group of kernels reads of others."""
    return {v for p in group for v in kernels[p].reads}.difference(*[kernels[p].step.writes for p in group])


def _reordered(kernels: Sequence[Kernel], of: Sequence[list[int]]) -> Iterator[list[int]]:
    """Yield the groups in the order of their last kernels, but each one after what it reads."""
    waiting: dict[int, set[int]] = {}
    missing: set[int] = set()
    for position, kernel in enumerate(kernels):
        missing.update(kernel.step.writes)
        if of[position][-1] == position:
            waiting[position] = _needed(kernels, of[position])
        while (ready := next((p for p, reads in waiting.items() if missing.isdisjoint(reads)), None)) is not None:
            del waiting[ready]
            missing.difference_update(*[kernels[p].step.writes for p in of[ready]])
            yield of[ready]
