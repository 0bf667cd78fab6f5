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

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from remat_plan import _compat
from remat_plan.graph.action import Action
from remat_plan.graph.needs import Derivative

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


def _pushed(eqn: Any, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """The JVP rule of a function of an equation's operands and outputs that returns the outputs."""
    (args, outputs), (directions, _) = primals, tangents
    moves = [not isinstance(t, SymbolicZero) for t in directions]
    if not any(moves):
        return outputs, [_no_tangent(x) for x in outputs]
    directions = _compat.partition_list(moves, directions)[1]
    derivative = Derivative(eqn, range(len(moves)), (), moves)
    jaxpr, consts = _compat.open_jaxpr(jax.make_jaxpr(derivative.push)(args, directions))
    own, results = jaxpr.outvars[: len(outputs)], jaxpr.outvars[len(outputs) :]
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args, *directions), strict=True))
    env.update((v, x) for v, x in zip(own, outputs, strict=True) if not _compat.is_literal(v))
    moved = _compat.depending(jaxpr.eqns, jaxpr.invars[len(args) :])
    needed = _compat.needed_equations(jaxpr.eqns, results, frozenset(env))
    pushed = zip(_compat.run_equations(needed, env, results), results, outputs, strict=True)
    return outputs, [t if not _compat.is_literal(v) and v in moved else _no_tangent(x) for t, v, x in pushed]


def _no_tangent(value: Any) -> SymbolicZero:
    """What JAX takes for "no tangent": a zero that is an array would be carried on like any tangent."""
    return SymbolicZero(jax.typeof(value).to_tangent_aval())


def run_tagged(eqn: Any, args: Sequence[Any], names: dict[int, Tag]) -> list[Any]:
    """Run an equation on its operands and tag some outputs (by position) for a checkpoint policy."""
    outputs = [tagged(x, names[i]) if i in names else x for i, x in enumerate(_compat.bind(eqn, args))]
    function = jax.custom_jvp(lambda _, outputs: outputs)
    function.defjvp(partial(_pushed, eqn), symbolic_zeros=True)
    return function(list(args), outputs)
