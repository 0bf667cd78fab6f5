"""What single HLO operations compute: FLOPs of products, convolutions, element-wise work.

In: an ``Instruction`` and its ``Computation``. Out: FLOPs; a multiply-add is two, a transcendental function eight, as
in ``cost.rules``.

Of library calls (cuBLAS, cuDNN, oneDNN) products and convolutions are known by their shapes, attention by what its
config says of its scores; a Pallas kernel for a TPU says itself what it costs, where its author does.

Limits: padding counts as work in convolutions. What other library calls compute is not known.
"""

from __future__ import annotations

import math
import re

from remat_plan.compiled.hlo import Array, Computation, Instruction

_SIMPLE = frozenset(
    "add subtract multiply negate abs maximum minimum compare select and or xor not clamp sign floor ceil "
    "round-nearest-afz round-nearest-even is-finite convert shift-left shift-right-arithmetic shift-right-logical "
    "count-leading-zeros popcnt reduce-precision complex real imag stochastic-convert map".split()
)
_TRANSCENDENTAL = frozenset(
    "exponential exponential-minus-one log log-plus-one tanh logistic sine cosine tan atan2 erf rsqrt sqrt cbrt "
    "divide remainder power acos acosh asin asinh atanh cosh sinh rng rng-bit-generator".split()
)
_TRANSCENDENTAL_FLOPS = 8.0
"""FLOPs of one such function; vector units take several operations for it."""

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
    if opcode in _TRANSCENDENTAL:
        return _TRANSCENDENTAL_FLOPS * elements
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
    sizes = [int(n) for n in re.findall(r"\d+", found.word("window").partition("size=")[2].split(" ")[0])]
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
    dilated = re.search(r"lhs_dilate=([\dx]+)", found.attributes)
    return math.prod(int(n) for n in dilated.group(1).split("x")) if dilated else 1


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
