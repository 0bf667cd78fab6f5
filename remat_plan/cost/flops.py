"""FLOPs of primitives that are more than one operation per element, by formula.

In: an equation. Out: its FLOPs; a multiply-add is two.

Sources: Golub and Van Loan, *Matrix Computations*, for linear algebra; 5 n log2 n for a Fourier transform (Van Loan).
Every formula is per matrix, transform or row, times how many there are.

Limits: iterations of ``eigh``, ``eig``, ``svd`` and ``schur`` depend on the data; typical counts are taken. A
``pallas_call`` without a cost estimate counts its body once a grid step (``rules``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

Formula = Callable[[Any], float]


def size(atom: Any) -> float:
    """Elements of an operand or a result; one where it is no array."""
    return float(math.prod(getattr(atom.aval, "shape", ()) or (1,)))


def dot_shape(eqn: Any) -> tuple[int, int, int, int]:
    """Return (batch, rows, columns, depth) of a ``dot_general``, a batch of products (rows x depth) (depth x columns).

    >>> import jax, jax.numpy as jnp
    >>> x, w = jnp.ones((8, 512, 768)), jnp.ones((768, 64))
    >>> dot_shape(jax.make_jaxpr(jnp.matmul)(x, w).eqns[-1])
    (1, 4096, 64, 768)
    """
    left, right = eqn.invars
    return product_shape(left.aval.shape, right.aval.shape, eqn.params["dimension_numbers"])


@functools.lru_cache(maxsize=4096)  # every timeline asks again
def product_shape(left: tuple[int, ...], right: tuple[int, ...], numbers: Any) -> tuple[int, int, int, int]:
    """``dot_shape`` by the shapes of the operands, and the dimensions ((contracted, contracted), (batch, batch))."""
    contract, batch = numbers
    rows, columns = [
        math.prod([shape[d] for d in range(len(shape)) if d not in (*contract[side], *batch[side])])
        for side, shape in enumerate((left, right))
    ]
    return math.prod([left[d] for d in batch[0]]), rows, columns, math.prod([left[d] for d in contract[0]])


def _contraction(eqn: Any, numbers: Any) -> float:
    depth = math.prod([eqn.invars[0].aval.shape[d] for d in numbers[0][0]])
    return 2.0 * size(eqn.outvars[0]) * depth


def _ragged_dot(eqn: Any) -> float:
    """Each row meets the matrix of its own group only; where rows are summed over, each group has its share of them."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    total = _contraction(eqn, numbers.dot_dimension_numbers)
    summed = set(numbers.lhs_ragged_dimensions) & set(numbers.dot_dimension_numbers[0][0])
    return total / eqn.invars[2].aval.shape[-1] if summed else total


def _rows_by_rows(eqn: Any) -> float:
    """Every row of one matrix times every row of another (or of the same one)."""
    return 2.0 * size(eqn.outvars[0]) * eqn.invars[0].aval.shape[-1]


def _attention(products: int) -> Formula:
    def flops(eqn: Any) -> float:
        """So many products of (queries x keys x head size); the layout is BTNH (0) or BNTH (1)."""
        keys = eqn.invars[1].aval.shape[1 + int(eqn.params.get("layout", 0))]
        return 2.0 * products * size(eqn.invars[0]) * keys

    return flops


def _convolution(eqn: Any) -> float:
    """Both group counts are in the shape of the kernel: its inputs are those of one group, per output feature.

    In a gradient with respect to the kernel, ``batch_group_count`` splits the batch, which is the "feature" summed
    over there; each output feature sums over its own group's part. The part is what the kernel has.
    """
    spec = eqn.params["dimension_numbers"].rhs_spec
    kernel = eqn.invars[1].aval.shape
    window = math.prod([kernel[d] for d in spec[2:]])
    # A dilated input (the gradient of a strided convolution) multiplies zeros, which no kernel computes.
    dilation = math.prod(eqn.params.get("lhs_dilation") or (1,))
    return 2.0 * size(eqn.outvars[0]) * window * kernel[spec[1]] / max(dilation, 1)


def _fft(eqn: Any) -> float:
    """Transforms of the last dimensions; of real numbers half of it."""
    length = math.prod(eqn.params["fft_lengths"])
    full = max(size(eqn.invars[0]), size(eqn.outvars[0]))
    real = eqn.invars[0].aval.dtype.kind != "c" or eqn.outvars[0].aval.dtype.kind != "c"
    return (2.5 if real else 5.0) * full * math.log2(max(length, 2))


