"""One step of a loop, split into a forward part that keeps residuals and a backward part that reads them.

In: a ``Body``, and which of its inputs have gradients. Out: ``Taped``: the step that also returns its residuals, and
the pullback from residuals and cotangents to gradients.

The body's own VJP is traced, so its residuals are what JAX would keep. Not all of them need to be stored for each
step: one that is an input x of the step is read from xs again, one that is a value the body closes over is that
value, and one that depends on such values only is computed once for the whole loop (a weight cast to another type,
say). The rest is the *tape*.

Limits: every floating-point leaf of the carry counts as differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.loops.body import Body, Leaves


@dataclass(frozen=True, slots=True, eq=False)
class Taped:
    """A step and its pullback.

    Attributes:
        moves: which leaves of what is closed over, of the carry and of x are differentiated.
        jaxpr, constants: of (closed over, carry, x) to (carry, y, residuals).
        pull: the structure of the pullback around its residuals.
        sources: per residual where it comes from: ("closed", i), ("x", i), ("once", i), ("tape", i).
        once: the variables computed once for the loop.
        tape, kept: the types of what is stored for each step, and its positions among the residuals.
    """

    body: Body
    moves: tuple[Sequence[bool], Sequence[bool], Sequence[bool]]
    jaxpr: Any
    constants: tuple[Any, ...]
    pull: Any
    sources: tuple[tuple[str, int], ...]
    once: tuple[Any, ...]
    tape: tuple[jax.ShapeDtypeStruct, ...]
    kept: tuple[int, ...]

    @property
    def tape_bytes(self) -> int:
        """Bytes kept for each step."""
        return sum(_compat.aval_bytes(s) for s in self.tape)

    def forward(self, closed: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        """Run one step and return carry, y and what goes on the tape."""
        outputs = _compat.evaluate(self.jaxpr, self.constants, [*closed, *carry, *x])
        plain = len(carry) + len(self.body.y.structs)
        residuals = outputs[plain:]
        return outputs[: len(carry)], outputs[len(carry) : plain], [residuals[k] for k in self.kept]

    def compute_once(self, closed: Leaves) -> Leaves:
        """Return the residuals that are the same at every step."""
        variables = (*self.jaxpr.constvars, *self.jaxpr.invars[: len(closed)])
        known = dict(zip(variables, (*self.constants, *closed), strict=True))
        needed = _compat.needed_equations(_unchanging(self.jaxpr, len(closed)), self.once)
        return _compat.run_equations(needed, known, self.once)

    def backward(
        self, closed: Leaves, once: Leaves, x: Leaves, tape: Leaves, carry_ct: Leaves, y_ct: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        """Pull cotangents of the floating-point leaves of the carry and of y back through one step.

        Returns gradients of the differentiated leaves of what is closed over, of the carry before the step, and of x.
        """
        places = {"closed": closed, "once": once, "x": x, "tape": tape}
        residuals = [places[kind][i] for kind, i in self.sources]
        gradients = list(jax.tree.unflatten(self.pull, residuals)([*carry_ct, *y_ct]))
        first = sum(self.moves[0])
        second = first + sum(self.moves[1])
        return gradients[:first], gradients[first:second], gradients[second:]


def make_taped(body: Body, closed: Sequence[Any], closed_moves: Sequence[bool], x_moves: Sequence[bool]) -> Taped:
    """Differentiate a body by some of the values that it closes over (their types count), its carry, and some leaves of
    x."""
    moves = closed_moves, body.carry.floats, x_moves
    moving, floats = [m for part in moves for m in part], (*body.carry.floats, *body.y.floats)
    first, second = len(closed), len(closed) + len(body.carry.structs)
    structure = None

    def linearised(*inputs: Any) -> list[Any]:
        """A step that returns its residuals, and leaves the structure of its pullback behind."""
        nonlocal structure
        fixed, directions = _compat.partition_list(moving, inputs)

        def along(*values: Any) -> tuple[Leaves, Leaves]:
            full = _compat.merge_lists(moving, fixed, values)
            after, y = body(full[:first], full[first:second], full[second:])
            others, reached = _compat.partition_list(floats, [*after, *y])
            return reached, others

        reached, pull, others = jax.vjp(along, *directions, has_aux=True)
        residuals, structure = jax.tree.flatten(pull)
        return [*_compat.merge_lists(floats, others, reached), *residuals]

    structs = [_compat.struct(jax.typeof(c)) for c in closed]
    jaxpr, constants = _compat.open_jaxpr(jax.make_jaxpr(linearised)(*structs, *body.carry.structs, *body.x.structs))
    residuals = jaxpr.outvars[len(body.carry.structs) + len(body.y.structs) :]
    number = {v: ("closed", i) for i, v in enumerate(jaxpr.invars[: len(closed)])}
    number.update((v, ("x", i)) for i, v in enumerate(jaxpr.invars[len(jaxpr.invars) - len(x_moves) :]))
    unchanging = {*jaxpr.constvars, *(v for e in _unchanging(jaxpr, len(closed)) for v in e.outvars)}
    once: list[Any] = []
    kept: list[int] = []
    sources: list[tuple[str, int]] = []
    for position, v in enumerate(residuals):
        if _compat.is_literal(v):  # has no identity to be found by
            sources.append(("once", len(once)))
            once.append(v)
            continue
        if v not in number and v in unchanging:
            number[v] = ("once", len(once))
            once.append(v)
        elif v not in number:
            number[v] = ("tape", len(kept))
            kept.append(position)
        sources.append(number[v])
    tape = tuple(_compat.struct(residuals[k].aval) for k in kept)
    return Taped(body, moves, jaxpr, tuple(constants), structure, tuple(sources), tuple(once), tape, tuple(kept))


def _unchanging(jaxpr: Any, closed: int) -> list[Any]:
    """Return the equations that give the same values at every step: they depend on what is closed over only."""
    known = {*jaxpr.constvars, *jaxpr.invars[:closed]}
    found = []
    for eqn in jaxpr.eqns:
        if not _compat.has_effects(eqn) and all(_compat.is_literal(a) or a in known for a in eqn.invars):
            known.update(eqn.outvars)
            found.append(eqn)
    return found
