"""What single HLO operations compute: their FLOPs, and the class of work that these are.

In: an ``Instruction`` and its ``Computation``. Out: FLOPs; a multiply-add is two, a transcendental function eight, as
in ``cost.rules``. The name of a class of work, by the rules of ``cost.work``, for rates that were measured.

Of library calls (cuBLAS, cuDNN, oneDNN) products and convolutions are known by their shapes, attention by what its
config says of its scores; a Pallas kernel for a TPU says itself what it costs, where its author does.

Limits: padding counts as work in convolutions. What other library calls compute is not known. A function that XLA wrote
out (a polynomial for ``erf``, an exponential for ``logistic``) is of the classes of what it was written as, and a
convolution that it made a product of is a product. Of library calls, products are told by their shapes.
"""

from __future__ import annotations

import math
import re

from remat_plan.compiled.hlo import Array, Computation, Instruction
from remat_plan.cost import work
from remat_plan.cost.flops import product_shape
from remat_plan.cost.rules import TRANSCENDENTAL_FLOPS

_SIMPLE = frozenset(
    "add subtract multiply negate abs maximum minimum compare select and or xor not clamp sign floor ceil "
    "round-nearest-afz round-nearest-even is-finite convert shift-left shift-right-arithmetic shift-right-logical "
    "count-leading-zeros popcnt reduce-precision complex real imag stochastic-convert map".split()
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
    **dict.fromkeys("acos acosh asin asinh atanh cosh sinh rng rng-bit-generator".split(), work.ELEMENTWISE),
}
"""Functions of one element, and what JAX calls them; of the last ones no rates are measured."""

_TOLD = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')
_CANONICAL = re.compile(r"b\d*f_\d*io->b\d*f$")
"""Labels of the dimensions of a convolution's operands and result: NHWC, HWIO, NHWC."""
_SCORES = re.compile(r'"intermediate_tensor_shape":\{[^}]*"dimensions":\[([^\]]*)\]')


def work_of(inside: Computation, found: Instruction, elements: float, read: float) -> tuple[str, float]:
    """Return the class of work of an operation, with the type that it computes in, and its FLOPs.

    Of products and convolutions these are all; of other operations, of so many ``elements`` of the result, for which so
    many of the operands are ``read``. 0 of a library call that is not known.

    >>> from remat_plan.compiled.hlo import parse
    >>> module = parse('''ENTRY %main (x: f32[4]) -> f32[4] {
    ...   %x = f32[4]{0} parameter(0)
    ...   ROOT %y = f32[4]{0} exponential(%x)
    ... }''')
    >>> work_of(module.entry, module.entry.root, 4, 4)
    ('exp float32', 32.0)
    """
    kind, flops = _work(inside, found, elements, read)
    computed = inside.operand_array(found, 0) or found.array
    return work.with_type(kind, computed.dtype if computed is not None else ""), flops


def _work(inside: Computation, found: Instruction, elements: float, read: float) -> tuple[str, float]:
    opcode = found.opcode
    if opcode == "dot":
        return _dot(inside, found)
    if opcode == "convolution":
        return _convolution(inside, found)
    if opcode == "custom-call":
        return _library_call(inside, found)
    if opcode == "reduce":
        operand = inside.operand(found, 0)
        order = operand.minor_first if operand is not None else ()
        return work.reduction_class(bool(order) and order[0] in found.numbers("dimensions")), read
    if opcode in ("reduce-window", "select-and-scatter"):
        return work.WINDOW_SUM, elements * _window_elements(found)
    if opcode == "scatter":
        return work.ELEMENTWISE, read
    if opcode == "sort":
        shape, along = found.arrays[0].shape, found.numbers("dimensions")[:1]
        length = shape[along[0]] if along and along[0] < len(shape) else found.size
        return work.ELEMENTWISE, read * math.log2(max(length, 2))
    if opcode in _FUNCTIONS:
        return _FUNCTIONS[opcode], TRANSCENDENTAL_FLOPS * elements
    return work.ELEMENTWISE, elements if opcode in _SIMPLE else 0.0


def _window_elements(found: Instruction) -> int:
    """How many elements each result combines; one along a dimension that the window covers from wherever it lies.

    XLA:TPU writes a maximum over rows that is subtracted from them as a window of 2 n - 1: all of a row have one.
    """
    sizes = _sizes(found.word("window"), "size")
    shape = found.arrays[0].shape if found.arrays else ()
    if len(sizes) != len(shape):
        return math.prod(sizes)
    return math.prod(size for size, n in zip(sizes, shape, strict=True) if size < 2 * n - 1 or n == 1)


