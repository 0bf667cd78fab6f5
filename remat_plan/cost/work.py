"""What kind of work an equation is, for rates that were measured.

In: an equation. Out: the name of a class of work, such as ``"product large float32"`` or ``"exp float32"``; equations
of one class run at about one rate of FLOPs.

Products are told apart by shape: a batch of small ones (attention) and thin ones run at other rates than large ones.
Convolutions are told apart by what they are in the gradient step: forward, with kernels of one element, gradients with
respect to both kinds of kernels (whose window is as large as an image), of strided ones (whose input is dilated), and
those of images that are smaller than the kernel. Reductions
are told apart by whether rows are summed, or columns. All else is told by name where it costs more than an addition.

Limits: the shapes that rates are measured on stand for all of their class.
"""

from __future__ import annotations

import math
from typing import Any

from remat_plan.cost.rules import EXPENSIVE, REDUCES
from remat_plan.graph.records import MATRIX_PRIMITIVES

THIN = 128
"""A product with a dimension of at most so many elements is thin: its operands are read more often than multiplied."""

_LARGE_WINDOW = 8
"""A convolution over a window of more elements a dimension is the gradient of a kernel."""

_SMALL_WINDOW = 3
"""An image smaller than a kernel of this size runs at a hundredth of the rate on XLA:CPU (2 x 2 under 3 x 3)."""

ELEMENTWISE = "element-wise"
"""The class of additions and the like."""


def is_product(work: str) -> bool:
    """Tell whether a class of work is one of matrix products and convolutions."""
    return work.startswith(("product", "convolution"))


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
        kind = _product(eqn)
    elif name in MATRIX_PRIMITIVES - {"conv_general_dilated"}:
        kind = "product batched"
    elif name == "conv_general_dilated":
        kind = _convolution(eqn)
    elif name in REDUCES:
        kind = _reduction(eqn)
    else:
        kind = name if name in EXPENSIVE or name.startswith("scatter") else ELEMENTWISE
    return f"{kind} {getattr(aval, 'dtype', '')}".strip()


def _product(eqn: Any) -> str:
    (contracted, _), (batch, _) = eqn.params["dimension_numbers"]
    left, right = (atom.aval.shape for atom in eqn.invars[:2])
    batched = math.prod([left[d] for d in batch])
    depth = math.prod([left[d] for d in contracted])
    rows = math.prod(left) // max(batched * depth, 1)
    columns = math.prod(right) // max(batched * depth, 1)
    if batched > 1:
        return "product batched"
    return "product thin" if min(rows, columns, depth) <= THIN else "product large"


def _convolution(eqn: Any) -> str:
    spec = eqn.params["dimension_numbers"]
    window = [eqn.invars[1].aval.shape[d] for d in spec.rhs_spec[2:]]
    image = max([eqn.outvars[0].aval.shape[d] for d in spec.out_spec[2:]], default=1)
    if max(window, default=1) >= _LARGE_WINDOW or max(eqn.params["rhs_dilation"], default=1) > 1:
        return "convolution kernel-gradient" if image > 1 else "convolution pointwise-kernel-gradient"
    if 1 < image < max(window, default=1) <= _SMALL_WINDOW:
        return "convolution narrow"
    if max(eqn.params["lhs_dilation"], default=1) > 1:
        return "convolution dilated"
    return "convolution pointwise" if max(window, default=1) == 1 else "convolution window"


def _reduction(eqn: Any) -> str:
    axes = eqn.params.get("axes")
    if axes is None:
        return "reduce window"
    last = len(eqn.invars[0].aval.shape) - 1
    return "reduce rows" if last in axes else "reduce columns"
