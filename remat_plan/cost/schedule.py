"""The order in which kernels run.

In: kernels with the values they read and write. Out: the same kernels in the order of the backend.

XLA:CPU runs breadth first (``BFScheduler``): a kernel is put in the queue when the last value that it reads
is there. So what depends on arguments and constants only runs at the start, and a gradient's operand is
copied into its layout long before it is used. A barrier is ready when all that enters it is there, which is
what keeps the recomputation of a checkpointed segment from running early.

Limits: bitcasts and tuples, which take a place in XLA's queue, are not in ours, so neighbours may swap. A
swap matters where arrays much larger than all others are read by several kernels, such as the logits of a
loss.
"""

from __future__ import annotations

from collections import deque

from remat_plan.cost.fusion import Kernel


def breadth_first(kernels: list[Kernel], n_values: int) -> list[Kernel]:
    """Return the kernels in the order in which they become ready (Kahn's algorithm, first in first out)."""
    maker = [-1] * n_values
    for index, kernel in enumerate(kernels):
        for value in kernel.step.writes:
            maker[value] = index
    users: list[list[int]] = [[] for _ in kernels]
    missing = [0] * len(kernels)
    for index, kernel in enumerate(kernels):
        makers = {maker[value] for value in kernel.reads}
        makers.discard(-1)
        missing[index] = len(makers)
        for m in makers:
            users[m].append(index)
    for readers in users:  # XLA makes kernels of lone steps last, which puts them behind their siblings
        readers.sort(key=lambda reader: (kernels[reader].alone, reader))
    queue = deque(index for index, count in enumerate(missing) if not count)
    order: list[Kernel] = []
    while queue:
        index = queue.popleft()
        order.append(kernels[index])
        for user in users[index]:
            missing[user] -= 1
            if not missing[user]:
                queue.append(user)
    return order