def _dot(inside: Computation, found: Instruction) -> tuple[str, float]:
    left, right = inside.operand_array(found, 0), inside.operand_array(found, 1)
    if left is None or right is None:
        return work.product_class(1, found.size, found.size, found.size), 2.0 * found.size
    dims = [tuple(found.numbers(f"{side}_{kind}_dims") for side in ("lhs", "rhs")) for kind in ("contracting", "batch")]
    batch, rows, columns, depth = product_shape(left.shape, right.shape, tuple(dims))
    return work.product_class(batch, rows, columns, depth), 2.0 * found.size * depth


def _library_call(inside: Computation, found: Instruction) -> tuple[str, float]:
    """By the sizes of a call, products (M x K) (K x N); attention is a batch of them."""
    target, flops = found.word("custom_call_target"), _library_flops(inside, found)
    shape = found.array.shape if found.array is not None else ()
    if "$conv" in target:
        return work.convolution_class((), shape, False, False), flops
    if "fmha" in target or len(shape) < 2:
        return work.BATCHED, flops
    depth = flops / (2 * max(math.prod(shape), 1))
    return work.product_class(math.prod(shape[:-2]), shape[-2], shape[-1], round(depth)), flops


def _library_flops(inside: Computation, found: Instruction) -> float:
    target = found.word("custom_call_target")
    left, right, result = inside.operand_array(found, 0), inside.operand_array(found, 1), found.array
    if told := _TOLD.search(found.attributes):
        return float(told.group(1))
    if "matmul" in target or "gemm" in target:
        if left is None or right is None or result is None:
            return 0.0
        # Of a batch of products (M x K) (K x N), BMK * BKN * BMN = B (B M N K)^2 / 1: the sizes tell all.
        batch = math.prod(result.shape[:-2])
        return 2.0 * math.sqrt(left.size * right.size * result.size / max(batch, 1))
    if "$conv" in target:  # a gradient too pairs the outputs of the forward pass with the kernel
        kernel, output = right, result
        if "BackwardInput" in target:
            output = left
        elif "BackwardFilter" in target:
            kernel, output = result, right
        return 0.0 if output is None else _convolution_flops(kernel, output.size, found)
    if "fmha" in target and (scores := _SCORES.search(found.attributes)):
        sizes = [int(n) for n in re.findall(r"\d+", scores.group(1))]
        products = 5 if "Backward" in target else 2  # of (queries x keys x head size)
        return 2.0 * products * math.prod(sizes) * (left.shape[-1] if left is not None and left.shape else 1)
    return 0.0


def _convolution_flops(kernel: Array | None, output_elements: int, found: Instruction) -> float:
    """Each output element sums over the kernel of its feature; ``01io`` are the labels of a kernel's dimensions."""
    labels = found.word("dim_labels").partition("_")[2].partition("-")[0]
    if kernel is None or len(labels) != len(kernel.shape):
        return 0.0
    return 2.0 * output_elements * math.prod(n for n, letter in zip(kernel.shape, labels, strict=True) if letter != "o")


def _convolution(inside: Computation, found: Instruction) -> tuple[str, float]:
    """XLA takes a kernel that is larger than its image for the image, and reverses the other: its sizes are those of
    the first operand then. A gradient that reverses its kernel is told from that by a result no smaller than it reads.
    """
    text, (given, _, written) = found.attributes, found.word("dim_labels").partition("->")
    image = _of_image(found.array, written)
    read = _of_image(inside.operand_array(found, 0), given.partition("_")[0])
    window = _sizes(text, "size")
    if "rhs_reversal" in text and image < read:
        window = read
    spread, dilated = _sizes(text, "rhs_dilate"), _sizes(text, "lhs_dilate")
    kind = work.convolution_class(window, image, max(spread, default=1) > 1, max(dilated, default=1) > 1)
    # On a CPU, in a loop: elsewhere XLA has put it in order, if not swapped it, or made it a library call.
    if kind != work.NARROW and not _CANONICAL.match(found.word("dim_labels")):
        kind = work.REORDERED
    # A dilated input has zeros between its elements, which no kernel multiplies.
    return kind, _convolution_flops(inside.operand_array(found, 1), found.size, found) / math.prod(dilated)


def _of_image(array: Array | None, labels: str) -> list[int]:
    """Sizes of the dimensions of an image, which are labelled by numbers."""
    if array is None or len(labels) != len(array.shape):
        return []
    return [n for _, n in sorted((label, n) for label, n in zip(labels, array.shape, strict=True) if label.isdigit())]


def _sizes(text: str, key: str) -> list[int]:
    """Numbers of a window by dimension, such as ``size=3x3``."""
    found = re.search(rf"\b{key}=([\dx]+)", text)
    return [int(n) for n in found.group(1).split("x")] if found else []
