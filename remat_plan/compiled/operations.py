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
_SCORES = re.compile(r'"intermediate_tensor_shape":\{[^}]*"dimensions":\[([^\]]*)\]')
_ATTENTION_PRODUCTS = {"Backward": 5, "": 2}
"""Products of (queries x keys x head size) in a call of attention: of its backward pass, of its forward pass."""


def matrix_flops(inside: Computation, found: Instruction) -> float:
    """FLOPs of a product or a convolution, a library's too; 0 of all else."""
    if found.opcode == "dot":
        left = inside.operand(found, 0)
        shape = left.arrays[0].shape if left is not None and left.arrays else ()
        depth = math.prod(shape[d] for d in found.numbers("lhs_contracting_dims") if d < len(shape))
        return 2.0 * found.size * depth
    if found.opcode == "convolution":
        return _convolution(inside.operand_array(found, 1), found.size, _kernel_labels(found)) / _dilation(found)
    return library_flops(inside, found) or 0.0


def library_flops(inside: Computation, found: Instruction) -> float | None:
    """FLOPs of a library call; None of what is none, and of one that is not known."""
    if found.opcode != "custom-call":
        return None
    if told := _TOLD.search(found.attributes):
        return float(told.group(1))
    target = found.word("custom_call_target")
    if "matmul" in target or "gemm" in target:
        return _product(inside.operand_array(found, 0), inside.operand_array(found, 1), found.arrays)
    if "$conv" in target:
        return _library_convolution(inside, found, target)
    if "fmha" in target and (scores := _SCORES.search(found.attributes)):
        sizes = [int(n) for n in re.findall(r"\d+", scores.group(1))]
        queries = inside.operand_array(found, 0)
        products = next(n for word, n in _ATTENTION_PRODUCTS.items() if word in target)
        return 2.0 * products * math.prod(sizes) * (queries.shape[-1] if queries and queries.shape else 1)
    return None


def vector_flops(found: Instruction, elements: float, operand_elements: float) -> float:
    """FLOPs of element-wise work and reductions.

    Args:
        found: the operation.
        elements: of its result that are wanted.
        operand_elements: of its operands that are read for them.
    """
    opcode = found.opcode
    if opcode in _SIMPLE:
        return elements
    if opcode in _FUNCTIONS:
        return TRANSCENDENTAL_FLOPS * elements
    if opcode in ("reduce", "scatter"):
        return operand_elements
    if opcode in ("reduce-window", "select-and-scatter"):
        return elements * _window_elements(found)
    if opcode == "sort":
        length = found.arrays[0].shape[dimension] if (dimension := _dimension(found)) is not None else found.size
        return operand_elements * math.log2(max(length, 2))
    return 0.0


def _window_elements(found: Instruction) -> int:
    """How many elements each result combines; one along a dimension that the window covers from wherever it lies.

    XLA:TPU writes a maximum over rows that is subtracted from them as a window of 2 n - 1: all of a row have one.
    """
    sizes = _sizes(found.word("window"), "size")
    shape = found.arrays[0].shape if found.arrays else ()
    if len(sizes) != len(shape):
        return math.prod(sizes)
    return math.prod(size for size, n in zip(sizes, shape, strict=True) if size < 2 * n - 1 or n == 1)


def _dimension(found: Instruction) -> int | None:
    numbers = found.numbers("dimensions")
    return numbers[0] if numbers and numbers[0] < len(found.arrays[0].shape) else None


def _product(left: Array | None, right: Array | None, results: tuple[Array, ...]) -> float | None:
    """Of a batch of products (M x K) (K x N): BMK * BKN * BMN = B (B M N K)^2 / 1, so the sizes tell all."""
    if left is None or right is None or not results:
        return None
    batch = math.prod(results[0].shape[:-2])
    return 2.0 * math.sqrt(left.size * right.size * results[0].size / max(batch, 1))


