"""Saving the output of an equation whose own backward pass reads it.

In: one equation, the outputs to save. Out: its values, with the saved ones tagged so that the equation's own
derivative reads the tagged value.

``checkpoint_name`` alone is not enough here: the JVP rule of ``tanh`` (or ``exp``, ``rsqrt``, ...) uses the
value before the tag, so JAX would run the equation again although its output is kept. So behind the tags stands a
``custom_jvp``, which returns the outputs as they are; its rule is the equation's own, in which these outputs take the
place of those that the rule would compute. The tags stand outside of it, where every implementation of
``jax.checkpoint`` finds them. Values, tangents and higher derivatives are those of the equation: what the tagged values
depend on is still there, for derivatives of the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from remat_plan import _compat
from remat_plan.graph.action import Action

Tag = tuple[Action, str]
"""What is done with a value, and the name under which a policy finds it."""


def tagged(value: Any, tag: Tag) -> Any:
    """Name a value for a checkpoint policy.

    JAX (up to 0.12) cannot save complex residuals by policy (``reduce_precision does not accept complex64``), so
    a complex value is named as its two parts.
    """
    action, name = tag
    if jax.numpy.issubdtype(jax.typeof(value).dtype, jax.numpy.complexfloating):
        return jax.lax.complex(action.tag(jax.lax.real(value), name), action.tag(jax.lax.imag(value), name))
    return action.tag(value, name)


class _Derivative:
    """The JVP rule of a function of an equation's operands and outputs that returns the outputs."""

    def __init__(self, run: Callable[..., list[Any]]):
        self.run = run

    def __call__(self, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        (args, outputs), (directions, _) = primals, tangents
        moving = [i for i, t in enumerate(directions) if not isinstance(t, SymbolicZero)]
        if not moving:
            return outputs, [_no_tangent(x) for x in outputs]

        def push(args: list[Any], directions: list[Any]) -> tuple[list[Any], list[Any]]:
            def along(*xs: Any) -> list[Any]:
                full = list(args)
                for i, x in zip(moving, xs, strict=True):
                    full[i] = x
                return self.run(*full)

            return jax.jvp(along, tuple(args[i] for i in moving), tuple(directions))

        closed = jax.make_jaxpr(push)(args, [directions[i] for i in moving])
        jaxpr, consts = _compat.open_jaxpr(closed)
        own, results = jaxpr.outvars[: len(outputs)], jaxpr.outvars[len(outputs) :]
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, [*args, *(directions[i] for i in moving)], strict=True))
        env.update((v, x) for v, x in zip(own, outputs, strict=True) if not _compat.is_literal(v))
        moved = depending(jaxpr, jaxpr.invars[len(args) :])
        pushed = zip(_compute(jaxpr, results, env), results, outputs, strict=True)
        return outputs, [t if not _compat.is_literal(v) and v in moved else _no_tangent(x) for t, v, x in pushed]


def _compute(jaxpr: Any, results: Sequence[Any], env: dict[Any, Any]) -> list[Any]:
    """Return values of a jaxpr, given some of them in ``env``; only what they need is computed."""

    def read(atom: Any) -> Any:
        return atom.val if _compat.is_literal(atom) else env[atom]

    for eqn in _compat.needed_equations(jaxpr.eqns, results, frozenset(env)):
        values = _compat.bind(eqn, [read(a) for a in eqn.invars])
        env.update((v, x) for v, x in zip(eqn.outvars, values, strict=True) if v not in env)
    return [read(v) for v in results]


def depending(jaxpr: Any, variables: Sequence[Any]) -> set[Any]:
    """Return the variables of a jaxpr that depend on some of its variables, and these."""
    found = set(variables)
    for eqn in jaxpr.eqns:
        if any(a in found for a in eqn.invars if not _compat.is_literal(a)):
            found.update(eqn.outvars)
    return found


def _no_tangent(value: Any) -> SymbolicZero:
    """What JAX takes for "no tangent": a zero that is an array would be carried on like any tangent."""
    return SymbolicZero(jax.typeof(value).to_tangent_aval())


def run_tagged(eqn: Any, args: Sequence[Any], names: dict[int, Tag]) -> list[Any]:
    """Run an equation and tag the outputs ``names`` (position to name) for a checkpoint policy.

    Args:
        eqn: the JAX equation.
        args: its operands.
        names: which outputs to tag, and with what.
    """
    outputs = [tagged(x, names[i]) if i in names else x for i, x in enumerate(_compat.bind(eqn, args))]
    function = jax.custom_jvp(lambda _, outputs: outputs)
    function.defjvp(_Derivative(lambda *xs: _compat.bind(eqn, xs)), symbolic_zeros=True)
    return function(list(args), outputs)
