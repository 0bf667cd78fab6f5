"""XLA:GPU of jaxlib 0.12: work is repeated where that moves less memory, convolutions are cuDNN's.

In: equations and steps, as the stages of ``backend`` hand them over. Out: ``GPU``.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from remat_plan.cost.backend import Backend, Rule
from remat_plan.cost.backends.gpu_products import calls_library, merge_products, row_workspace
from remat_plan.cost.backends.gpu_rows import launched_with_readers
from remat_plan.cost.backends.gpu_siblings import beside_siblings, made_as_one
from remat_plan.cost.backends.gpu_sums import fed_in
from remat_plan.cost.copies import cheap_kind, may_repeat
from remat_plan.cost.emitter import Emitter
from remat_plan.cost.facts import Facts
from remat_plan.cost.flops import dot_shape
from remat_plan.cost.layout import is_kernel_gradient
from remat_plan.cost.steps import SCATTERS, Step

_CONVOLUTION = frozenset({"conv_general_dilated"})
_PRODUCT = frozenset({"dot_general"})

_TILES, _TERMS, _ALIGNED_BYTES = 198, 600, 16
"""XLA makes one and a half tiles of 64 x 128 elements for each core of an H100, by parts of the sums that have so many
terms and begin at such addresses: read off modules of products of 512 x 768 to 4096 x 768, of 1220 to 50257 terms."""


def takes_after(product: str, reader: str) -> bool:
    """Tell whether cuDNN's convolution adds a bias or another array, and cuts off what is negative.

    It knows no factors, such as those of a normalisation. Sums of gradients, ``add_any``, are added by no other call.
    """
    return product in _CONVOLUTION and reader in ("add", "max")


def adds_product(step: Step, reader: Step) -> bool:
    """Tell whether cuBLAS adds a product to what else a sum reads: both are as large as the sum, of 32 bits or more."""
    if step.primitive != "dot_general" or reader.primitive not in ("add", "add_any") or len(reader.reads) != 2:
        return False
    made, *summed = (step.eqn.outvars[0].aval, *[a.aval for a in reader.eqn.invars])
    return made.dtype.itemsize >= 4 and all(a.dtype == made.dtype and a.size == made.size for a in summed)


def padded_sums(state: Emitter, facts: Facts, reads: list[int], library: int) -> tuple[list[int], int]:
    """Return what a product reads whose sums are made in parts: copies with zeros, where parts do not divide them.

    So it is where few rows of a loss are multiplied by a vocabulary of 50257 words: a copy of all of the matrix each
    time.
    """
    batch, rows, columns, depth = dot_shape(facts.eqn)
    tiles = max(batch * math.ceil(rows / 64) * math.ceil(columns / 128), 1)
    parts = min(2 ** math.ceil(math.log2(max(_TILES / tiles, 1))), 2 ** int(math.log2(max(depth // _TERMS, 1))))
    unit = parts * _ALIGNED_BYTES // facts.eqn.invars[0].aval.dtype.itemsize
    if parts == 1 or len(reads) != 2 or depth % unit == 0:
        return reads, library
    grown = -(-depth // unit) * unit
    key = state.facts.number(("padded", unit, *facts.eqn.params["dimension_numbers"][0]))
    return [state.move(facts.eqn, "pad", (read,), key, state.sizes[read] * grown // depth) for read in reads], 0


def kernel_copies(state: Emitter, facts: Facts, reads: list[int], library: int) -> tuple[list[int], int]:
    """Return what a convolution reads: an image as cuDNN pads it, and its kernel copied, output features first.

    Forward and backward pass share the copy. cuDNN has no call for the gradient of the kernel of a transposed
    convolution, so that is a forward one of transposed copies; and it has another algorithm for that of the input.
    """
    eqn = facts.eqn
    if len(reads) != 2:
        return reads, library
    left, right = reads
    source = state.made_by.get(right)
    if is_kernel_gradient(eqn) and max(eqn.params["lhs_dilation"], default=1) > 1:
        left, right = [state.copy(eqn, read, (), (), state.sizes[read]) for read in (left, right)]
    elif is_kernel_gradient(eqn):
        left = _padded(state, eqn, left)
    elif source is not None and source.primitive == "rev":  # of the gradient of the input
        right = state.copy(eqn, source.reads[0], (), (), state.sizes[right])
    else:
        left, right = _padded(state, eqn, left), state.copy(eqn, right, (), (), state.sizes[right])
    return [left, right], library


def _padded(state: Emitter, eqn: Any, read: int) -> int:
    """Return the operand of a convolution as cuDNN reads it: with zeros between its elements, and of uneven padding.

    Strided convolutions are padded more on one side, transposed ones read elements that are set apart.
    """
    before = eqn.invars[0].aval.shape
    shape = list(before)
    spaces = eqn.params["dimension_numbers"].lhs_spec[2:], eqn.params["padding"], eqn.params["lhs_dilation"]
    for dimension, (low, high), apart in zip(*spaces, strict=True):
        if low < 0 or high < 0:  # elements that are left out are no array
            continue
        even = 2 * min(low, high) if apart == 1 else 0
        shape[dimension] = (before[dimension] - 1) * apart + 1 + low + high - even
    if tuple(shape) == before:
        return read
    size = state.sizes[read] * math.prod(shape) // math.prod(before)
    return state.move(eqn, "pad", (read,), state.facts.number(("padded", *shape)), size)


GPU = Backend(
    (
        Rule("kind", "repeats_from_bytes", "PriorityFusion", partial(cheap_kind, 4)),
        Rule("repeats", "weighs_copies_from_bytes", "PriorityFusion", partial(may_repeat, 1)),
        Rule("repeats", "starved_sums", "GpuPerformanceModel", fed_in),
        Rule("operands", "kernel_copies", "GpuLayoutAssignment", kernel_copies, _CONVOLUTION),
        Rule("operands", "padded_sums", "SplitkRewriter", padded_sums, _PRODUCT),
        Rule("whole", "merges_products", "DotMerger", merge_products),
        Rule("workspace", "row_workspace", "DynamicSliceFusionRewriter", row_workspace),
        Rule("apart", "tuples", "GemmRewriter, ConvRewriter, HeapSimulator", calls_library),
        Rule("follows", "epilogues", "CudnnFusedConvRewriter", takes_after),
        Rule("takes_in", "scatters", "input fusions", SCATTERS.__contains__),
        Rule("adds", "adds_products", "GemmRewriter", adds_product),
        Rule("order", "siblings", "MultiOutputFusion", beside_siblings),
        Rule("joins", "siblings", "MultiOutputFusion", made_as_one),
        Rule("rows", "row_kernels", "SoftmaxRewriterTriton", launched_with_readers),
        Rule("stacks", "clears_stacks", "seen in loops of compiled modules", lambda late: True),
    ),
)
"""Expensive steps of 16 bits are kept: they halve the bytes that a kernel waits for."""
