"""Reductions that the kernel before them makes as further results.

In: the kernels of a program, in order. Out: by kernel, the reductions that it makes too.

XLA:TPU gives a kernel several results (``MultiOutputFusion``): a product that also sums its rows for the next
normalisation, or its columns for the gradient of a bias, writes the array once, and the reduction does not read it.

Limits: a reduction goes to the kernel that makes the last of what it reads; XLA weighs the memory on the chip first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remat_plan.cost.fusion import Kernel
from remat_plan.cost.rules import Kind
from remat_plan.graph.records import MATRIX_PRIMITIVES


def _is_host(kernel: Kernel) -> bool:
    """Tell whether a kernel is element-wise, or a product or convolution."""
    step = kernel.step
    return step.kind in (Kind.CHEAP, Kind.EXPENSIVE) or step.primitive in MATRIX_PRIMITIVES


def further_results(kernels: Sequence[Kernel], sizes: Sequence[int]) -> Mapping[int, list[int]]:
    """Return, by the position of a kernel, those of the reductions that it makes beside its own result."""
    maker: dict[int, int] = {}
    found: dict[int, list[int]] = {}
    for position, kernel in enumerate(kernels):
        maker.update(dict.fromkeys(kernel.step.writes, position))
        if kernel.step.kind != Kind.REDUCE:
            continue
        last = max([(maker.get(value, -1), sizes[value], value) for value in kernel.reads], default=(-1, 0, -1))
        host, size, _ = last
        if host >= 0 and _is_host(kernels[host]) and size > sum([sizes[w] for w in kernel.step.writes]):
            found.setdefault(host, []).append(position)
    return found
