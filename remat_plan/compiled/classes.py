"""What kind of work an operation of a compiled module is, for rates that were measured.

In: an ``Instruction`` and its ``Computation``. Out: the name of a class of work, by the rules of ``cost.work``.

Limits: a function that XLA wrote out (a polynomial for ``erf``, an exponential for ``logistic``) is of the classes of
what it was written as, and a convolution that it made a product of is a product. Of library calls, products are told
by their shapes.
"""

from __future__ import annotations

import math
import re

from remat_plan.compiled.hlo import Array, Computation, Instruction
from remat_plan.compiled.operations import matrix_flops
from remat_plan.cost.work import (
    BATCHED,
    ELEMENTWISE,
    WINDOW_SUM,
    convolution_class,
    product_class,
    reduction_class,
    with_type,
)

_FUNCTIONS = {
    "exponential": "exp",
    "exponential-minus-one": "expm1",
    "log-plus-one": "log1p",
    "sine": "sin",
    "cosine": "cos",
    "power": "pow",
    "divide": "div",
    "remainder": "rem",
    **{name: name for name in "log tanh logistic tan atan2 erf rsqrt sqrt cbrt".split()},
}
"""Functions of one element, and what JAX calls them."""


def work_class(inside: Computation, found: Instruction) -> str:
    """Return the class of work of an operation, with the type that it computes in.

    >>> from remat_plan.compiled.hlo import parse
    >>> module = parse('''ENTRY %main (x: f32[4]) -> f32[4] {
    ...   %x = f32[4]{0} parameter(0)
    ...   ROOT %y = f32[4]{0} exponential(%x)
    ... }''')
    >>> work_class(module.entry, module.entry.root)
    'exp float32'
    """
    read = inside.operand_array(found, 0) or (found.arrays[0] if found.arrays else None)
    return with_type(_kind(inside, found), read.dtype if read is not None else "")


def _kind(inside: Computation, found: Instruction) -> str:
    opcode = found.opcode
    if opcode == "dot":
        return _product(inside, found)
    if opcode == "convolution":
        return _convolution(inside, found)
    if opcode == "custom-call":
        return _library(inside, found)
    if opcode == "reduce":
        return _reduction(inside, found)
    if opcode in ("reduce-window", "select-and-scatter"):
        return WINDOW_SUM
    return _FUNCTIONS.get(opcode, ELEMENTWISE)


def _product(inside: Computation, found: Instruction) -> str:
    left, right = inside.operand_array(found, 0), inside.operand_array(found, 1)
    if left is None or right is None:
        return product_class(1, found.size, found.size, found.size)
    batch = math.prod(left.shape[d] for d in found.numbers("lhs_batch_dims"))
    depth = math.prod(left.shape[d] for d in found.numbers("lhs_contracting_dims"))
    each = max(batch * depth, 1)
    return product_class(batch, left.size // each, right.size // each, depth)


def _library(inside: Computation, found: Instruction) -> str:
    """Products (M x K) (K x N) by the sizes of a call; attention is a batch of them."""
    target = found.word("custom_call_target")
    shape = found.arrays[0].shape if found.arrays else ()
    if "$conv" in target:
        return convolution_class((), shape, False, False)
    if "fmha" in target or len(shape) < 2:
        return BATCHED
    depth = matrix_flops(inside, found) / (2 * max(math.prod(shape), 1))
    return product_class(math.prod(shape[:-2]), shape[-2], shape[-1], round(depth))


def _convolution(inside: Computation, found: Instruction) -> str:
    """XLA takes a kernel that is larger than its image for the image, and reverses the other: its sizes are those of
    the first operand then. A gradient that reverses its kernel is told from that by a result no smaller than it reads.
    """
    text, (given, _, written) = found.attributes, found.word("dim_labels").partition("->")
    image = _of_image(found.arrays[0] if found.arrays else None, written)
    read = _of_image(inside.operand_array(found, 0), given.partition("_")[0])
    window = _sizes(text, "size")
    if "rhs_reversal" in text and image < read:
        window = read
    spread, dilated = (max(_sizes(text, key), default=1) > 1 for key in ("rhs_dilate", "lhs_dilate"))
    return convolution_class(window, image, spread, dilated)


def _of_image(array: Array | None, labels: str) -> list[int]:
    """Sizes of the dimensions of an image, which are labelled by numbers."""
    if array is None or len(labels) != len(array.shape):
        return []
    return [n for _, n in sorted((label, n) for label, n in zip(labels, array.shape, strict=True) if label.isdigit())]


def _sizes(text: str, key: str) -> list[int]:
    """Numbers of a window by dimension, such as ``size=3x3``."""
    found = re.search(rf"\b{key}=([\dx]+)", text)
    return [int(n) for n in found.group(1).split("x")] if found else []


def _reduction(inside: Computation, found: Instruction) -> str:
    read = inside.operand(found, 0)
    order = read.minor_first if read is not None else ()
    return reduction_class(bool(order) and order[0] in found.numbers("dimensions"))
