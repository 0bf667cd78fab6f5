"""Element-wise kernels that wait for sums of what they read.

In: kernels in the order of the program. Out: the same kernels in the order in which XLA:GPU runs them, and which are
launched as one.

XLA:GPU makes one kernel of an element-wise step and the sums over images that read the same arrays
(``MultiOutputFusion``). So what a segment computes again for the gradient of a convolution's kernel, the output of a
normalisation, is written where the sums for the gradient of that normalisation are made: together with the gradient
that these read, and not before it, as the program has it. What reads it waits too.

What a convolution reads in another order of axes is a transposed copy (``kernel_copies``), which XLA makes with nothing
else: it is of no shape that is summed.

Limits: an element-wise kernel goes to the first sums that it can go to; sums that XLA moves to later ones stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remat_plan.cost.fusion import Kernel
from remat_plan.cost.rules import FUSIBLE, Kind
from remat_plan.cost.steps import Step
from remat_plan.cost.work import reduces_images

_NEAR = 64
"""How many kernels that read a result, and so on, are followed to see whether sums depend on it. Behind what a segment
computes for the gradient of a kernel there are few; behind what the forward pass makes is nearly all."""


def beside_sums(kernels: list[Kernel], sizes: Sequence[int]) -> list[Kernel]:
    """Return the kernels with each element-wise one beside the sums that it is made with."""
    sums = _sums(kernels, sizes)
    if not sums:
        return kernels
    readers: dict[int, list[int]] = {}
    for position, kernel in enumerate(kernels):
        for value in kernel.reads:
            readers.setdefault(value, []).append(position)
    partners: dict[int, list[int]] = {}
    for position, kernel in enumerate(kernels):
        if (shape := _made_shape(kernel.step)) is None:
            continue
        common = {other for value in kernel.reads for other in sums.get(value, ()) if other > position}
        alike = [other for other in common if kernels[other].step.eqn.invars[0].aval.shape == shape]
        if alike and not _depends(kernels, min(alike), position, readers):
            partners.setdefault(min(alike), []).append(position)
    return _reordered(kernels, partners) if partners else kernels


def made_with_sums(kernels: Sequence[Kernel], sizes: Sequence[int]) -> Mapping[int, list[int]]:
    """Return, by the position of sums, the element-wise kernels right before them that read the same arrays."""
    found: dict[int, list[int]] = {}
    for position in sorted({p for positions in _sums(kernels, sizes).values() for p in positions}):
        sums, before = kernels[position], position - 1
        shape = sums.step.eqn.invars[0].aval.shape
        while before >= 0 and _is_made_with(kernels[before], sums, shape):
            found.setdefault(position, []).append(before)
            before -= 1
    return found


def keep_operands_of_sums(
    steps: Sequence[Step], maker: Sequence[int], reads: Mapping[int, set[int]], keeps: Mapping[int, set[int]]
) -> None:
    """Add to ``keeps`` the operands of kernels that are made together with sums of their result, channel by channel."""
    for root, step in enumerate(steps):
        if root in reads and step.kind == Kind.REDUCE and reduces_images(step.eqn):
            for made in {maker[value] for value in reads[root]}:
                if made in keeps and steps[made].kind in FUSIBLE:
                    keeps[made].update(reads[made])


def _made_shape(step: Step) -> tuple[int, ...] | None:
    """The shape of what an element-wise step makes; None for others, and for rows of loops, which have no equation."""
    return None if step.kind not in FUSIBLE or step.eqn is None else step.eqn.outvars[0].aval.shape


def _is_made_with(kernel: Kernel, sums: Kernel, shape: tuple[int, ...]) -> bool:
    """Tell whether a kernel is element-wise, shares what it reads with sums and is not read by them."""
    step = kernel.step
    if _made_shape(step) != shape:
        return False
    return not set(kernel.reads).isdisjoint(sums.reads) and set(step.writes).isdisjoint(sums.reads)


def _sums(kernels: Sequence[Kernel], sizes: Sequence[int]) -> Mapping[int, list[int]]:
    """Return by value the positions of the sums over images that read it and are much smaller."""
    found: dict[int, list[int]] = {}
    for position, kernel in enumerate(kernels):
        if kernel.step.kind == Kind.REDUCE and reduces_images(kernel.step.eqn):
            written = sum([sizes[value] for value in kernel.step.writes])
            for value in kernel.reads:
                if sizes[value] > written:
                    found.setdefault(value, []).append(position)
    return found


def _depends(kernels: Sequence[Kernel], later: int, earlier: int, readers: Mapping[int, list[int]]) -> bool:
    """Tell whether a kernel needs what an earlier one makes, or that is not seen soon."""
    seen: set[int] = set()
    waiting = [earlier]
    while waiting:
        for value in kernels[waiting.pop()].step.writes:
            for reader in readers.get(value, ()):
                if reader == later or len(seen) > _NEAR:
                    return True
                if reader < later and reader not in seen:
                    seen.add(reader)
                    waiting.append(reader)
    return False


def _reordered(kernels: Sequence[Kernel], partners: Mapping[int, list[int]]) -> list[Kernel]:
    """Return the kernels in their order, but each of ``partners`` right before the one that it is made with."""
    order: list[int] = []
    held = {position for positions in partners.values() for position in positions}
    waiting: dict[int, None] = {}
    missing: set[int] = set()

    def is_ready(position: int) -> bool:
        return missing.isdisjoint(kernels[position].reads)

    def run(position: int) -> None:
        for partner in partners.get(position, ()):
            held.discard(partner)
            if partner in waiting and is_ready(partner):
                del waiting[partner]
                run(partner)
        order.append(position)
        missing.difference_update(kernels[position].step.writes)

    for position, kernel in enumerate(kernels):
        if position in held or not is_ready(position):
            waiting[position] = None
            missing.update(kernel.step.writes)
            continue
        run(position)
        while (freed := next((p for p in waiting if p not in held and is_ready(p)), None)) is not None:
            del waiting[freed]
            run(freed)
    return [kernels[position] for position in (*order, *waiting)]
