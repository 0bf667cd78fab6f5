"""What one equation costs: FLOPs, and how XLA's fusion treats its primitive.

In: an equation (primitive, parameters, types of its inputs and outputs).
Out: its FLOPs (trip counts included) and its fusion kind.

The fusion kinds follow XLA's instruction fusion: element-wise chains and data movement are computed inside
the kernel that consumes them, dots and convolutions read and write memory. A primitive
that these tables do not know is told by what it holds: a jaxpr of its operands' and results' types is a call, other
jaxprs make it a region, and a function that JAX would compile in its place is read instead of it. What none of
them explains is assumed opaque (never fused) and expensive; that warns once, as does a ``while`` loop, whose unknown
trip count is assumed to be 100.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

from remat_plan import _compat
from remat_plan.cost.flops import FORMULAS, size
from remat_plan.cost.lowered import lowered_jaxpr
from remat_plan.graph.calls import called_jaxpr


class Kind(IntEnum):
    """How a primitive behaves in XLA's fusion."""

    ALIAS = 0  # same buffer as its input: reshape, name, ...
    CHEAP = 1  # element-wise or movement; may be computed again in every consumer
    EXPENSIVE = 2  # element by element, computed once: exp, tanh, div, gather, ...
    REDUCE = 3  # fuses its producers, is itself materialised
    OPAQUE = 4  # dot, convolution, sort, scatter, ...: reads and writes memory
    REGION = 5  # scan, while, cond, ...: has jaxprs of its own
    BARRIER = 6  # optimization_barrier, the border of a checkpointed segment: nothing is fused across it


FUSIBLE = (Kind.CHEAP, Kind.EXPENSIVE)
"""What is computed element by element, in the kernels that read it."""

ALIASES = frozenset(
    "reshape squeeze expand_dims name stop_gradient copy copy_p sharding_constraint reduce_precision mesh_cast "
    "layout_constraint reshard debug_print debug_callback pvary pbroadcast custom_lin device_put random_clone "
    "check".split()
)
CHEAP = frozenset(
    "add sub mul neg abs sign max min and or xor not select_n clamp eq ne lt le gt ge eq_to le_to lt_to "
    "floor ceil round is_finite convert_element_type integer_pow square one_minus_square add_any "
    "broadcast_in_dim iota slice pad rev concatenate transpose dynamic_slice real imag complex conj "
    "shift_left clz nextafter shift_right_logical shift_right_arithmetic bitcast_convert_type "
    "population_count split unstack stack tile broadcast_to random_wrap random_unwrap zeros_like empty empty2 "
    "mulhi create_token copysign platform_index".split()
)
EXPENSIVE = frozenset(
    "exp exp2 expm1 log log2 log1p tanh logistic sin cos tan asin acos atan atan2 sinh cosh asinh acosh "
    "atanh erf erfc erf_inv rsqrt sqrt cbrt div rem pow lgamma digamma igamma igammac random_bits "
    "threefry2x32 gather polygamma zeta polynomial bessel_i0e bessel_i1e igamma_grad_a regularized_incomplete_beta "
    "random_fold_in random_seed random_split".split()
)
REDUCES = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin reduce "
    "reduce_window reduce_window_sum reduce_window_max reduce_window_min".split()
)
OVER_AXES = frozenset({"psum", "pmax", "pmin"})
"""Reductions over named axes; where ``vmap`` made all of these dimensions of the array, reductions like any other."""

REGIONS = frozenset({"scan", "while", "cond", "pallas_call"})
"""Structures whose jaxprs run in a way of their own; others are known by the jaxprs that they hold."""

_NAMED = ((Kind.CHEAP, CHEAP), (Kind.EXPENSIVE, EXPENSIVE), (Kind.REDUCE, REDUCES), (Kind.REGION, REGIONS))

FILLS = frozenset({"broadcast_in_dim", "convert_element_type"})
"""What makes arrays of one number of that number."""

LOOPS = {"scan": "jaxpr", "while": "body_jaxpr"}
"""Loops, and the parameter that holds the jaxpr of one step."""

READ_ROW, WRITE_ROW = "read_row", "write_row"
"""Steps of a loop that read a row out of an array, and write one into it."""

MOVES = frozenset({READ_ROW, WRITE_ROW}).union(
    "broadcast_in_dim iota slice pad rev concatenate reshape transpose dynamic_slice split unstack stack tile "
    "broadcast_to layout_copy zeros_like empty empty2".split()
)
"""Cheap primitives that compute nothing; each output element is an input element, elsewhere."""

_ON_REFERENCES = frozenset("get swap addupdate new_ref masked_load masked_swap program_id num_programs".split())
"""How mutable arrays and kernels of Pallas read and write, and how these find their place."""

