"""A loop that adds up a scalar, with its gradient made in the forward pass, as the evaluator runs it.

In: the unit of a step. Out: a ``Unit`` that mirrors ``loops.summed``: a loop over both passes of a step, which adds the
gradients of constants to sums that it carries and stacks those of rows; what is left for the backward pass is to
multiply them by the total's cotangent.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from remat_plan import _compat
from remat_plan.cost.facts import FactBook
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.passes import Numbers, Pull, Signature, Stack, Unit
from remat_plan.cost.program import Lowering
from remat_plan.cost.units import LoopStep, LoopUnit, stacked


class Places(NamedTuple):
    """How many constants a step has, how many values it carries, and which of these is the total."""

    n_consts: int
    n_carry: int
    total: int

    @property
    def first_row(self) -> int:
        """The first operand that is a row."""
        return self.n_consts + self.n_carry


class _GradientStep:
    """Both passes of a step: constants, carry, sums of gradients, rows to carry, sums, outputs, gradients of rows."""

    def __init__(self, inner: Unit, places: Places):
        self.inner, self.places = inner, places
        kinds, moving, border = inner.signature.inputs, inner.signature.moving, places.first_row
        self.constants = [i for i in range(places.n_consts) if moving[i]]
        self.rows = [i for i in range(border, len(kinds)) if moving[i]]
        self.sums = tuple([Stack(_compat.wide(kinds[i].aval)) for i in self.constants])
        made = inner.signature.outputs
        inputs = *kinds[:border], *self.sums, *kinds[border:]
        outputs = *made[: places.n_carry], *self.sums, *made[places.n_carry :], *[kinds[i] for i in self.rows]
        self.signature = Signature(inputs, outputs, (False,) * len(inputs), (False,) * len(outputs))

    def run(self, state: Lowering, inputs: Sequence[int]) -> Numbers:
        """Append both passes."""
        border, n_carry = self.places.first_row, self.places.n_carry
        sums = inputs[border : border + len(self.sums)]
        outputs, pull = self.inner.linearize(state, [*inputs[:border], *inputs[border + len(sums) :]])
        made = pull([state.one() if j == self.places.total else None for j in range(len(outputs))])
        kinds = self.inner.signature.inputs
        added = [
            total if (g := made[i]) is None else _apply(state, _addition(kinds[i].aval), total, g)
            for i, total in zip(self.constants, sums, strict=True)
        ]
        by_row = [state.new(kinds[i].aval) if (g := made[i]) is None else g for i in self.rows]
        return [*outputs[:n_carry], *added, *outputs[n_carry:], *by_row]

    def linearize(self, state: Lowering, inputs: Sequence[int]) -> tuple[Numbers, Pull]:
        """Append both passes; nothing is left for a backward pass."""
        return self.run(state, inputs), lambda _: [None] * len(inputs)


class SummedUnit:
    """``length`` steps that add up a scalar; ``eqn`` is shown for them."""

    def __init__(self, inner: Unit, places: Places, length: int, eqn: Any, facts: FactBook, hardware: Hardware):
        self.inner, self.places, self.length, self.eqn = inner, places, length, eqn
        self.shared = facts, hardware
        kinds = inner.signature
        rows = [i >= places.first_row for i in range(len(kinds.inputs))]
        outputs = stacked(kinds.outputs, [j >= places.n_carry for j in range(len(kinds.outputs))], length)
        self.signature = Signature(stacked(kinds.inputs, rows, length), outputs, kinds.moving, kinds.arriving)

    def run(self, state: Lowering, inputs: Sequence[int]) -> Numbers:
        """Append the loop without gradients."""
        step = LoopStep(self.inner, self.places.n_consts, self.places.n_carry, *self.shared)
        return LoopUnit(step, self.length, self.eqn).run(state, inputs)

    @functools.cached_property
    def both(self) -> tuple[_GradientStep, LoopUnit]:
        """Both passes of a step, and the loop over them."""
        step = _GradientStep(self.inner, self.places)
        loop = LoopStep(step, self.places.n_consts, self.places.n_carry + len(step.sums), *self.shared)
        return step, LoopUnit(loop, self.length, self.eqn)

    def linearize(self, state: Lowering, inputs: Sequence[int]) -> tuple[Numbers, Pull]:
        """Append the loop that makes the gradient too; the backward pass multiplies it by the cotangent."""
        step, loop = self.both
        (n_consts, n_carry, place), border = self.places, self.places.first_row
        zeros = [_apply(state, _zeros(kind.aval)) for kind in step.sums]
        made = loop.run(state, [*inputs[:border], *zeros, *inputs[border:]])
        sums, rest = made[n_carry : n_carry + len(zeros)], made[n_carry + len(zeros) :]
        count = len(self.signature.outputs) - n_carry
        gradients = dict(zip([*step.constants, *step.rows], [*sums, *rest[count:]], strict=True))

        def pull(cotangents: Sequence[int | None]) -> list[int | None]:
            cotangent = cotangents[place]
            pulled: list[int | None] = [None] * len(inputs)
            if cotangent is not None:
                pulled[n_consts + place] = cotangent if self.signature.moving[n_consts + place] else None
                for i, g in gradients.items():
                    own, total = _whole(self.signature.inputs[i]), self.signature.outputs[place].aval
                    scaling = _scaling(own, _compat.wide(own) if i < n_consts else own, total)
                    pulled[i] = _apply(state, scaling, g, cotangent)
            return pulled

        return [*made[:n_carry], *rest[:count]], pull


def _whole(kind: Stack) -> Any:
    """The type of an array of all rows."""
    return kind.aval if kind.rows == 1 else kind.aval.update(shape=(kind.rows, *kind.aval.shape))


def _apply(state: Lowering, closed: Any, *numbers: int) -> int:
    """Append what a jaxpr of one result makes of values."""
    jaxpr, _ = _compat.open_jaxpr(closed)
    env = dict(zip(jaxpr.invars, numbers, strict=True))
    state.run(jaxpr, env)
    made = jaxpr.outvars[0]
    return state.new(made.aval) if _compat.is_literal(made) else env[made]


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


@functools.cache
def _zeros(aval: Any) -> Any:
    return jax.make_jaxpr(lambda: jnp.zeros(aval.shape, aval.dtype))()


@functools.cache
def _addition(aval: Any) -> Any:
    """A gradient of a type added to a sum."""
    return jax.make_jaxpr(lambda total, g: total + g.astype(total.dtype))(_struct(_compat.wide(aval)), _struct(aval))


@functools.cache
def _scaling(aval: Any, made: Any, cotangent: Any) -> Any:
    """A gradient as it was made, times the cotangent of the total, as a gradient of a type."""
    scaled = lambda g, c: g.astype(aval.dtype) * c.astype(aval.dtype)  # noqa: E731
    return jax.make_jaxpr(scaled)(_struct(made), _struct(cotangent))
