"""What one equation costs: FLOPs, and how XLA's fusion treats its primitive.

In: an equation (primitive, parameters, types of its inputs and outputs).
Out: its FLOPs (trip counts included) and its fusion kind.

The fusion kinds follow XLA's instruction fusion: element-wise chains and data movement are computed inside
the kernel that consumes them, dots and convolutions read and write memory. Unknown primitives are assumed
opaque (never fused) and cost their output size times ten; a ``while`` loop has an unknown trip count, which
warns once and is assumed to be 100.

Limits: FLOPs of linear algebra (cholesky, qr, ...) are cubic estimates.
"""

from __future__ import annotations

import math
import warnings
from enum import IntEnum
from typing import Any

from remat_plan import _compat


class Kind(IntEnum):
    """How a primitive behaves in XLA's fusion."""

    ALIAS = 0  # same buffer as its input: reshape, name, ...
    CHEAP = 1  # element-wise or movement; may be computed again in every consumer
    EXPENSIVE = 2  # element by element, computed once: exp, tanh, div, gather, ...
    REDUCE = 3  # fuses its producers, is itself materialised
    OPAQUE = 4  # dot, convolution, sort, scatter, ...: reads and writes memory
    REGION = 5  # scan, while, cond, ...: has jaxprs of its own
    BARRIER = 6  # optimization_barrier, the border of a checkpointed segment: nothing is fused across it


ALIASES = frozenset(
    "reshape squeeze expand_dims name stop_gradient copy copy_p sharding_constraint reduce_precision mesh_cast "
    "layout_constraint reshard debug_print debug_callback pvary pbroadcast custom_lin device_put random_clone".split()
)
CHEAP = frozenset(
    "add sub mul neg abs sign max min and or xor not select_n clamp eq ne lt le gt ge eq_to le_to lt_to "
    "floor ceil round is_finite convert_element_type integer_pow square one_minus_square add_any "
    "broadcast_in_dim iota slice pad rev concatenate transpose dynamic_slice real imag complex conj "
    "shift_left clz nextafter shift_right_logical shift_right_arithmetic bitcast_convert_type "
    "population_count split unstack random_wrap random_unwrap zeros_like empty empty2 create_token copysign "
    "platform_index".split()
)
EXPENSIVE = frozenset(
    "exp exp2 expm1 log log2 log1p tanh logistic sin cos tan asin acos atan atan2 sinh cosh asinh acosh "
    "atanh erf erfc erf_inv rsqrt sqrt cbrt div rem pow lgamma digamma igamma igammac random_bits "
    "threefry2x32 gather polygamma random_fold_in random_seed random_split".split()
)
REDUCES = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin reduce "
    "reduce_window reduce_window_sum reduce_window_max reduce_window_min".split()
)
REGIONS = frozenset(
    "scan while cond shard_map pallas_call xla_pmap custom_root custom_linear_solve linear_solve".split()
)

MOVES = frozenset(
    "broadcast_in_dim iota slice pad rev concatenate reshape transpose dynamic_slice split unstack layout_copy "
    "zeros_like empty empty2".split()
)
"""Cheap primitives that compute nothing; each output element is an input element, elsewhere."""

_TRANSCENDENTAL_FLOPS = 8.0
_CUBIC = frozenset(
    "cholesky lu qr svd eigh eig schur triangular_solve householder_product hessenberg tridiagonal".split()
)
UNKNOWN_TRIP_COUNT = 100
_warned: set[str] = set()


