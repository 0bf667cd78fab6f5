"""A jaxpr as one flat list of equations over numbered values.

In: a closed jaxpr. Out: ``Flat``: equations with operand and output numbers, calls inlined, dead ones dropped.

Inlined: calls that lose nothing by it (``jit`` without shardings of its own, other calls that JAX makes), and (unless
kept) the user's ``jax.checkpoint`` regions, which are planned anew, those in bodies of scans too.
``custom_jvp_call``, ``custom_vjp_call`` and control flow stay whole: their rules must survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat_plan import _compat
from remat_plan.graph.calls import dissolved, holds_remat, inlinable
from remat_plan.graph.records import TAG_PREFIX


@dataclass(slots=True)
class FlatEqn:
    """One equation: the JAX equation and the numbers of its operands (``-1 - k``: literal ``k``) and outputs."""

    eqn: Any
    operands: tuple[int, ...]
    outputs: tuple[int, ...]


def run_equations(eqns: Iterable[Any], literals: Sequence[Any], env: dict[int, Any]) -> None:
    """Run equations, flat ones or operations of a graph, on values by number; add what they make to the values."""
    for item in eqns:
        args = [literals[-1 - v] if v < 0 else env[v] for v in item.operands]
        env.update(zip(item.outputs, _compat.bind(item.eqn, args), strict=True))


def depending(eqns: Iterable[Any], values: Iterable[int]) -> set[int]:
    """Return the values that depend on some by equations, flat ones or operations of a graph, and these."""
    found = set(values)
    for item in eqns:
        if not found.isdisjoint(item.operands):
            found.update(item.outputs)
    return found


@dataclass(slots=True)
class Flat:
    """A flattened jaxpr."""

    eqns: list[FlatEqn]
    avals: list[Any]
    inputs: tuple[int, ...]
    constants: list[tuple[int, Any]]
    literals: list[Any]
    outputs: tuple[int, ...]


class _Flattener:
    """Numbers values while it walks a jaxpr and the calls inside it."""

    def __init__(self, keep_remat: bool):
        self.keep_remat = keep_remat
        self.eqns: list[FlatEqn] = []
        self.avals: list[Any] = []
        self.constants: list[tuple[int, Any]] = []
        self.literals: list[Any] = []
        self.inputs: tuple[int, ...] = ()
        self.sourced: dict[int, bool] = {}

    def new(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def atom(self, env: dict[Any, int], atom: Any) -> int:
        if _compat.is_literal(atom):
            self.literals.append(atom.val)
            return -len(self.literals)
        return env[atom]

    def constant(self, var: Any, value: Any) -> int:
        number = self.new(var.aval)
        self.constants.append((number, value))
        return number

    def inlined(self, eqn: Any) -> Any | None:
        own = _compat.checkpointed_jaxpr(eqn)
        return inlinable(eqn) if own is None else None if self.keep_remat else own

    def with_literals(self, eqn: Any, operands: tuple[int, ...]) -> Any:
        """Write literals that came from the caller of an inlined function into the equation itself."""
        values = [
            self.literals[-1 - o] if o < 0 and not _compat.is_literal(a) else None
            for a, o in zip(eqn.invars, operands, strict=True)
        ]
        return eqn if all(v is None for v in values) else _compat.with_literals(eqn, values)

    def standing(self, eqn: Any, caller: Any) -> Any:
        """An equation of a function that is inlined: with the line of its call where none of the user's is known.

        Of JAX's own functions, such as ``jnp.where``, no equation has one.
        """
        traceback = eqn.source_info.traceback
        if (key := id(traceback)) not in self.sourced:  # calls of one function share their equations
            self.sourced[key] = bool(_compat.source_frames(eqn))
        return eqn if self.sourced[key] else _compat.standing_at(eqn, caller)

    def run(self, jaxpr: Any, env: dict[Any, int], caller: Any = None) -> None:
        for eqn in jaxpr.eqns:
            if caller is not None:
                eqn = self.standing(eqn, caller)
            if eqn.primitive.name == "scan" and not self.keep_remat and holds_remat(eqn.params["jaxpr"]):
                eqn = dissolved(eqn)
            inner = self.inlined(eqn)
            operands = tuple(self.atom(env, a) for a in eqn.invars)
            if (name := _compat.name_of(eqn)) is not None:
                if name.startswith(TAG_PREFIX):
                    env[eqn.outvars[0]] = operands[0]  # of a plan inside this function; it is planned anew
                    continue
                eqn = _compat.name_equation(eqn, name)
            if inner is None:
                outputs = tuple(self.new(v.aval) for v in eqn.outvars)
                self.eqns.append(FlatEqn(self.with_literals(eqn, operands), operands, outputs))
            else:
                outputs = self.inline(inner, operands, eqn)
            env.update(zip(eqn.outvars, outputs, strict=True))

    def inline(self, closed: Any, operands: tuple[int, ...] | None, caller: Any = None) -> tuple[int, ...]:
        """Write the equations of a closed jaxpr (on new operands: None); return the numbers of its outputs.

        ``caller`` is the equation that they stand in place of.
        """
        body, consts = _compat.open_jaxpr(closed)
        env = {v: self.constant(v, c) for v, c in zip(body.constvars, consts, strict=True)}
        if operands is None:
            operands = self.inputs = tuple(self.new(v.aval) for v in body.invars)
        env.update(zip(body.invars, operands, strict=True))
        self.run(body, env, caller)
        return tuple(self.atom(env, atom) for atom in body.outvars)

    def flat(self, outputs: tuple[int, ...]) -> Flat:
        """What was written."""
        eqns = live_eqns(self.eqns, outputs)
        return Flat(eqns, self.avals, self.inputs, self.constants, self.literals, outputs)


def flatten(closed: Any, keep_remat: bool = False) -> Flat:
    """Flatten a closed jaxpr; see the module docstring. ``keep_remat`` leaves the user's checkpointed regions whole."""
    state = _Flattener(keep_remat)
    return state.flat(state.inline(closed, None))


def substituted(flat: Flat, bodies: Mapping[int, Any], keep_remat: bool = False) -> Flat:
    """Return the program with closed jaxprs written out in place of equations, by position."""
    state = _Flattener(keep_remat)
    state.avals, state.inputs = list(flat.avals), flat.inputs
    state.constants, state.literals = list(flat.constants), list(flat.literals)
    renamed: dict[int, int] = {}
    for position, item in enumerate(flat.eqns):
        operands = tuple([renamed.get(o, o) for o in item.operands])
        if position in bodies:
            renamed.update(zip(item.outputs, state.inline(bodies[position], operands), strict=True))
        else:
            state.eqns.append(FlatEqn(item.eqn, operands, item.outputs))
    return state.flat(tuple([renamed.get(o, o) for o in flat.outputs]))


def live_eqns(eqns: list[FlatEqn], outputs: tuple[int, ...]) -> list[FlatEqn]:
    """Drop the equations that reach neither an output nor an effect."""
    used = set(outputs)
    kept = []
    for eqn in reversed(eqns):
        if _compat.has_effects(eqn.eqn) or any(o in used for o in eqn.outputs):
            used.update(eqn.operands)
            kept.append(eqn)
    kept.reverse()
    return kept
