"""Orders of dimensions in memory: which one an operation reads, and what a copy into another one costs.

In: an equation, or the shape of one operand and which of its dimensions are contracted.
Out: the order an operand must be copied into (None when it is read as it is); the matrices of a product; whether a copy
into another order splits rows, which makes it slow.

Limits: layouts are taken as row-major; a layout that XLA propagates from one operation to another is not
seen.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from remat_plan.cost.flops import dot_shape
from remat_plan.cost.rules import Kind

SMALL_BYTES = 4 * 4096


def splits_rows(shape: Sequence[int], before: Sequence[int], behind: Sequence[int]) -> bool:
    """Tell whether elements that are neighbours in memory before a copy are none behind it.

    A copy that leaves rows whole, as one that puts the heads of attention before its positions, is as fast as any
    kernel on XLA:CPU; one that splits them is several times slower, and so is what is computed on the way. Dimensions
    are in the order in which they lie in memory, neighbours last; those of one element do not count.

    >>> splits_rows((4, 256, 12, 64), (0, 1, 2, 3), (0, 2, 1, 3))  # heads of attention
    False
    >>> splits_rows((4096, 768), (0, 1), (1, 0))
    True
    """
    first, second = ([d for d in order if shape[d] != 1] for order in (before, behind))
    return first[-1:] != second[-1:]


@functools.lru_cache(maxsize=4096)  # shapes: a large program has some hundreds
def dot_operand_order(
    shape: tuple[int, ...], batch: tuple[int, ...], contract: tuple[int, ...], contract_last: bool, folds: bool = True
) -> tuple[int, ...] | None:
    """Return the permutation a dot's operand is copied into, or None when it is read in place.

    The canonical order is (batch, free, contracted) on the left and (batch, contracted, free) on the right.
    An operand with leading batch dimensions and at most one free and one contracted dimension is read in
    either order, if the dot ``folds`` transposes; of the free and batch dimensions those of size one do not count.

    >>> dot_operand_order((8, 512, 768), (), (2,), True)  # x @ w
    >>> dot_operand_order((8, 512, 768), (), (0, 1), True)  # dy.T, of the gradient of w
    (2, 0, 1)
    >>> dot_operand_order((1, 512, 768), (), (0, 1), True), dot_operand_order((512, 768), (), (0,), True)
    ((2, 0, 1), None)
    """
    free = [d for d in range(len(shape)) if d not in batch and d not in contract]
    wanted = (*batch, *free, *contract) if contract_last else (*batch, *contract, *free)
    real = [d for d in wanted if shape[d] != 1]
    if real == sorted(real):
        return None
    count = len([d for d in batch if shape[d] != 1])
    leading = sorted(real)[:count] == [d for d in batch if shape[d] != 1]
    one_each = len([d for d in free if shape[d] != 1]) <= 1 and len(contract) <= 1
    return None if folds and leading and one_each else tuple(wanted)


def folds_transposes(eqn: Any) -> bool:
    """Tell whether a dot reads operands in either order of their last two dimensions.

    XLA:CPU puts both in the canonical order where one has another number or place of dimensions (``DotDecomposer``),
    and takes transposes back into the dot later (``TransposeFolding``). In between it drops batch dimensions of one
    element, by reshapes that these transposes do not get past.
    """
    contract, batch = eqn.params["dimension_numbers"]
    shapes = [atom.aval.shape for atom in eqn.invars]
    if all(shapes[0][d] != 1 for d in batch[0]):
        return True
    return all(
        tuple(batch[side]) == tuple(range(len(batch[side])))
        and len(contract[side]) == 1
        and len(shapes[side]) <= len(batch[side]) + 2
        for side in range(2)
    )


def as_matrix(
    shape: tuple[int, ...], batch: tuple[int, ...], contract: tuple[int, ...]
) -> tuple[tuple[int, int], int] | None:
    """Return the matrix that a dot's operand is after a reshape, and its contracted dimension; None if it is none.

    >>> as_matrix((8, 512, 768), (), (2,))
    ((4096, 768), 1)
    >>> as_matrix((8, 512, 768), (0,), (2,))
    """
    free = tuple([d for d in range(len(shape)) if d not in batch and d not in contract])
    for place, parts in enumerate(((contract, free), (free, contract))):
        real = [d for d in (*parts[0], *parts[1]) if shape[d] != 1]
        if real == sorted(real) and all(shape[d] == 1 for d in batch):
            first, second = [math.prod([shape[d] for d in dims]) for dims in parts]
            return (first, second), place
    return None


def dot_sizes(eqn: Any) -> tuple[int, int, int] | None:
    """Return (rows, contracted, columns) of a product as one product of matrices; None where it is a batch of them."""
    batch, rows, columns, depth = dot_shape(eqn)
    return (rows, depth, columns) if batch == 1 else None


def conv_orders(eqn: Any) -> tuple[bool, bool, bool]:
    """Tell which of (input, kernel, output) of a convolution are not in the order NHWC, HWIO, NHWC."""
    numbers = eqn.params["dimension_numbers"]
    rank = len(numbers.lhs_spec)
    spatial = tuple(range(1, rank - 1))
    rows = (0, rank - 1, *spatial)
    kernel = (rank - 1, rank - 2, *range(rank - 2))
    return tuple(numbers.lhs_spec) != rows, tuple(numbers.rhs_spec) != kernel, tuple(numbers.out_spec) != rows


def window_and_image(eqn: Any) -> tuple[list[int], list[int]]:
    """Return the sizes of a convolution's kernel and of its result, in the dimensions of the image."""
    spec, kernel, result = eqn.params["dimension_numbers"], eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    return [kernel[d] for d in spec.rhs_spec[2:]], [result[d] for d in spec.out_spec[2:]]


def is_kernel_gradient(eqn: Any) -> bool:
    """Tell whether a convolution makes the gradient of a kernel: its window is larger than its result."""
    window, image = window_and_image(eqn)
    return math.prod(window) > math.prod(image)


def crossed_groups(eqn: Any) -> int:
    """Return how often its result a convolution makes that pairs all groups of its batch with all of its channels.

    It does where both are of one element, as in the gradient of the kernel of a depthwise convolution.
    """
    groups, spec = eqn.params["batch_group_count"], eqn.params["dimension_numbers"]
    batch, channels = eqn.invars[0].aval.shape[spec.lhs_spec[0]], eqn.outvars[0].aval.shape[spec.out_spec[1]]
    return groups if groups == batch == channels else 1


def contracts_last(shape: Sequence[int], contract: Sequence[int]) -> bool:
    """Tell whether the last dimension is contracted, as XLA:CPU's library wants it of a left operand."""
    real = [d for d in contract if shape[d] != 1]
    return not real or max(real) == max(d for d in range(len(shape)) if shape[d] != 1)


def whole_concatenation(eqn: Any, kind: Kind) -> Kind:
    """A concatenation is a kernel of its own along the last dimension, or of many parts: no part is an array there."""
    shape = eqn.outvars[0].aval.shape
    last = eqn.params["dimension"] == len(shape) - 1 > 0
    return Kind.OPAQUE if len(eqn.invars) > 8 or (last and shape[-1] >= 16) else kind
