"""Kernels that are made by a kernel before them, as further results.

In: the kernels of a program, in order. Out: by kernel, those that it makes too.

XLA:TPU gives a kernel several results (``MultiOutputFusion``). A product that also sums its rows for the next
normalisation, its columns for the gradient of a bias, or writes its activation beside itself, writes the array once,
and the others do not read it. So do kernels side by side that read the same arrays: the four sums of the gradient of a
BatchNorm, a normalised array and its positive part.

Limits: a kernel goes to the one that makes the last of what it reads, else to the first that reads the largest array it
reads; XLA weighs the memory on the chip first. For seconds only: in memory the results are what they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remat_plan.cost.fusion import Kernel
from remat_plan.cost.rules import MOVES, Kind
from remat_plan.graph.records import MATRIX_PRIMITIVES

_ELEMENTWISE = (Kind.CHEAP, Kind.EXPENSIVE)


def further_results(kernels: Sequence[Kernel], sizes: Sequence[int]) -> Mapping[int, list[int]]:
    """Return, by the position of a kernel, those of the kernels after it whose results it makes beside its own."""
    maker: dict[int, int] = {}
    found: dict[int, list[int]] = {}
    readers: dict[tuple[int, int], int] = {}
    for position, kernel in enumerate(kernels):
        maker.update(dict.fromkeys(kernel.step.writes, position))
        elements = _elements(kernel)
        if not elements or not _can_join(kernel):
            continue
        made = max([maker.get(value, -1) for value in kernel.reads], default=-1)
        largest = [(value, elements) for value in _largest(kernel.reads, sizes)]
        host = made if made >= 0 and _is_host(kernels[made]) and _elements(kernels[made]) == elements else None
        if host is None:
            host = next((readers[key] for key in largest if made < readers.get(key, -1)), None)
        if host is None or not _is_product(kernels[host]):
            for key in largest:
                readers.setdefault(key, position if host is None else host)
        if host is not None:
            found.setdefault(host, []).append(position)
            if kernel.step.kind != Kind.REDUCE:  # a sum is there when all of its kernel is done
                maker.update(dict.fromkeys(kernel.step.writes, host))
    return found


def _largest(values: Sequence[int], sizes: Sequence[int]) -> list[int]:
    most = max([sizes[value] for value in values], default=0)
    return [value for value in values if sizes[value] == most]


def _can_join(kernel: Kernel) -> bool:
    """Tell whether a kernel is element-wise, or a reduction."""
    step = kernel.step
    return step.kind == Kind.REDUCE or (step.kind in _ELEMENTWISE and step.primitive not in MOVES)


def _is_host(kernel: Kernel) -> bool:
    """Tell whether a kernel is element-wise, or a product or convolution."""
    return kernel.step.kind in _ELEMENTWISE or _is_product(kernel)


def _is_product(kernel: Kernel) -> bool:
    return kernel.step.primitive in MATRIX_PRIMITIVES


def _elements(kernel: Kernel) -> int:
    """How many elements a kernel runs over: those of its result, or of what it reduces.

    0 where it only moves what it reads, for an equation of another name or none (rows of a stack, copies), and where it
    has no result, as callbacks to the host may.
    """
    eqn = kernel.step.eqn
    if eqn is None or eqn.primitive.name != kernel.step.primitive:
        return 0
    over = eqn.invars if kernel.step.kind == Kind.REDUCE else eqn.outvars
    return over[0].aval.size if over else 0
