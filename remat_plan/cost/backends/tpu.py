"""XLA:TPU of libtpu for jaxlib 0.12: products fuse on both sides, arrays are tiled, kernels have several results.

In: equations and steps, as the stages of ``backend`` hand them over. Out: ``TPU``.

Arrays are padded to tiles of 8 x 128 elements (``LayoutAssignment``). Around convolutions batch and features are
innermost, in the order that pads less: 64 channels take the room of 128, images of three have the batch in the long
side. Batches of matrices have these innermost, rows that indices fetch or say where to add their last dimension. All
others may have any order, so the least padding is assumed; of arguments too.

Limits: what is kept in on-chip memory (128 MiB on a v5e) is not taken off, and what lies idle between buffers, up to a
tenth in small programs, is not added. Vectors are taken as they are, though a vector is padded to 1024 elements.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp

from remat_plan import _compat
from remat_plan.cost.backend import Backend, Rule
from remat_plan.cost.backends.tpu_moves import alone, merged_heads, strides, transforms, whole_concatenations
from remat_plan.cost.backends.tpu_pieces import (
    PIECES,
    in_pieces,
    kernel_gradients_last,
    order_of_pieces,
    pieces,
    whole_images,
)
from remat_plan.cost.copies import cheap_kind, may_repeat
from remat_plan.cost.emitter import Emitter, Inner
from remat_plan.cost.facts import Facts
from remat_plan.cost.fusion import Kernel
from remat_plan.cost.layout import is_kernel_gradient
from remat_plan.cost.rules import FUSIBLE, MOVES, Kind
from remat_plan.cost.steps import SCATTERS, Step
from remat_plan.graph.records import MATRIX_PRIMITIVES

LANES, SUBLANES = 128, 8
"""The tile: the innermost dimension is padded to lanes, the next one to sublanes, or to 1, 2 or 4 where it is short."""


def is_product(primitive: str) -> bool:
    """Products and convolutions, which are both convolutions here, may be the root of a fusion or inside one."""
    return primitive in MATRIX_PRIMITIVES


def takes_in(primitive: str) -> bool:
    """So may the products that a short Fourier transform is; nothing that follows is in a fusion with it."""
    return is_product(primitive) or primitive == "dft"


def tiled_bytes(aval: Any, inner: Inner | None = None) -> int:
    """Return the bytes of an array in tiles.

    Its two innermost dimensions are in any order; None where the compiler may choose.

    >>> import jax
    >>> tiled_bytes(jax.ShapeDtypeStruct((16, 56, 56, 64), "bfloat16"), ((0, 3), (3, 0))) / 2 / (16 * 56 * 56 * 64)
    2.0
    >>> tiled_bytes(jax.ShapeDtypeStruct((32, 6, 64, 197), "float32")) / 4 / (32 * 6 * 64 * 256)
    1.0
    """
    plain = _compat.aval_bytes(aval)
    shape = getattr(aval, "shape", ())
    if len(shape) < 2 or not plain:
        return plain
    return round(plain * _padding(tuple(shape), inner))


@functools.lru_cache(maxsize=4096)  # shapes: a large program has some hundreds
def _padding(shape: tuple[int, ...], inner: Inner | None) -> float:
    """Return padded elements over elements, in the order of the innermost dimensions that pads least."""
    found = []
    for minor, second, *cut in itertools.permutations(range(len(shape)), 2) if inner is None else inner:
        lengths = list(shape)
        if cut:
            images, columns = cut
            lengths[images], lengths[columns] = PIECES * shape[images], shape[columns] // PIECES + 1
        sublanes = min(SUBLANES, 1 << max(lengths[second] - 1, 0).bit_length())
        whole = math.prod(lengths) / math.prod(shape)
        found.append(whole * _share(lengths[minor], LANES) * _share(lengths[second], sublanes))
    return min(found)


def _share(length: int, multiple: int) -> float:
    return math.ceil(length / multiple) * multiple / length if length else 1.0


def tiled_image(state: Emitter, facts: Facts, reads: list[int], library: int) -> tuple[list[int], int]:
    """Return what a convolution reads: what enters the first one of a network is copied into tiles."""
    eqn = facts.eqn
    if len(reads) != 2 or reads[0] in state.inner:
        return reads, library
    size = tiled_bytes(eqn.invars[0].aval, _either(*eqn.params["dimension_numbers"].lhs_spec[:2]))
    made = Step((reads[0],), Kind.OPAQUE, "layout_copy", eqn)
    return [state.emit(state.facts.number(("tiles", size)), made, (size,))[0], reads[1]], library


def tiled_heads(state: Emitter, facts: Facts, reads: list[int], library: int) -> tuple[list[int], int]:
    """Return what a batch of products reads: what was transposed for it is copied into tiles, whole."""
    _, batches = facts.eqn.params["dimension_numbers"]
    if not batches[0] or len(reads) != 2:
        return reads, library
    found = []
    for read, atom, batch in zip(reads, facts.eqn.invars, batches, strict=True):
        others = [d for d in range(atom.aval.ndim) if d not in batch]
        if len(others) == 2:
            read = _transposed(state, facts.eqn, read, _either(*others))
        found.append(read)
    return found, library


def _transposed(state: Emitter, eqn: Any, read: int, inner: Inner) -> int:
    """Return what is read instead of a transposed value, or instead of a slice of one: a copy of it in tiles."""
    made = state.made_by.get(read)
    if made is not None and made.primitive == "slice":
        whole = _transposed(state, made.eqn, made.reads[0], inner)
        return read if whole == made.reads[0] else whole
    if made is None or made.primitive != "transpose":
        return read
    size = tiled_bytes(made.eqn.outvars[0].aval, inner)
    step = Step((read,), Kind.OPAQUE, "layout_copy", eqn)
    return state.emit(state.facts.number(("tiles", size)), step, (size,))[0]


def _either(first: int, second: int) -> Inner:
    return (first, second), (second, first)


def inner_dimensions(state: Emitter, facts: Facts, reads: list[int]) -> Inner | None:
    """Return the two innermost dimensions of a result next to convolutions or batches of products; None for others."""
    out = facts.eqn.outvars
    if len(out) != 1:
        return None
    if facts.name == "conv_general_dilated":
        spec = facts.eqn.params["dimension_numbers"].out_spec
        cut = reads and in_pieces(state, reads[0]) and not is_kernel_gradient(facts.eqn)
        return order_of_pieces(spec[0], spec[1], spec[-1]) if cut else _either(*spec[:2])
    rank = len(getattr(out[0].aval, "shape", ()))
    if rank > 1 and (facts.name == "gather" or facts.name in SCATTERS):
        return ((rank - 1, rank - 2),)
    if facts.name == "dot_general":
        _, (batch, _) = facts.eqn.params["dimension_numbers"]
        return _either(rank - 1, rank - 2) if batch and rank == len(batch) + 2 else None
    if facts.name == "transpose":
        return None
    return next((inner for r in reads if r in state.inner for n, inner in [state.inner[r]] if n == rank), None)


def whole_splits(steps: Sequence[Step], users: Sequence[Sequence[int]]) -> list[int]:
    """What is split into parts, as the gradient of a concatenation is, is written first.

    Not so numbers that are made complex: their real and imaginary parts stay two arrays.
    """
    parts = [sum(u >= 0 and steps[u].primitive == "slice" for u in readers) for readers in users]
    return [i for i, count in enumerate(parts) if count > 1 and steps[i].primitive != "complex"]


def fills_chip(step: Step, far_bytes: int, moved_bytes: int, written_bytes: int, cache_bytes: int) -> int:
    """Of what does not fit, the memory on the chip holds a part; element-wise kernels gain by it for results only."""
    far = far_bytes if is_product(step.primitive) else moved_bytes - written_bytes
    return max(far, moved_bytes - cache_bytes)


def narrowed_stacks(sizes: Sequence[int], cache_bytes: int) -> list[int]:
    """Return the bytes off the chip of the stacks whose rows a loop narrows: all rows are, before it, at once.

    Of weights in float32 that layers under a scan read in bfloat16 there is a copy in bfloat16 through both passes. As
    much as the memory on the chip holds is not counted.
    """
    whole = sum(sizes)
    share = max(whole - cache_bytes, 0) / max(whole, 1)
    return [int(share * size) for size in sizes]


def further_results(kernels: Sequence[Kernel], sizes: Sequence[int]) -> Mapping[int, list[int]]:
    """Return, by the position of a kernel, those of the kernels after it whose results it makes beside its own.

    A product that also sums its rows for the next normalisation, its columns for the gradient of a bias, or writes its
    activation beside itself, writes the array once, and the others do not read it. So do kernels side by side that read
    the same arrays: the four sums of the gradient of a BatchNorm, a normalised array and its positive part.

    A kernel goes to the one that makes the last of what it reads, else to the first that reads the largest array it
    reads; XLA weighs the memory on the chip first. For seconds only: in memory the results are what they were.
    """
    maker: dict[int, int] = {}
    found: dict[int, list[int]] = {}
    readers: dict[tuple[int, int], int] = {}
    for position, kernel in enumerate(kernels):
        maker.update(dict.fromkeys(kernel.step.writes, position))
        elements, step = _elements(kernel), kernel.step
        if not elements or not (step.kind == Kind.REDUCE or (step.kind in FUSIBLE and step.primitive not in MOVES)):
            continue
        made = max([maker.get(value, -1) for value in kernel.reads], default=-1)
        most = max([sizes[value] for value in kernel.reads], default=0)
        largest = [(value, elements) for value in kernel.reads if sizes[value] == most]
        host = made if made >= 0 and _elements(kernels[made]) == elements else None
        if host is not None and not (kernels[host].step.kind in FUSIBLE or is_product(kernels[host].step.primitive)):
            host = None
        if host is None:
            host = next((readers[key] for key in largest if made < readers.get(key, -1)), None)
        if host is None or not is_product(kernels[host].step.primitive):
            for key in largest:
                readers.setdefault(key, position if host is None else host)
        if host is not None:
            found.setdefault(host, []).append(position)
            if step.kind != Kind.REDUCE:  # a sum is there when all of its kernel is done
                maker.update(dict.fromkeys(kernel.step.writes, host))
    return found


def softmax_sums(kernels: Sequence[Kernel], sizes: Sequence[int]) -> Mapping[int, list[int]]:
    """Return, by the position of a kernel, the sums of exponentials that it makes beside its own result.

    Where exponentials are divided by their sum and then narrowed for a product, this does not compute them: they are an
    array, in the place of what they are of, and the kernel that makes it has the maxima and the sums of rows too. In
    other softmaxes each reader computes them again, and the sums are a kernel by themselves.
    """
    maker: dict[int, int] = {}
    readers: dict[int, list[Kernel]] = {}
    for position, kernel in enumerate(kernels):
        maker.update(dict.fromkeys(kernel.step.writes, position))
        for value in kernel.reads:
            readers.setdefault(value, []).append(kernel)
    found: dict[int, list[int]] = {}
    for position, kernel in enumerate(kernels):
        if kernel.step.kind != Kind.REDUCE or not kernel.reads or not _item_bytes(kernel, "exp"):
            continue
        logits = max(kernel.reads, key=sizes.__getitem__)
        others = [k for k in readers[logits] if k.step.kind != Kind.REDUCE]
        same = all(_item_bytes(k, "exp") and not _item_bytes(k, "log") for k in others)
        if logits in maker and same and any(_narrows_weights(k, kernel.reads) for k in others):
            found.setdefault(maker[logits], []).append(position)
    return found


def _narrows_weights(kernel: Kernel, read: Sequence[int]) -> bool:
    """Whether a product reads the weights of a softmax, divided and then narrowed.

    Beside what the exponentials are ``read`` from it has their sums and its other operand; the gradient of a loss has
    more.
    """
    wide = [(work, flops) for work, flops in kernel.work.items() if work.startswith("exp ")]
    divided = all(kernel.work.get(f"div {work[4:]}", 0.0) >= flops for work, flops in wide)
    own = set(kernel.reads).difference(read)
    beside = len(own) == 2 and len(own) + len(read) == len(kernel.reads)
    return divided and beside and 0 < _item_bytes(kernel, "product") < _item_bytes(kernel, "exp")


def _item_bytes(kernel: Kernel, kind: str) -> int:
    """Bytes of an element of what a kernel does one kind of work on; 0 where it does none."""
    types = [work.rpartition(" ")[2] for work in kernel.work if work.startswith(f"{kind} ")]
    return min([jnp.dtype(name).itemsize for name in types], default=0)


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


TPU = Backend(
    (
        Rule("kind", "repeats_from_bytes", "seen in compiled modules", partial(cheap_kind, 1)),
        Rule("repeats", "weighs_copies_from_bytes", "seen in compiled modules", partial(may_repeat, 4)),
        Rule("kind", "moves_alone", "seen in compiled modules", alone, frozenset({"gather", "pad"})),
        Rule("lower", "moves_alone", "seen in compiled modules", strides, frozenset({"slice"})),
        Rule("lower", "transforms", "DFTs are products", transforms, frozenset({"fft"})),
        Rule("written", "whole_concatenations", "long rows, many parts", whole_concatenations),
        Rule("written", "whole_splits", "gradients of concatenations", whole_splits),
        Rule("written", "heads", "LayoutAssignment", merged_heads),
        Rule("operands", "heads", "LayoutAssignment", tiled_heads, frozenset({"dot_general"})),
        Rule("takes_in", "fuses_operands", "products are convolutions, which fuse", takes_in),
        Rule("follows", "epilogues", "output fusions", lambda product, reader: is_product(product)),
        Rule("bytes", "tiles", "LayoutAssignment", tiled_bytes),
        Rule("operands", "pieces", "SpaceToBatchConverter", pieces, frozenset({"conv_general_dilated"})),
        Rule("operands", "pieces", "SpaceToBatchConverter", whole_images),
        Rule("operands", "tiles", "LayoutAssignment", tiled_image, frozenset({"conv_general_dilated"})),
        Rule("inner", "tiles", "LayoutAssignment", inner_dimensions),
        Rule("hoists", "narrowed_stacks", "seen in compiled modules", narrowed_stacks),
        Rule("order", "pieces", "SpaceToBatchConverter", kernel_gradients_last),
        Rule("joins", "further_results", "MultiOutputFusion", further_results),
        Rule("joins", "softmax_sums", "seen in compiled modules", softmax_sums),
        Rule("apart", "writes_over", "seen in compiled modules", lambda kernel: True),
        Rule("far", "fills_chip", "seen in the compiler's cycles", fills_chip),
    ),
    reuses_outputs=False,
)
