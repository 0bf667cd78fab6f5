"""What JAX's types, variables and traced values are: a part of ``_compat``.

In: types and values. Out: whether they are keys, references, tracers; what of them a derivative is being taken of, or
depends on others. Use these through ``_compat``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import core
from jax._src.core import to_concrete_value
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Literal
from jax.interpreters import partial_eval


def is_ref(aval: Any) -> bool:
    """Tell whether a value is a mutable array (``jax.new_ref``)."""
    return "Ref" in type(aval).__name__


def is_float(aval: Any) -> bool:
    """Tell whether a value of this type has a tangent (floating point or complex)."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and is_float_dtype(dtype)


def is_float_dtype(dtype: Any) -> bool:
    """Tell whether values of this dtype have a tangent."""
    return bool(jax.numpy.issubdtype(dtype, np.inexact))


def is_key(aval: Any) -> bool:
    """Tell whether a value is made of random keys."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def is_threefry(aval: Any) -> bool:
    """Tell whether a value is made of random keys of Threefry."""
    return is_key(aval) and "fry" in str(aval.dtype)


def is_literal(atom: Any) -> bool:
    """Tell whether a jaxpr atom is a literal (a scalar written into the equation)."""
    return isinstance(atom, Literal)


def depending(eqns: Iterable[Any], variables: Iterable[Any]) -> set[Any]:
    """Return the variables that depend on some variables, and these."""
    found = set(variables)
    for eqn in eqns:
        if any(a in found for a in eqn.invars if not is_literal(a)):
            found.update(eqn.outvars)
    return found


def is_tracer(value: Any) -> bool:
    """Tell whether a value is being traced."""
    return isinstance(value, core.Tracer)


def concrete(value: Any) -> Any:
    """Return the array that a traced value stands for, where it has one (in a gradient outside of ``jax.jit``)."""
    return to_concrete_value(value)


def perturbed(values: Sequence[Any]) -> tuple[bool, ...] | None:
    """Tell which values carry a tangent, where a derivative is being taken of them; None where none is, or not yet.

    (Inside ``jax.jit``, or the body of a loop, a derivative may be taken of what was traced, later.)
    """
    staged = partial_eval.DynamicJaxprTracer
    places = [i for i, x in enumerate(values) if is_tracer(x) and not isinstance(x, staged) and is_float(x.aval)]
    noted: list[list[bool]] = []

    @jax.custom_jvp
    def probe(*floats: Any) -> tuple[Any, ...]:
        return floats

    @functools.partial(probe.defjvp, symbolic_zeros=True)
    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        noted.append([not isinstance(t, SymbolicZero) for t in tangents])
        return primals, tangents

    if places:
        probe(*[values[i] for i in places])
    if not noted:
        return None
    known = dict(zip(places, noted[0], strict=True))
    return tuple([known.get(i, False) for i in range(len(values))])
