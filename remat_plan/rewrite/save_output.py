"""Saving the output of an equation whose own backward pass reads it.

In: one equation, the outputs to save. Out: its values, with the saved ones tagged so that the equation's own
derivative reads the tagged value.

``checkpoint_name`` alone is not enough here: the JVP rule of ``tanh`` (or ``exp``, ``rsqrt``, ...) uses the
value before the tag, so JAX would run the equation again although its output is kept. The equation is therefore
wrapped in a ``custom_jvp`` whose rule is the primitive's own, evaluated with the tag put behind the equation
that makes the output. Values, tangents and higher derivatives are those of the primitive.
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


def _evaluate_tagged(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], tags: dict[Any, Tag]) -> list[Any]:
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        values = _compat.bind(eqn, [a.val if _compat.is_literal(a) else env[a] for a in eqn.invars])
        for var, value in zip(eqn.outvars, values, strict=True):
            env[var] = tagged(value, tags[var]) if var in tags else value
    return [a.val if _compat.is_literal(a) else env[a] for a in jaxpr.outvars]


class _Tagged:
    """One equation with names for some outputs, as a function and its JVP rule."""

    def __init__(self, run: Callable[..., list[Any]], names: dict[int, Tag]):
        self.run, self.names = run, names

    def __call__(self, *args: Any) -> list[Any]:
        outputs = self.run(*args)
        return [tagged(x, self.names[i]) if i in self.names else x for i, x in enumerate(outputs)]

    def jvp(self, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        moving = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

        def push(args: list[Any], directions: list[Any]) -> tuple[list[Any], list[Any]]:
            def along(*xs: Any) -> list[Any]:
                full = list(args)
                for i, x in zip(moving, xs, strict=True):
                    full[i] = x
                return self.run(*full)

            return jax.jvp(along, tuple(args[i] for i in moving), tuple(directions))

        directions = [tangents[i] for i in moving]
        if not moving:
            outputs = self(*primals)
            return outputs, [_no_tangent(x) for x in outputs]
        closed, shape = jax.make_jaxpr(push, return_shape=True)(list(primals), directions)
        jaxpr, consts = _compat.open_jaxpr(closed)
        n = len(shape[0])
        tags = {jaxpr.outvars[i]: name for i, name in self.names.items() if not _compat.is_literal(jaxpr.outvars[i])}
        values = _evaluate_tagged(jaxpr, consts, [*primals, *directions], tags)
        moved = depending(jaxpr, jaxpr.invars[len(primals) :])
        found = zip(values[:n], values[n:], jaxpr.outvars[n:], strict=True)
        return values[:n], [t if not _compat.is_literal(v) and v in moved else _no_tangent(x) for x, t, v in found]


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
    rule = _Tagged(lambda *xs: _compat.bind(eqn, xs), names)
    function = jax.custom_jvp(rule)
    function.defjvp(rule.jvp, symbolic_zeros=True)
    return function(*args)
