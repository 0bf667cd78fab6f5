"""The order in which kernels run.

In: kernels with the values they read and write. Out: the same kernels in the order of the backend.

XLA:CPU runs breadth first (``BFScheduler``): a kernel is put in the queue when the last value that it reads
is there. So what depends on arguments and constants only runs at the start, and a gradient's operand is
copied into its layout long before it is used. A barrier is ready when all that enters it is there, which is
what keeps the recomputation of a checkpointed segment from running early. A product of matrices that reads an
array of more dimensions is ready one place later, since its reshape takes a place in the queue.

Limits: other bitcasts and tuples are not in our queue, so neighbours may swap. A swap matters where arrays much
larger than all others are read by several kernels, such as the logits of a loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from remat_plan.cost.fusion import Kernel
from remat_plan.cost.layout import dot_sizes
from remat_plan.cost.rules import FUSIBLE
from remat_plan.cost.steps import Step


def breadth_first(kernels: list[Kernel], sizes: Sequence[int]) -> list[Kernel]:
    """Return the kernels in the order in which they become ready (Kahn's algorithm, first in first out)."""
    maker = [-1] * len(sizes)
    for index, kernel in enumerate(kernels):
        for value in kernel.step.writes:
            maker[value] = index
    waits_for = [[maker[value] for value in kernel.reads] for kernel in kernels]
    reshapes: dict[int, int] = {}  # by value, its place behind those of the kernels
    for index, reshaped in enumerate(_reshaped(kernels, maker)):
        for value in reshaped:
            if value not in reshapes:
                reshapes[value] = len(waits_for)
                waits_for.append([maker[value]])
        if reshaped:
            waits_for[index] = [reshapes[v] if v in reshaped else maker[v] for v in kernels[index].reads]
    users: list[list[int]] = [[] for _ in waits_for]
    missing = [0] * len(waits_for)
    for index, makers in enumerate(waits_for):
        needed = set(makers) - {-1}
        missing[index] = len(needed)
        for m in needed:
            users[m].append(index)
    alone = [index < len(kernels) and kernels[index].alone for index in range(len(waits_for))]
    for readers in users:  # XLA makes kernels of lone steps last, which puts them behind their siblings
        readers.sort(key=lambda reader: (alone[reader], reader))
    queue = deque(index for index, count in enumerate(missing) if not count)
    order: list[Kernel] = []
    while queue:
        index = queue.popleft()
        order += kernels[index : index + 1]
        for user in users[index]:
            missing[user] -= 1
            if not missing[user]:
                queue.append(user)
    return order


def _matrices(kernels: list[Kernel]) -> set[int]:
    """The values of more than two dimensions that are held as matrices: of products, and what only those read."""
    readers: dict[int, list[Step]] = {}
    for kernel in kernels:
        for value in kernel.reads:
            readers.setdefault(value, []).append(kernel.step)
    found: set[int] = set()
    for kernel in kernels:
        step = kernel.step
        if _is_product(step) or step.primitive == "layout_copy":
            found.update(step.writes)
        elif step.kind in FUSIBLE and (reading := readers.get(step.writes[0])):
            found.update(step.writes if all(map(_is_product, reading)) else ())
    return found


def _is_product(step: Step) -> bool:
    """Tell whether a step is one product of matrices."""
    return step.primitive == "dot_general" and dot_sizes(step.eqn) is not None


def _reshaped(kernels: list[Kernel], maker: list[int]) -> Iterator[frozenset[int]]:
    """By kernel, the arrays of more dimensions that a product of matrices reads."""
    matrices = _matrices(kernels)
    for kernel in kernels:
        step, found = kernel.step, []
        if kernel.library or not _is_product(step):
            yield frozenset()
            continue
        for value, atom in zip(step.reads, step.eqn.invars, strict=False):
            made = kernels[maker[value]].step.eqn if maker[value] >= 0 else None
            shape = made.outvars[0].aval.shape if made is not None and made.outvars else atom.aval.shape
            if len(shape) > 2 and value not in matrices:
                found.append(value)
        yield frozenset(found)
