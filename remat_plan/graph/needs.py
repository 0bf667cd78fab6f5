"""What the backward pass of an equation reads, found by tracing its VJP.

In: one equation of each class (primitive, parameters, types, which operands carry a tangent, which outputs are given
a cotangent).
Out: ``Need``: operands and outputs that its backward pass reads, the internals that plain JAX keeps instead,
and the backward equations themselves. ``moving_outputs``: which outputs carry a tangent at all.

Nothing is tabled: any primitive works, also of third parties. The VJP is traced as
``(primals, cotangents) -> (outputs, gradients)``; equations that depend on a cotangent are the backward pass,
and what they read of the rest are its residuals. Outputs that no cotangent reaches are given none, as ``jax.grad``
gives them none: what only they need is not kept, and a rule that refuses one is not asked.

A residual that is neither an operand nor an output (an *internal* of the JVP rule, such as ``1 - y*y`` of tanh) is
walked back to the operands and outputs from which it can be computed again.

Limits: control flow and ``custom_vjp`` recompute their whole forward pass for their internals.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.flatten import Flat, FlatEqn, depending, flatten, live_eqns

SLICES = "remat_plan_slices"
"""The named scope of a loop over slices (``graph.slicer``). Nothing of a slice is kept, so that its backward pass reads
what it reads. That need not be traced, which for a whole program takes longer than all else that is done with it."""


@dataclass(frozen=True, slots=True)
class Need:
    """The residuals of one class of equations, by position.

    Attributes:
        given: which outputs are given a cotangent; ``active_outputs``: those of them that some gradient depends on.
        reached: which operands are given a gradient that depends on a cotangent.
        operands, outputs: what the backward pass reads, directly or to recompute an internal.
        internal_avals: types of the internals that plain JAX keeps beside them; so many ``internal_eqns`` make them.
        direct: ``("in", i)`` / ``("out", j)`` that plain JAX keeps as they are.
        vjp: flattened, of operands and cotangents of given outputs, to outputs and gradients of active operands;
            None where nothing is differentiated.
    """

    given: tuple[bool, ...]
    active_outputs: tuple[bool, ...]
    reached: tuple[bool, ...]
    operands: tuple[int, ...]
    outputs: tuple[int, ...]
    internal_avals: tuple[Any, ...]
    direct: tuple[tuple[str, int], ...]
    internal_eqns: int
    vjp: Flat | None

    @property
    def internal_bytes(self) -> int:
        """Bytes of ``internal_avals``."""
        return sum(_compat.aval_bytes(a) for a in self.internal_avals)


class Derivative:
    """An equation as a function of those operands that are values, and its derivatives by those that carry a tangent.

    Args are those of ``find_need``.
    """

    def __init__(self, eqn: Any, operands: Sequence[int], literals: Sequence[Any], active: Sequence[bool]):
        self.eqn = eqn
        self.is_value = [o >= 0 for o in operands]
        self.literals = [literals[-1 - o] for o in operands if o < 0]
        self.moves = [a for a, is_value in zip(active, self.is_value, strict=True) if is_value]
        self.structs = [_compat.struct(a.aval) for a, v in zip(eqn.invars, self.is_value, strict=True) if v]

    def forward(self, moving: Sequence[Any], fixed: list[Any]) -> list[Any]:
        values = _compat.merge_lists(self.moves, fixed, moving)
        return _compat.bind(self.eqn, _compat.merge_lists(self.is_value, self.literals, values))

    def push(self, args: list[Any], tangents: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the outputs and their tangents."""
        fixed, moving = _compat.partition_list(self.moves, args)
        return jax.jvp(lambda *xs: self.forward(xs, fixed), tuple(moving), tuple(tangents))

    def pull(self, given: Sequence[bool], args: list[Any], cotangents: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the outputs and the gradients, from cotangents of the outputs that are ``given`` one."""
        fixed, moving = _compat.partition_list(self.moves, args)

        def sorted_forward(*xs: Any) -> tuple[list[Any], list[Any]]:
            others, reached = _compat.partition_list(given, self.forward(xs, fixed))
            return reached, others

        reached, pull, others = jax.vjp(sorted_forward, *moving, has_aux=True)
        return _compat.merge_lists(given, others, reached), list(pull(cotangents))


def has_one_gradient(eqn: Any) -> bool:
    """Tell whether an equation has one output, of floating point, no effects, and no mutable arrays as operands."""
    one = len(eqn.outvars) == 1 and _compat.is_float(eqn.outvars[0].aval)
    return one and not eqn.effects and not any(_compat.is_ref(a.aval) for a in eqn.invars)


def moving_outputs(
    eqn: Any, operands: tuple[int, ...], literals: list[Any], active: tuple[bool, ...]
) -> tuple[bool, ...]:
    """Trace the JVP of one equation and return which outputs carry a tangent; arguments as in ``find_need``.

    ``NotImplementedError`` if a mutable array takes part.
    """
    floats = tuple(_compat.is_float(v.aval) for v in eqn.outvars)
    if not any(active) or not any(floats):
        return (False,) * len(floats)
    if _is_over_slices(eqn) and len(floats) == 1:
        return floats
    if any(_compat.is_ref(a.aval) for a in eqn.invars):
        file, line, _ = _compat.source_line(eqn)
        raise NotImplementedError(
            f"{file}:{line}: the gradient goes through a mutable array (jax.new_ref), which cannot be planned; "
            "carry the value through the function instead, or stop its gradient."
        )
    derivative = Derivative(eqn, operands, literals, active)
    tangents = _compat.partition_list(derivative.moves, derivative.structs)[1]
    try:
        flat = flatten(
            jax.make_jaxpr(lambda *given: derivative.push(*given)[1])(derivative.structs, tangents), keep_remat=True
        )
    except NotImplementedError:  # only a VJP is known of it: that will tell
        return floats
    depends = depending(flat.eqns, flat.inputs[len(derivative.structs) :])
    return tuple([f and o in depends for f, o in zip(floats, flat.outputs, strict=True)])


def find_need(
    eqn: Any, operands: tuple[int, ...], literals: list[Any], active: tuple[bool, ...], given: tuple[bool, ...]
) -> Need:
    """Trace the VJP of one equation and return what its backward pass reads.

    Negative ``operands`` are literals ``literals[-1 - o]``. ``active``: which operands carry a tangent; ``given``:
    which outputs are given a cotangent.
    """
    if not any(active) or not any(given):
        return Need(given, (False,) * len(given), (False,) * len(active), (), (), (), (), 0, None)
    if _is_over_slices(eqn):
        return Need(given, given, active, tuple([i for i, o in enumerate(operands) if o >= 0]), (), (), (), 0, None)
    derivative = Derivative(eqn, operands, literals, active)
    cotangents = [_compat.struct(v.aval) for v, g in zip(eqn.outvars, given, strict=True) if g]
    closed = jax.make_jaxpr(functools.partial(derivative.pull, given))(derivative.structs, cotangents)
    places = [i for i, o in enumerate(operands) if o >= 0]
    return _classify(flatten(closed, keep_remat=True), places, active, given)


def _is_over_slices(eqn: Any) -> bool:
    return eqn.primitive.name == "scan" and _compat.in_scope(eqn, SLICES)


def _classify(flat: Flat, places: list[int], active: tuple[bool, ...], given: tuple[bool, ...]) -> Need:
    """Split a flattened VJP at its cotangents and walk its residuals back.

    Its first inputs are the operands that are values, whose ``places`` are among all operands.
    """
    n_operands, n_outputs = len(places), len(given)
    gradients = flat.outputs[n_outputs:]
    depends = depending(flat.eqns, flat.inputs[n_operands:])
    backward = [e for e in live_eqns(flat.eqns, gradients) if any(o in depends for o in e.operands)]
    residuals = {o for o in (*gradients, *(o for e in backward for o in e.operands)) if o >= 0 and o not in depends}
    sources = dict(zip(flat.inputs[:n_operands], [("in", i) for i in places], strict=True))
    known = {v: ("out", j) for j, v in enumerate(flat.outputs[:n_outputs]) if v >= 0} | sources
    makers = {v: e for e in flat.eqns for v in e.outputs}
    constants = {v for v, _ in flat.constants}
    direct = [known[v] for v in sorted(residuals) if v in known]
    read = set(direct)
    internals: list[Any] = []
    internal_eqns: set[int] = set()
    for value in sorted(residuals - known.keys() - constants):
        if _walk_back(value, makers, sources)[0]:  # else it is a constant that costs nothing to make again
            internals.append(flat.avals[value])
        found, made_by = _walk_back(value, makers, known)
        read.update(known[v] for v in found)
        internal_eqns |= made_by
    # A cotangent reaches an output only if some gradient depends on it.
    used = {o for e in backward for o in e.operands} | set(gradients)
    moved = iter([g in depends for g in gradients])
    arriving = iter(flat.inputs[n_operands:])
    return Need(
        given,
        tuple([g and next(arriving) in used for g in given]),
        tuple([a and next(moved) for a in active]),
        tuple(sorted(i for kind, i in read if kind == "in")),
        tuple(sorted(i for kind, i in read if kind == "out")),
        tuple(internals),
        tuple(direct),
        len(internal_eqns),
        flat,
    )


def _walk_back(value: int, makers: dict[int, FlatEqn], known: Container[int]) -> tuple[set[int], set[int]]:
    """Return the known values that a value can be computed from, and which equations (by identity) compute it."""
    found: set[int] = set()
    visited: set[int] = set()
    stack = [value]
    while stack:
        v = stack.pop()
        if v in known:
            found.add(v)
        elif v in makers and id(makers[v]) not in visited:
            visited.add(id(makers[v]))
            stack.extend(o for o in makers[v].operands if o >= 0)
    return found, visited
