"""How XLA:TPU convolves few images: it cuts each into eight pieces, which it takes as so many images.

In: equations and kernels, as the stages of ``backend`` hand them over. Out: rules of ``tpu``.

Seen in compiled modules (``SpaceToBatchConverter``): fewer than eight images of at least 16 columns, padding included,
are cut along the last dimension of the image. What is computed element by element of pieces is in pieces too, until it
meets what is not. Each convolution reads pieces with the columns that they share with their neighbours, an array beside
the one that everything else reads; the gradient of a kernel reads both, shifted by each column of the kernel. These
gradients are computed last, so all that they read is there at once.

Limits: shared columns are counted as one for each piece; where pieces meet others of another shape is not followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_plan.cost.emitter import Emitter, Inner
from remat_plan.cost.facts import Facts
from remat_plan.cost.fusion import Kernel
from remat_plan.cost.layout import is_kernel_gradient, window_and_image
from remat_plan.cost.rules import FUSIBLE, MOVES, Kind
from remat_plan.cost.steps import Step

PIECES = 8
"""How many pieces an image is cut into; so many images are not cut."""

_COLUMNS = 16
"""Images of fewer columns, padding included, are not cut."""

_SHIFTED = "shifted_pieces"


def order_of_pieces(images: int, features: int, columns: int) -> Inner:
    """Return the choices of the innermost dimensions of images in pieces, and how these are cut."""
    return (images, features, images, columns), (features, images, images, columns)


def in_pieces(state: Emitter, value: int) -> bool:
    """Tell whether a value is images in pieces."""
    return value in state.inner and len(state.inner[value][1][0]) > 2


def pieces(state: Emitter, facts: Facts, reads: list[int], library: int) -> tuple[list[int], int]:
    """Return what a convolution reads: pieces of its images, that of a kernel's gradient for each of its columns."""
    eqn, spec = facts.eqn, facts.eqn.params["dimension_numbers"].lhs_spec
    is_gradient = is_kernel_gradient(eqn)
    if len(reads) != 2 or not (any(in_pieces(state, r) for r in reads) if is_gradient else _is_cut(eqn)):
        return reads, library
    order = order_of_pieces(spec[is_gradient], spec[not is_gradient], spec[-1])
    image, size = reads[0], state.facts.bytes(eqn.invars[0].aval, order)
    copy = Step((image,), Kind.OPAQUE, "layout_copy", eqn)
    shared = state.emit(state.facts.number(("pieces", size)), copy, (size,))[0]
    if is_gradient:
        width = window_and_image(eqn)[1][-1]
        shared = state.emit(None, Step((shared, image), Kind.OPAQUE, _SHIFTED, eqn), (size * width,))[0]
    state.inner[shared] = len(spec), order
    return [shared, reads[1]], library


def _is_cut(eqn: Any) -> bool:
    """Tell whether a convolution that is no gradient of a kernel cuts the images that it reads."""
    spec, image = eqn.params["dimension_numbers"].lhs_spec, eqn.invars[0].aval.shape
    if len(spec) < 3 or image[spec[0]] >= PIECES or eqn.params["batch_group_count"] > 1:
        return False
    shared = (window_and_image(eqn)[0][-1] - 1) * eqn.params["rhs_dilation"][-1]
    columns = image[spec[-1]] + shared
    return columns >= _COLUMNS and shared <= -(-columns // PIECES)


def whole_images(state: Emitter, facts: Facts, reads: list[int], library: int) -> tuple[list[int], int]:
    """Return what an equation reads: images are put together again, unless it treats their pieces one by one."""
    cut = [r for r in reads if in_pieces(state, r)]
    if not cut or facts.name == "conv_general_dilated" or facts.kind == Kind.REDUCE:
        return reads, library
    made = {r: state.made_by.get(r) for r in reads}
    fills = [r for r, step in made.items() if step is not None and step.primitive == "broadcast_in_dim"]
    rank = len(facts.eqn.outvars[0].aval.shape)
    is_elementwise = facts.kind in FUSIBLE and facts.name not in MOVES and all(state.inner[r][0] == rank for r in cut)
    if is_elementwise and set(reads) <= {*cut, *fills}:
        return reads, library

    def whole(read: int) -> int:
        step = made[read]
        if read not in cut or step is None:
            return read
        size = state.facts.bytes(step.eqn.outvars[0].aval)
        copy = Step((read,), Kind.CHEAP, "layout_copy", facts.eqn, unary=True)
        return state.emit(state.facts.number(("whole", size)), copy, (size,))[0]

    return [whole(r) for r in reads], library


def kernel_gradients_last(kernels: list[Kernel], sizes: Sequence[int]) -> list[Kernel]:
    """Compute gradients of kernels last, and what is computed of them: where images are cut, before a barrier."""
    ordered: list[Kernel] = []
    late: list[Kernel] = []
    waiting: set[int] = set()
    for kernel in kernels:
        step = kernel.step
        if step.kind == Kind.BARRIER:
            ordered += late
            late, waiting = [], set()
        if step.primitive == _SHIFTED or not waiting.isdisjoint(kernel.reads):
            late.append(kernel)
            waiting.update(step.writes)
        else:
            ordered.append(kernel)
    return ordered + late
