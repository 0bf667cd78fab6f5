"""What kind of work an equation is, for rates that were measured.

In: an equation, or the shapes that tell (of operations of a compiled module, which ``compiled.operations`` reads).
Out: the name of a class of work, such as ``"product large float32"`` or ``"exp float32"``; work of one class runs at
about one rate of FLOPs.

Products are told apart by shape: a batch of small ones (attention), single small ones and thin ones run at other rates
than large ones.
Convolutions are told apart by what they are in the gradient step: forward, with kernels of one element, gradients with
respect to both kinds of kernels (whose window is as large as an image), of strided ones (whose input is dilated), and
those of images that are smaller than the kernel; and those that XLA:CPU finds in another order than NHWC in a loop,
which no library computes. Reductions are told apart by whether rows are summed, or columns. All else is told by name
where it costs more than an addition.

Limits: the shapes that rates are measured on stand for all of their class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_plan.cost.flops import dot_shape
from remat_plan.cost.layout import window_and_image
from remat_plan.cost.rules import EXPENSIVE, REDUCES
from remat_plan.graph.records import MATRIX_PRIMITIVES

THIN = 128
"""A product with a dimension of at most so many elements is thin: its operands are read more often than multiplied."""

_SMALL_PRODUCT = 1 << 23
"""A product of at most so many multiplications, as the steps of recurrent networks have them, is one core's work on
XLA:CPU (128 x 128 x 512 at 52 to 81 GFLOP/s with two cores, 256 x 128 x 512 at 99 to 129)."""

_SHALLOW = 32
"""A small product whose sums have at most so many terms reaches half of that: its result is written more often than it
is computed (128 x 512 of 16, 32, 64 and 128 terms at 27, 30, 54 and 85 GFLOP/s)."""

_LARGE_WINDOW = 8
"""A convolution over a window of more elements a dimension is the gradient of a kernel."""

_SMALL_WINDOW = 3
"""An image smaller than a kernel of this size runs at a hundredth of the rate on XLA:CPU (2 x 2 under 3 x 3)."""

ELEMENTWISE = "element-wise"
"""The class of additions and the like."""

BATCHED = "product batched"
"""The class of a batch of products, as attention has them."""

SMALL = "product small"
"""The class of products that are too small for several cores."""

SHALLOW = "product shallow"
"""The class of those of them with few terms in a sum, as the gradients of weights by a few examples are."""

NARROW = "convolution narrow"
"""The class of convolutions of images that are smaller than the kernel."""

REORDERED = "convolution reordered"
"""The class of convolutions in a loop or a branch whose operands or result XLA:CPU would first copy to another order.

It does so in the main computation only (``ConvCanonicalization`` of jaxlib 0.12); elsewhere each element is summed up
by itself, at a hundredth of the rate."""

WINDOW_SUM = "reduce window"
"""The class of reductions over windows, as poolings are."""


def is_product(work: str) -> bool:
    """Tell whether a class of work is one of matrix products and convolutions."""
    return work.startswith(("product", "convolution"))


def product_class(batch: int, rows: int, columns: int, depth: int) -> str:
    """Return the class of a batch of products (rows x depth) (depth x columns).

    >>> [product_class(1, 2048, 512, 64), product_class(1, 64, 512, 128), product_class(1, 128, 512, 32)]
    ['product thin', 'product small', 'product shallow']
    """
    if batch > 1:
        return BATCHED
    if rows * columns * depth <= _SMALL_PRODUCT:
        return SHALLOW if depth <= _SHALLOW else SMALL
    return "product thin" if min(rows, columns, depth) <= THIN else "product large"


def convolution_class(window: Sequence[int], image: Sequence[int], is_spread: bool, is_dilated: bool) -> str:
    """Return the class of a convolution, by the sizes of its kernel and of its result in the image's dimensions.

    The elements of the kernel may be spread (``rhs_dilation``), those of the input dilated (``lhs_dilation``).

    >>> convolution_class((3, 3), (32, 32), False, False)
    'convolution window'
    """
    widest, largest = max(window, default=1), max(image, default=1)
    if widest >= _LARGE_WINDOW or is_spread:
        return "convolution kernel-gradient" if largest > 1 else "convolution pointwise-kernel-gradient"
    if 1 < largest < widest <= _SMALL_WINDOW:
        return NARROW
    if is_dilated:
        return "convolution dilated"
    return "convolution pointwise" if widest == 1 else "convolution window"


def reduction_class(sums_rows: bool) -> str:
    """Return the class of a reduction, by whether the elements that it combines are neighbours in memory."""
    return "reduce rows" if sums_rows else "reduce columns"


def with_type(kind: str, dtype: object) -> str:
    """Return the full name of a class: with the type that is computed in.

    >>> with_type("exp", "float32")
    'exp float32'
    """
    return f"{kind} {dtype}".strip()


def work_class(eqn: Any) -> str:
    """Return the class of work of an equation, with the type that it computes in.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(lambda x: jnp.exp(x @ x))(jnp.ones((512, 512)))
    >>> [work_class(eqn) for eqn in jaxpr.eqns]
    ['product large float32', 'exp float32']
    """
    name = eqn.primitive.name
    aval = eqn.invars[0].aval if eqn.invars else eqn.outvars[0].aval
    if name == "dot_general":
        kind = product_class(*dot_shape(eqn))
    elif name in MATRIX_PRIMITIVES - {"conv_general_dilated"}:
        kind = BATCHED
    elif name == "conv_general_dilated":
        kind = _convolution(eqn)
    elif name in REDUCES:
        axes, rank = _reduced(eqn)
        kind = WINDOW_SUM if eqn.params.get("axes") is None else reduction_class(rank - 1 in axes)
    else:
        kind = name if name in EXPENSIVE or name.startswith("scatter") else ELEMENTWISE
    return with_type(kind, getattr(aval, "dtype", ""))


def reduces_rows(eqn: Any) -> bool:
    """Tell whether an equation reduces each row to a number: along the last axis, and not along all axes.

    >>> import jax, jax.numpy as jnp
    >>> jaxpr = jax.make_jaxpr(lambda x: (x.sum(1), x.sum(0), x.sum()))(jnp.ones((8, 4)))
    >>> [reduces_rows(eqn) for eqn in jaxpr.eqns]
    [True, False, False]
    """
    axes, rank = _reduced(eqn)
    return rank - 1 in axes and len(axes) < rank


def _reduced(eqn: Any) -> tuple[tuple[int, ...], int]:
    """The axes that an equation reduces, none where it reduces windows, and the rank of what it reads."""
    rank = len(getattr(eqn.invars[0].aval, "shape", ())) if eqn.invars else 0
    return tuple(eqn.params.get("axes") or ()), rank


def _convolution(eqn: Any) -> str:
    spread, dilated = (max(eqn.params[key], default=1) > 1 for key in ("rhs_dilation", "lhs_dilation"))
    return convolution_class(*window_and_image(eqn), spread, dilated)