def _sort(eqn: Any) -> float:
    length = eqn.invars[0].aval.shape[eqn.params["dimension"]]
    return 5.0 * eqn.params.get("num_keys", 1) * size(eqn.invars[0]) * math.log2(max(length, 2))


def _top_k(eqn: Any) -> float:
    k = eqn.params.get("k", 1)
    return 5.0 * size(eqn.invars[0]) * math.log2(max(k + 1, 2))


def _matrix(eqn: Any) -> tuple[float, float, float]:
    """How many matrices there are, and the longer and shorter side of one."""
    *batch, rows, columns = eqn.invars[0].aval.shape
    return float(math.prod(batch)), float(max(rows, columns)), float(min(rows, columns))


def _cubic(factor: float) -> Formula:
    def flops(eqn: Any) -> float:
        count, long, short = _matrix(eqn)
        return count * factor * long * short**2

    return flops


def _elimination(factor: float) -> Formula:
    """Column after column is taken out of what is left of the matrix."""

    def flops(eqn: Any) -> float:
        count, long, short = _matrix(eqn)
        return count * factor * short**2 * (long - short / 3)

    return flops


def _svd(eqn: Any) -> float:
    if not eqn.params.get("compute_uv", True):
        return _elimination(4.0)(eqn)
    count, long, short = _matrix(eqn)
    return count * (14 * long * short**2 + 8 * short**3)


def _per_result(factor: float) -> Formula:
    return lambda eqn: factor * sum([size(v) for v in eqn.outvars])


FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("dot_general", "scaled_dot"), lambda eqn: _contraction(eqn, eqn.params["dimension_numbers"])),
    "ragged_dot_general": _ragged_dot,
    **dict.fromkeys(("scaled_matmul", "scaled_matmul_wrapper"), _rows_by_rows),
    **{f"dot_product_attention{kind}_fwd{end}": _attention(2) for kind in ("", "_fp8") for end in ("", "_wrapper")},
    **{f"dot_product_attention{kind}_bwd{end}": _attention(5) for kind in ("", "_fp8") for end in ("", "_wrapper")},
    "conv_general_dilated": _convolution,
    "fft": _fft,
    "sort": _sort,
    **dict.fromkeys(("top_k", "approx_top_k"), _top_k),
    "cholesky": _cubic(1 / 3),
    "cholesky_update": lambda eqn: 6.0 * size(eqn.invars[0]),
    "lu": _elimination(1.0),
    **dict.fromkeys(("geqrf", "geqp3", "householder_product"), _elimination(2.0)),
    "qr": _elimination(4.0),
    "ormqr": lambda eqn: 4.0 * size(eqn.outvars[0]) * eqn.invars[1].aval.shape[-1],
    "svd": _svd,
    "eigh": _cubic(9.0),
    **dict.fromkeys(("eig", "schur"), _cubic(25.0)),
    "hessenberg": _cubic(10 / 3),
    "tridiagonal": _cubic(4 / 3),
    "symmetric_product": _rows_by_rows,
    "triangular_solve": lambda eqn: size(eqn.outvars[0]) * eqn.invars[0].aval.shape[-1],
    "tridiagonal_solve": _per_result(8.0),
    "lu_pivots_to_permutation": _per_result(2.0),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), _per_result(2.0)),
    "cumlogsumexp": _per_result(34.0),
    **dict.fromkeys(  # a scatter touches what it adds only
        [f"scatter{kind}" for kind in ("", "-add", "-sub", "-mul", "-min", "-max", "_add", "_mul")],
        lambda eqn: size(eqn.invars[2]),
    ),
    **dict.fromkeys(
        ("select_and_scatter", "select_and_scatter_add", "select_and_gather_add"),
        lambda eqn: sum([size(v) for v in (*eqn.invars, *eqn.outvars)]),
    ),
    "dynamic_update_slice": _per_result(0.0),
    **dict.fromkeys(("rng_bit_generator", "rng_uniform", "threefry2x32"), _per_result(60.0)),
    "gather": _per_result(1.0),
    "random_gamma": _per_result(400.0),
}
"""What is computed by primitives that never fuse into others, by name."""