def warn_once(key: str, message: str) -> None:
    """Warn about a cost that had to be assumed, once per process and key."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, UserWarning, stacklevel=3)


def kind_of(eqn: Any) -> Kind:
    """Return the fusion kind of an equation."""
    name = eqn.primitive.name
    if name == "reshape" and eqn.params.get("dimensions") is not None:
        return Kind.CHEAP  # it transposes first
    if name in ALIASES:
        return Kind.ALIAS
    if name == "optimization_barrier":
        return Kind.BARRIER
    if name == "max" and _compat.is_literal(eqn.invars[0]) and eqn.invars[0].val == -math.inf:
        return Kind.ALIAS  # softmax starts its maximum with -inf
    if name == "convert_element_type" and eqn.invars[0].aval.dtype == eqn.params.get("new_dtype"):
        return Kind.ALIAS
    if name == "broadcast_in_dim" and eqn.outvars[0].aval.size == getattr(eqn.invars[0].aval, "size", -1) > 1:
        return Kind.ALIAS
    if name in CHEAP:
        return Kind.CHEAP
    if name in EXPENSIVE:
        return Kind.EXPENSIVE
    if name in REDUCES:
        return Kind.REDUCE
    if name in REGIONS:
        return Kind.REGION
    return Kind.OPAQUE


def _size(atom: Any) -> float:
    return float(math.prod(getattr(atom.aval, "shape", ()) or (1,)))


def _dot_flops(eqn: Any) -> float:
    (contract, _), _batch = eqn.params["dimension_numbers"]
    depth = math.prod(eqn.invars[0].aval.shape[d] for d in contract)
    return 2.0 * _size(eqn.outvars[0]) * depth


def _conv_flops(eqn: Any) -> float:
    spec = eqn.params["dimension_numbers"].rhs_spec
    kernel = eqn.invars[1].aval.shape
    window = math.prod(kernel[d] for d in spec[2:])
    # A dilated input (the gradient of a strided convolution) multiplies zeros, which no kernel computes.
    dilation = math.prod(eqn.params.get("lhs_dilation") or (1,))
    groups = eqn.params.get("batch_group_count", 1)
    return 2.0 * _size(eqn.outvars[0]) * window * kernel[spec[1]] / max(dilation, 1) / max(groups, 1)


def _window_flops(eqn: Any) -> float:
    return _size(eqn.outvars[0]) * math.prod(eqn.params.get("window_dimensions", (1,)))


def region_flops(eqn: Any) -> float:
    """Return the FLOPs of an equation with jaxprs inside: trip count times body; a cond's dearest branch."""
    name = eqn.primitive.name
    inner = [jaxpr_flops(sub) for sub in _compat.sub_jaxprs(eqn.params)]
    if not inner:
        warn_once(name, f"remat_plan: the cost of primitive {name!r} is not known; it is assumed to be dear.")
        return 1e3 * sum(_size(v) for v in eqn.outvars)
    return max(inner) if name == "cond" else trip_count(eqn) * sum(inner)


def trip_count(eqn: Any) -> float:
    """Return how many steps a loop has; warn where that is not known."""
    if eqn.primitive.name == "scan":
        return float(eqn.params["length"])
    if eqn.primitive.name == "while":
        warn_once(
            "while",
            f"remat_plan: a while loop has no known trip count; {UNKNOWN_TRIP_COUNT} steps are assumed.",
        )
        return float(UNKNOWN_TRIP_COUNT)
    return 1.0


def jaxpr_flops(jaxpr: Any) -> float:
    """Return the FLOPs of all equations of a jaxpr, calls and regions included."""
    inner, _ = _compat.open_jaxpr(jaxpr)
    return sum(eqn_flops(eqn) for eqn in inner.eqns)


def eqn_flops(eqn: Any) -> float:
    """Return the FLOPs of one equation (a multiply-add is two).

    Matrix products and convolutions count 2·M·N·K; element-wise primitives one per element, transcendental
    ones eight; data movement none.
    """
    name = eqn.primitive.name
    if name == "dot_general":
        return _dot_flops(eqn)
    if name == "conv_general_dilated":
        return _conv_flops(eqn)
    kind = kind_of(eqn)
    if kind in (Kind.ALIAS, Kind.BARRIER):
        return 0.0
    if kind == Kind.REGION:
        return region_flops(eqn)
    out = sum(_size(v) for v in eqn.outvars)
    if kind == Kind.CHEAP:
        return 0.0 if name in MOVES else out
    if kind == Kind.EXPENSIVE:
        if name == "gather":
            return out
        return (_TRANSCENDENTAL_FLOPS if name != "threefry2x32" else 60.0) * out
    if kind == Kind.REDUCE:
        return _window_flops(eqn) if "window" in name else sum(_size(v) for v in eqn.invars)
    subs = _compat.sub_jaxprs(eqn.params)
    if subs and (name in _compat.INLINE_CALLS or name in _compat.REMAT_CALLS or name.startswith("custom_")):
        return jaxpr_flops(subs[0])
    if name == "dynamic_update_slice":
        return out
    if name.startswith(("scatter", "select_and")):
        return out + sum(_size(v) for v in eqn.invars)
    if name.startswith("cum"):
        return 2.0 * out
    if name in ("sort", "top_k", "approx_top_k", "fft"):
        largest = max((_size(v) for v in eqn.invars), default=1.0)
        return 5.0 * largest * max(1.0, math.log2(largest + 1))
    if name in _CUBIC:
        return max((_size(v) for v in eqn.invars), default=1.0) ** 1.5
    if subs:
        return sum(jaxpr_flops(sub) for sub in subs)
    warn_once(name, f"remat_plan: the cost of primitive {name!r} is not known; it is assumed to be dear.")
    return 10.0 * (out + sum(_size(v) for v in eqn.invars))
