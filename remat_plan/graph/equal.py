"""Whether two traces are the same program, to the last parameter.

In: two ``Source``. Out: True where running one instead of the other cannot be told apart.

A fingerprint leaves out what differs between processes (addresses of functions); here nothing is left out. The two
are walked side by side: primitives, parameters, contexts, types, literals, and which variable is read where. What
cannot be compared counts as different, so a wrong True is not possible; a wrong False costs time only. Constants of
the outermost jaxpr are compared by type: they are inputs like any other.

Functions among parameters, as callbacks are, are compared by their code and what they captured. Rules of custom
derivatives are functions too, which JAX wraps anew for every trace. They are compared by what they do: the derivative
of the equation is traced on both sides, and rules in it in turn.

Limits: rules that ask for symbolic zeros, or that call the function whose rule they are, are the same only if they
are one object.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import jax
import numpy as np

from remat_plan import _compat
from remat_plan.graph.needs import Derivative

_LOG = logging.getLogger("remat_plan")

_SMALL = 64
"""Arrays in parameters with more elements than this are the same only if they are one object."""

_DEPTH = 3
"""How deep rules in rules are compared."""

_Numbers = tuple[dict[Any, int], dict[Any, int]]


class Source:
    """A traced program that can be compared with others; values of its constants are not kept."""

    def __init__(self, jaxpr: Any):
        self.jaxpr = _compat.open_jaxpr(jaxpr)[0]
        self._rules: dict[int, Any] = {}
        self._read = set(_variables_read(self.jaxpr))

    def rule(self, eqn: Any) -> tuple[Any, tuple[Any, ...]] | None:
        """The derivative of an equation with a rule of its own, open, and its constants; None if it has none alone."""
        if id(eqn) not in self._rules:
            rule = self._rules[id(eqn)] = _derivative(eqn, [v in self._read for v in eqn.outvars])
            if rule is not None:
                self._read.update(_variables_read(rule[0]))  # rules in the rule are asked for too
        return self._rules[id(eqn)]

    def outlives_its_trace(self) -> bool:
        """Tell whether the program may be kept: no rule in it closes over a tracer. Its rules are traced for that."""
        return all(self._is_free_of_tracers(eqn) for eqn in self.jaxpr.eqns)

    def _is_free_of_tracers(self, eqn: Any) -> bool:
        if _has_rule(eqn):
            rule = self.rule(eqn)
            return rule is not None and not any(map(_compat.is_tracer, rule[1]))
        if eqn.primitive.name in _compat.INLINE_CALLS:
            return True  # JAX keeps these itself
        inner = [e for j in _compat.sub_jaxprs(eqn.params) for e in _compat.open_jaxpr(j)[0].eqns]
        return all(map(self._is_free_of_tracers, inner))


def same_program(one: Source, other: Source) -> bool:
    """Tell whether two programs are the same; the values of their outermost constants do not count.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> one, two, three = (Source(jax.make_jaxpr(f)(1.0)) for f in (jnp.sin, lambda x: jnp.sin(x), jnp.cos))
        >>> same_program(one, two), same_program(one, three)
        (True, False)
    """
    return _Comparison(one, other).jaxprs(one.jaxpr, other.jaxpr)


class _Comparison:
    """Walks two programs side by side."""

    def __init__(self, one: Source, other: Source):
        self.one, self.other, self.depth = one, other, 0

    def jaxprs(self, one: Any, other: Any) -> bool:
        """Compare open jaxprs."""
        if len(one.eqns) != len(other.eqns):
            return False
        numbers: _Numbers = ({}, {})
        if not _define(numbers, one.constvars, other.constvars) or not _define(numbers, one.invars, other.invars):
            return False
        for a, b in zip(one.eqns, other.eqns, strict=True):
            if a.primitive is not b.primitive or a.ctx != b.ctx or a.effects != b.effects:
                return False
            if not self.atoms(numbers, a.invars, b.invars) or not self.parameters(a, b):
                return False
            if not _define(numbers, a.outvars, b.outvars):
                return False
        return self.atoms(numbers, one.outvars, other.outvars)

    def atoms(self, numbers: _Numbers, one: Sequence[Any], other: Sequence[Any]) -> bool:
        """Compare what is read: variables by their numbers, literals by type and value."""
        if len(one) != len(other):
            return False
        for a, b in zip(one, other, strict=True):
            if _compat.is_literal(a) != _compat.is_literal(b):
                return False
            if _compat.is_literal(a):
                if a.aval != b.aval or not self.values(a.val, b.val):
                    return False
            elif numbers[0][a] != numbers[1][b]:
                return False
        return True

    def parameters(self, one: Any, other: Any) -> bool:
        """Compare the parameters of two equations of one primitive."""
        if not _has_rule(one) or self.values(one.params, other.params):
            return self.values(one.params, other.params)
        if self.depth == _DEPTH or not self.values(_without_functions(one.params), _without_functions(other.params)):
            return False
        rule, rule_other = self.one.rule(one), self.other.rule(other)
        if rule is None or rule_other is None or not self.values(rule[1], rule_other[1]):
            return False
        self.depth += 1
        same = self.jaxprs(rule[0], rule_other[0])
        self.depth -= 1
        return same

    def values(self, one: Any, other: Any) -> bool:
        """Compare two parameters or literals."""
        if one is other:
            return True
        if type(one) is not type(other):
            return False
        if isinstance(one, (tuple, list)):
            return len(one) == len(other) and all(map(self.values, one, other))
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(self.values(v, other[k]) for k, v in one.items())
        if (params := _compat.high_parameters(one)) is not None:
            return self.values(params, _compat.high_parameters(other))
        if _compat.is_jaxpr(one):
            (inner, constants), (inner_other, constants_other) = _compat.open_jaxpr(one), _compat.open_jaxpr(other)
            return self.values(constants, constants_other) and self.jaxprs(inner, inner_other)
        if isinstance(one, FunctionType):
            return self.functions(one, other)
        if _is_jaxs(type(one)) and dataclasses.is_dataclass(one):
            return all(self.values(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
        return _same_leaf(one, other)

    def functions(self, one: FunctionType, other: FunctionType) -> bool:
        """Compare functions that may be made anew in every trace, as callbacks are: their code, and what they captured.

        What a user's function captured and may change (a list that it appends to) must be one object; JAX's own
        captures what it was given, and changes nothing.
        """
        if one.__code__ is not other.__code__ or one.__globals__ is not other.__globals__:
            return False
        captured = [_captured(function) for function in (one, other)]
        if _is_jaxs(one):
            return self.values(*captured)
        return all(
            a is b or (isinstance(a, (FunctionType, *_UNCHANGING)) and self.values(a, b))
            for a, b in zip(*captured, strict=True)
        )


_UNCHANGING = (int, float, complex, str, bytes)
"""What can be captured by functions and never changes."""


def _is_jaxs(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "jax"


def _captured(function: FunctionType) -> tuple[Any, ...]:
    """What a function has beside its code."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # a name without a value yet: unlike any other
            cells.append(object())
    by_name = (function.__kwdefaults__ or {}).items()
    return (*cells, *(function.__defaults__ or ()), *(value for _, value in sorted(by_name)))