def _kernel_labels(found: Instruction) -> str:
    """The letters of a kernel's dimensions, such as ``01io``."""
    return found.word("dim_labels").partition("_")[2].partition("-")[0]


def _convolution(kernel: Array | None, output_elements: int, labels: str) -> float:
    """Each output element sums over the kernel of its feature."""
    if kernel is None or len(labels) != len(kernel.shape):
        return 0.0
    return 2.0 * output_elements * math.prod(n for n, letter in zip(kernel.shape, labels, strict=True) if letter != "o")


def _dilation(found: Instruction) -> int:
    """How much the input is dilated: zeros between its elements, which no kernel multiplies."""
    return math.prod(_sizes(found.attributes, "lhs_dilate"))


def _library_convolution(inside: Computation, found: Instruction, target: str) -> float | None:
    """A convolution or one of its gradients: all three pair the outputs of the forward pass with the kernel."""
    operands = inside.operand_array(found, 0), inside.operand_array(found, 1)
    result = found.arrays[0] if found.arrays else None
    kernel, output = operands[1], result
    if "BackwardInput" in target:
        output = operands[0]
    elif "BackwardFilter" in target:
        kernel, output = result, operands[1]
    return None if output is None else _convolution(kernel, output.size, _kernel_labels(found))


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
    return work.with_type(_kind(inside, found), read.dtype if read is not None else "")


def _kind(inside: Computation, found: Instruction) -> str:
    opcode = found.opcode
    if opcode == "dot":
        return _product_class(inside, found)
    if opcode == "convolution":
        return _convolution_class(inside, found)
    if opcode == "custom-call":
        return _library_class(inside, found)
    if opcode == "reduce":
        return _reduction_class(inside, found)
    if opcode in ("reduce-window", "select-and-scatter"):
        return work.WINDOW_SUM
    return _FUNCTIONS.get(opcode, work.ELEMENTWISE)


def _product_class(inside: Computation, found: Instruction) -> str:
    left, right = inside.operand_array(found, 0), inside.operand_array(found, 1)
    if left is None or right is None:
        return work.product_class(1, found.size, found.size, found.size)
    batch = math.prod(left.shape[d] for d in found.numbers("lhs_batch_dims"))
    depth = math.prod(left.shape[d] for d in found.numbers("lhs_contracting_dims"))
    each = max(batch * depth, 1)
    return work.product_class(batch, left.size // each, right.size // each, depth)


def _library_class(inside: Computation, found: Instruction) -> str:
    """Products (M x K) (K x N) by the sizes of a call; attention is a batch of them."""
    target = found.word("custom_call_target")
    shape = found.arrays[0].shape if found.arrays else ()
    if "$conv" in target:
        return work.convolution_class((), shape, False, False)
    if "fmha" in target or len(shape) < 2:
        return work.BATCHED
    depth = matrix_flops(inside, found) / (2 * max(math.prod(shape), 1))
    return work.product_class(math.prod(shape[:-2]), shape[-2], shape[-1], round(depth))


def _convolution_class(inside: Computation, found: Instruction) -> str:
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
    return work.convolution_class(window, image, spread, dilated)


def _of_image(array: Array | None, labels: str) -> list[int]:
    """Sizes of the dimensions of an image, which are labelled by numbers."""
    if array is None or len(labels) != len(array.shape):
        return []
    return [n for _, n in sorted((label, n) for label, n in zip(labels, array.shape, strict=True) if label.isdigit())]


def _sizes(text: str, key: str) -> list[int]:
    """Numbers of a window by dimension, such as ``size=3x3``."""
    found = re.search(rf"\b{key}=([\dx]+)", text)
    return [int(n) for n in found.group(1).split("x")] if found else []


def _reduction_class(inside: Computation, found: Instruction) -> str:
    read = inside.operand(found, 0)
    order = read.minor_first if read is not None else ()
    return work.reduction_class(bool(order) and order[0] in found.numbers("dimensions"))
