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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.flatten import Flat, FlatEqn, flatten, live_eqns


@dataclass(frozen=True, slots=True)
class Need:
    """The residuals of one class of equations, by position.

    Attributes:
        given: which outputs are given a cotangent.
        active_outputs: those of them whose cotangent some gradient depends on.
        reached: which operands are given a gradient that depends on a cotangent.
        operands, outputs: positions (literals counted) that the backward pass reads, directly or to
            recompute an internal.
        internal_avals: types of the internals that plain JAX keeps beside them.
        direct: positions ``("in", i)`` / ``("out", j)`` that plain JAX keeps as they are.
        internal_eqns: how many equations recompute the internals (0: none are needed).
        vjp: the flattened VJP, inputs ``(operands..., cotangents of given outputs...)``,
            outputs ``(outputs..., gradients of active operands...)``; None where nothing is differentiated.
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


class _Derivative:
    """A function that computes what an equation computes, and its derivatives by the operands that carry a tangent."""

    def __init__(
        self,
        run: Callable[[list[Any]], list[Any]],
        operands: tuple[int, ...],
        literals: Sequence[Any],
        active: tuple[bool, ...],
    ):
        self.run, self.operands, self.literals, self.active = run, operands, literals, active

    def forward(self, moving: list[Any], fixed: list[Any]) -> list[Any]:
        sources = (iter(fixed), iter(moving))
        args = [next(sources[a]) if o >= 0 else None for o, a in zip(self.operands, self.active, strict=True)]
        full = [self.literals[-1 - o] if o < 0 else v for o, v in zip(self.operands, args, strict=True)]
        return self.run(full)

    def split(self, args: list[Any]) -> tuple[list[Any], list[Any]]:
        flags = [a for o, a in zip(self.operands, self.active, strict=True) if o >= 0]
        return [v for v, a in zip(args, flags, strict=True) if a], [
            v for v, a in zip(args, flags, strict=True) if not a
        ]

    def push(self, args: list[Any], tangents: list[Any]) -> list[Any]:
        """Return the tangents of the outputs."""
        moving, fixed = self.split(args)
        return jax.jvp(lambda *xs: self.forward(list(xs), fixed), tuple(moving), tuple(tangents))[1]

    def pull(self, given: tuple[bool, ...], args: list[Any], cotangents: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the outputs and the gradients, from cotangents of the outputs that are ``given`` one."""
        moving, fixed = self.split(args)

        def sorted_forward(*xs: Any) -> tuple[list[Any], list[Any]]:
            outputs = self.forward(list(xs), fixed)
            reached = [x for x, g in zip(outputs, given, strict=True) if g]
            return reached, [x for x, g in zip(outputs, given, strict=True) if not g]

        reached, pull, others = jax.vjp(sorted_forward, *moving, has_aux=True)
        sources = (iter(others), iter(reached))
        return [next(sources[g]) for g in given], list(pull(cotangents))


def trace_vjp(
    run: Callable[[list[Any]], list[Any]],
    eqn: Any,
    operands: tuple[int, ...],
    literals: Sequence[Any],
    active: tuple[bool, ...],
    given: tuple[bool, ...],
) -> Flat:
    """Trace the VJP of a function that computes what an equation computes; see ``Need.vjp``.

    Args:
        run: operands to outputs.
        eqn, operands, literals, active, given: the equation; see ``find_need``.
    """
    structs = [_compat.struct(a.aval) for a, o in zip(eqn.invars, operands, strict=True) if o >= 0]
    cotangents = [_compat.struct(v.aval) for v, g in zip(eqn.outvars, given, strict=True) if g]
    derivative = _Derivative(run, operands, literals, active)
    closed = jax.make_jaxpr(functools.partial(derivative.pull, given))(structs, cotangents)
    return flatten(closed, keep_remat=True)


def moving_outputs(
    eqn: Any, operands: tuple[int, ...], literals: list[Any], active: tuple[bool, ...]
) -> tuple[bool, ...]:
    """Trace the JVP of one equation and return which outputs carry a tangent.

    Args:
        eqn, operands, literals, active: see ``find_need``.

    Raises:
        NotImplementedError: a mutable array takes part.
    """
    floats = tuple(_compat.is_float(v.aval) for v in eqn.outvars)
    if not any(active) or not any(floats):
        return (False,) * len(floats)
    if any(_compat.is_ref(a.aval) for a in eqn.invars):
        file, line, _ = _compat.source_line(eqn)
        raise NotImplementedError(
            f"{file}:{line}: the gradient goes through a mutable array (jax.new_ref), which cannot be planned; "
            "carry the value through the function instead, or stop its gradient."
        )
    structs = [_compat.struct(a.aval) for a, o in zip(eqn.invars, operands, strict=True) if o >= 0]
    tangents = [_compat.struct(a.aval) for a, moves in zip(eqn.invars, active, strict=True) if moves]
    derivative = _Derivative(functools.partial(_compat.bind, eqn), operands, literals, active)
    try:
        flat = flatten(jax.make_jaxpr(derivative.push)(structs, tangents), keep_remat=True)
    except NotImplementedError:  # only a VJP is known of it: that will tell
        return floats
    depends = set(flat.inputs[len(structs) :])
    for item in flat.eqns:
        if any(o in depends for o in item.operands):
            depends.update(item.outputs)
    return tuple([f and o in depends for f, o in zip(floats, flat.outputs, strict=True)])