def _define(numbers: _Numbers, one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Number new variables on both sides; their types must agree."""
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if a.aval != b.aval:
            return False
        numbers[0][a] = numbers[1][b] = len(numbers[0])
    return True


def _same_leaf(one: Any, other: Any) -> bool:
    """Compare two values of one type that are neither containers nor jaxprs."""
    if isinstance(one, jax.Array):
        return False  # looking into it would wait for the device
    if hasattr(one, "dtype") and hasattr(one, "shape"):
        one, other = np.asarray(one), np.asarray(other)
        if max(one.size, other.size) > _SMALL:
            return False
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)  # 0.0 == -0.0, but they are different programs
    try:
        return bool(one == other)
    except Exception:  # some foreign __eq__: then they are not known to be the same
        return False


def _has_rule(eqn: Any) -> bool:
    return eqn.primitive.name.startswith(("custom_jvp_call", "custom_vjp_call"))


def _without_functions(params: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in params.items() if _compat.is_jaxpr(v) or not _compat.is_function(v)}


def _variables_read(jaxpr: Any) -> Iterator[Any]:
    """Yield the variables that the outputs of a jaxpr depend on, those in jaxprs inside it too."""
    inner, _ = _compat.open_jaxpr(jaxpr)
    live = _compat.needed_equations(inner.eqns, inner.outvars)
    for atoms in (inner.outvars, *[eqn.invars for eqn in live]):
        yield from [a for a in atoms if not _compat.is_literal(a)]
    for eqn in live:
        for sub in _compat.sub_jaxprs(eqn.params):
            yield from _variables_read(sub)


def _derivative(eqn: Any, read: Sequence[bool]) -> tuple[Any, tuple[Any, ...]] | None:
    """Trace tangents, or gradients, of an equation whose rule is its own; ``read`` tells which outputs are used."""
    if eqn.params.get("symbolic_zeros"):
        return None
    moves = [_compat.is_float(a.aval) for a in eqn.invars]
    derivative = Derivative(eqn, range(len(moves)), (), moves)
    floats = [used and _compat.is_float(v.aval) for v, used in zip(eqn.outvars, read, strict=True)]

    def push(values: list[Any], tangents: list[Any]) -> list[Any]:
        return _compat.partition_list(floats, derivative.push(values, tangents)[1])[1]

    def pull(values: list[Any], cotangents: list[Any]) -> list[Any]:
        return derivative.pull(floats, values, cotangents)[1]

    is_jvp = eqn.primitive.name.startswith("custom_jvp")
    outputs = [_compat.struct(v.aval) for v in eqn.outvars]
    which, kinds = (moves, derivative.structs) if is_jvp else (floats, outputs)
    types = _compat.partition_list(which, kinds)[1]
    try:
        return _compat.live_jaxpr(jax.make_jaxpr(push if is_jvp else pull)(derivative.structs, types))
    except Exception:  # the user's rule may raise anything; where it is needed, JAX raises that again
        _LOG.debug("%s: its rule cannot be traced by itself, so it is not compared", eqn.primitive.name, exc_info=True)
        return None