TRANSCENDENTAL_FLOPS = 8.0
UNKNOWN_TRIP_COUNT = 100
_warned: set[str] = set()


def warn_once(key: str, message: str) -> None:
    """Warn about a cost that had to be assumed, once per process and key."""
    if key not in _warned:
        _warned.add(key)
        _compat.warn(message)


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
    if name in OVER_AXES and not _compat.named_axes(eqn):
        return Kind.REDUCE
    for kind, names in _NAMED:
        if name in names:
            return kind
    if name in FORMULAS or not _compat.sub_jaxprs(eqn.params) or called(eqn) is not None:
        return Kind.OPAQUE
    return Kind.REGION


def called(eqn: Any) -> Any | None:
    """Return the jaxpr that an equation only calls, whatever it is named; None for all other equations."""
    return None if eqn.primitive.name in REGIONS else called_jaxpr(eqn)


def region_flops(eqn: Any) -> float:
    """Return the FLOPs of an equation with jaxprs inside: trip count times body; a cond's most expensive branch."""
    estimate = eqn.params.get("cost_estimate")
    if estimate is not None:
        return float(estimate.flops + TRANSCENDENTAL_FLOPS * estimate.transcendentals)
    inner = [jaxpr_flops(sub) for sub in _compat.sub_jaxprs(eqn.params)]
    return max(inner) if eqn.primitive.name == "cond" else trip_count(eqn) * sum(inner)


class LoopCounts(NamedTuple):
    """Of a loop: constants of its body, values carried, and which of its operands is the first carry."""

    consts: int
    carry: int
    first_carry: int


def loop_counts(eqn: Any) -> LoopCounts:
    """Return the counts of a ``scan`` or a ``while``."""
    if eqn.primitive.name == "scan":
        consts, carry = _compat.scan_counts(eqn)
        return LoopCounts(consts, carry, consts)
    consts = eqn.params["body_nconsts"]
    return LoopCounts(consts, len(eqn.outvars), eqn.params["cond_nconsts"] + consts)


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
    grid = getattr(eqn.params.get("grid_mapping"), "grid", ())  # of a kernel, whose body is one step of it
    return float(math.prod([n for n in grid if isinstance(n, int)]))


def jaxpr_flops(jaxpr: Any) -> float:
    """Return the FLOPs of all equations of a jaxpr, calls and regions included."""
    inner, _ = _compat.open_jaxpr(jaxpr)
    return sum(eqn_flops(eqn) for eqn in inner.eqns)


_SILENT_OVER_AXES = frozenset({"axis_index", "axis_size", "pvary", "pcast", "pbroadcast", "core_call"})
"""Primitives that speak of an axis and move nothing along it."""


def communicates(eqn: Any) -> bool:
    """Tell whether an equation moves data between devices as it stands: a collective, or a change of sharding."""
    name = eqn.primitive.name
    return name == "reshard" or (
        bool(_compat.named_axes(eqn)) and name not in _SILENT_OVER_AXES and not _compat.sub_jaxprs(eqn.params)
    )


def eqn_flops(eqn: Any) -> float:
    """Return the FLOPs of one equation (a multiply-add is two).

    Matrix products and convolutions count 2·M·N·K; element-wise primitives one per element, transcendental
    ones eight; data movement none.
    """
    name = eqn.primitive.name
    if name in FORMULAS:
        return FORMULAS[name](eqn)
    kind = kind_of(eqn)
    if kind in (Kind.ALIAS, Kind.BARRIER):
        return 0.0
    out = sum(size(v) for v in eqn.outvars)
    if kind == Kind.CHEAP:
        return 0.0 if name in MOVES else out
    if kind == Kind.EXPENSIVE:
        return TRANSCENDENTAL_FLOPS * out
    if kind == Kind.REDUCE:
        if "window" in name:
            return size(eqn.outvars[0]) * math.prod(eqn.params.get("window_dimensions", (1,)))
        return sum(size(v) for v in eqn.invars)
    inner = called(eqn)
    if inner is None and name not in REGIONS:
        inner = lowered_jaxpr(eqn)
    if inner is not None:
        return jaxpr_flops(inner)
    if kind == Kind.REGION:
        return region_flops(eqn)
    if name in _ON_REFERENCES or not eqn.outvars:  # which only tells the host something
        return 0.0
    if not communicates(eqn):  # what links between devices carry is not known; that it is expensive is
        warn_once(name, f"remat_plan: the cost of primitive {name!r} is not known; it is assumed to be expensive.")
    return 10.0 * (out + sum(size(v) for v in eqn.invars))