def find_need(
    eqn: Any, operands: tuple[int, ...], literals: list[Any], active: tuple[bool, ...], given: tuple[bool, ...]
) -> Need:
    """Trace the VJP of one equation and return what its backward pass reads.

    Args:
        eqn: the JAX equation.
        operands: its operand numbers; negative ones are literals ``literals[-1 - o]``.
        literals: the literals of the program.
        active: which operands carry a tangent.
        given: which outputs are given a cotangent.
    """
    if not any(active) or not any(given):
        return Need(given, (False,) * len(given), (False,) * len(active), (), (), (), (), 0, None)
    flat = trace_vjp(functools.partial(_compat.bind, eqn), eqn, operands, literals, active, given)
    return _classify(flat, [i for i, o in enumerate(operands) if o >= 0], active, given)


def _classify(flat: Flat, places: list[int], active: tuple[bool, ...], given: tuple[bool, ...]) -> Need:
    """Split a flattened VJP at its cotangents and walk its residuals back.

    Args:
        flat: the VJP; its first inputs are the operands that are values.
        places: their positions among all operands, literals included.
        active, given: which operands carry a tangent, which outputs are given a cotangent.
    """
    n_operands, n_outputs = len(places), len(given)
    cotangents = set(flat.inputs[n_operands:])
    gradients = flat.outputs[n_outputs:]
    depends = set(cotangents)
    for eqn in flat.eqns:
        if any(o in depends for o in eqn.operands):
            depends.update(eqn.outputs)
    live = live_eqns(flat.eqns, gradients)
    backward = [e for e in live if any(o in depends for o in e.operands)]
    residuals = {o for e in backward for o in e.operands if o >= 0 and o not in depends}
    residuals |= {o for o in gradients if o >= 0 and o not in depends}
    position = dict(zip(flat.inputs[:n_operands], places, strict=True))
    out_position = {v: j for j, v in enumerate(flat.outputs[:n_outputs]) if v >= 0 and v not in position}
    makers = {v: e for e in flat.eqns for v in e.outputs}
    constants = {v for v, _ in flat.constants}
    operands: set[int] = set()
    outputs: set[int] = set()
    direct: list[tuple[str, int]] = []
    internals: list[Any] = []
    internal_eqns: set[int] = set()
    for value in sorted(residuals):
        if value in position:
            operands.add(position[value])
            direct.append(("in", position[value]))
        elif value in out_position:
            outputs.add(out_position[value])
            direct.append(("out", out_position[value]))
        elif value not in constants:
            if _has_source(value, makers, position):
                internals.append(flat.avals[value])
            _walk_back(value, makers, position, out_position, operands, outputs, internal_eqns)
    # A cotangent reaches an output only if some gradient depends on it.
    used = {o for e in backward for o in e.operands} | set(gradients)
    depending = iter([g in depends for g in gradients])
    arriving = iter(flat.inputs[n_operands:])
    return Need(
        given,
        tuple([g and next(arriving) in used for g in given]),
        tuple([a and next(depending) for a in active]),
        tuple(sorted(operands)),
        tuple(sorted(outputs)),
        tuple(internals),
        tuple(direct),
        len(internal_eqns),
        flat,
    )


def _has_source(value: int, makers: dict[int, FlatEqn], position: dict[int, int]) -> bool:
    """Tell whether a value depends on an operand (else it is a constant that costs nothing to make again)."""
    stack = [value]
    seen: set[int] = set()
    while stack:
        v = stack.pop()
        if v in position:
            return True
        if v in makers and v not in seen:
            seen.add(v)
            stack.extend(o for o in makers[v].operands if o >= 0)
    return False


def _walk_back(
    value: int,
    makers: dict[int, FlatEqn],
    position: dict[int, int],
    out_position: dict[int, int],
    operands: set[int],
    outputs: set[int],
    visited: set[int],
) -> None:
    """Add the operands and outputs from which an internal can be computed."""
    stack = [value]
    while stack:
        v = stack.pop()
        if v in position:
            operands.add(position[v])
        elif v in out_position:
            outputs.add(out_position[v])
        elif v in makers and id(makers[v]) not in visited:
            visited.add(id(makers[v]))
            stack.extend(o for o in makers[v].operands if o >= 0)
