"""What is known of an equation whatever it is applied to.

In: equations, the backend's ``FusionModel``, a function that tells what happens inside a region. Out: ``Facts``, each
equation's found once: planning lowers the same equations many times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remat_plan import _compat
from remat_plan.cost.backend import FusionModel
from remat_plan.cost.layout import SMALL_BYTES, library_role
from remat_plan.cost.rules import MOVES, Kind, eqn_flops, kind_of
from remat_plan.cost.steps import NO_REGION, RegionCost

_SHAPED = MOVES | {"gather"}  # operands are not meant to have the shape of the result


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an equation whatever it is applied to.

    ``inner`` is the jaxpr of a call, which is inlined; ``narrow`` tells for each operand of an element-wise equation
    whether it is broadcast (None for literals); ``key`` is None where the equation equals no other one.
    """

    eqn: Any  # kept, so that its id stays its own
    inner: Any
    kind: Kind
    narrow: tuple[bool | None, ...]
    out_bytes: tuple[int, ...]
    flops: float
    library: int
    region: RegionCost
    key: tuple[Any, ...] | None


class FactBook:
    """The facts of all equations met so far, for one backend."""

    def __init__(self, region_cost: Callable[[Any], RegionCost], model: FusionModel):
        self.region_cost, self.model = region_cost, model
        self._known: dict[int, Facts] = {}

    def of(self, eqn: Any) -> Facts:
        """The facts of an equation."""
        found = self._known.get(id(eqn))
        if found is None:
            found = self._known[id(eqn)] = self._learn(eqn)
        return found

    def _learn(self, eqn: Any) -> Facts:
        name = eqn.primitive.name
        if name in _compat.INLINE_CALLS or name in _compat.REMAT_CALLS or name.startswith("custom_"):
            inner = _compat.call_jaxpr(eqn)
            if inner is not None:
                return Facts(eqn, inner, Kind.REGION, (), (), 0.0, 0, NO_REGION, None)
        kind = kind_of(eqn)
        if kind in (Kind.ALIAS, Kind.BARRIER):
            return Facts(eqn, None, kind, (), (), 0.0, 0, NO_REGION, None)
        out = tuple([_compat.aval_bytes(v.aval) for v in eqn.outvars])
        narrow: tuple[bool | None, ...] = ()
        if kind in (Kind.CHEAP, Kind.EXPENSIVE) and name not in _SHAPED and out[0] >= SMALL_BYTES:
            count = eqn.outvars[0].aval.size
            narrow = tuple(
                [None if _compat.is_literal(a) else getattr(a.aval, "size", count) < count for a in eqn.invars]
            )
        library = library_role(eqn, is_float) if self.model.library_clusters else 0
        inside = self.region_cost(eqn) if kind == Kind.REGION else NO_REGION
        key = None if kind == Kind.REGION or eqn.effects else equal_key(eqn)
        return Facts(eqn, None, kind, narrow, out, eqn_flops(eqn), library, inside, key)


def is_float(aval: Any) -> bool:
    """Tell whether a value of this type has a tangent (looked up by dtype: asking JAX takes long)."""
    return _is_float(getattr(aval, "dtype", None))


@functools.cache
def _is_float(dtype: Any) -> bool:
    return dtype is not None and _compat.is_float_dtype(dtype)


def equal_key(eqn: Any) -> tuple[Any, ...]:
    """Return what tells equations on equal inputs apart: literals, parameters, result types."""
    literals = tuple([repr(a) for a in eqn.invars if _compat.is_literal(a)])
    aval = eqn.outvars[0].aval if eqn.outvars else None
    return (literals, getattr(aval, "shape", None), getattr(aval, "dtype", None), *eqn.params.values())
