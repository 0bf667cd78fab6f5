"""Programs whose bytes are all in one equation that is not planned inside: a ``custom_vjp``, mostly.

In: a ``Judge``; a budget. Out: ``Opaque``, or nothing; ``BudgetError``. Nothing is compiled.

The gradient of such an equation is found by a rule of its own, which keeps its own residuals. Around it a schedule can
do nothing: while its backward pass runs they are all there, whether it was recomputed or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.cost.memory import evaluate
from remat_plan.cost.rules import Kind, kind_of
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.structure import structure_of
from remat_plan.results.shortfall import all_in_one
from remat_plan.search.driver import DOUBT
from remat_plan.search.judge import Judge
from remat_plan.small.budget import Budget


@dataclass(frozen=True)
class Opaque:
    """An equation that needs all that a program needs.

    Attributes:
        eqn: the equation.
        size_bytes: what its own gradient step needs beside its arguments and results.
        plain_bytes: the program's plain peak, as predicted.
        saved_share: no schedule saves more than this share of it.
    """

    eqn: Any
    size_bytes: int
    plain_bytes: int
    saved_share: float


def find_opaque(judge: Judge) -> Opaque | None:
    """The equation of a program that needs all that the program needs, if there is one.

    All but ``DOUBT``: no schedule could save more than the rest, and predictions are off by as much.
    """
    program = judge.program
    candidates = [op for op in program.graph.ops if op.differentiated and _is_closed(op)]
    if not candidates:
        return None
    largest = max(candidates, key=lambda op: _kept_bytes(program.graph, op))
    alone = evaluate(_gradient_step(program.graph, largest), judge.hardware)
    needed = alone.peak_bytes - alone.argument_bytes - alone.output_bytes
    plain = judge.predicted_bytes(program.plain)
    if needed < (1 - DOUBT) * (plain - judge.owned_bytes):
        return None
    return Opaque(largest.eqn, needed, plain, max(0.0, 1 - (judge.owned_bytes + needed) / plain))


def check_opaque(parts: Sequence[Opaque | None], budget: Budget, plain_bytes: int | None = None) -> None:
    """Raise ``BudgetError`` where all that could be planned is such equations, and more would have to be saved.

    Before anything is compiled that is known of a share of the plain peak, of bytes afterwards.

    Args:
        parts: what was found of each program (each mark of a training step).
        budget: what was asked for.
        plain_bytes: the plain peak, as compiled; None before that.
    """
    found = [part for part in parts if part is not None]
    if not found or len(found) < len(parts):
        return
    largest = max(found, key=lambda part: part.size_bytes)
    plain = largest.plain_bytes if plain_bytes is None else plain_bytes
    share = budget.fraction if budget.size_bytes is None else plain_bytes and budget.size_bytes / plain_bytes
    if share and share < 1 - sum(part.saved_share for part in found):
        of_plain, verified = largest.size_bytes / largest.plain_bytes, plain_bytes is not None
        raise all_in_one(largest.eqn, of_plain, has_rule(largest.eqn), budget.text, int(share * plain), plain, verified)


def _is_closed(op: Op) -> bool:
    """Whether equations inside are out of reach: of a rule of the user's own, or of a loop that stays whole."""
    return structure_of(op) is None and (has_rule(op.eqn) or kind_of(op.eqn) is Kind.REGION)


def has_rule(eqn: Any) -> bool:
    """Whether the gradient of an equation has a rule of its own."""
    return any(map(_compat.is_function, eqn.params.values()))


def _kept_bytes(graph: Graph, op: Op) -> int:
    """What plain JAX keeps of an equation, inside and of its operands."""
    return graph.needs[op.kind].internal_bytes + sum(graph.values[v].size_bytes for v in op.reads)


def _gradient_step(graph: Graph, op: Op) -> Any:
    """The jaxpr of an equation and its gradient, by the operands that carry a tangent."""
    operands = [graph.literals[-1 - o] if o < 0 else _compat.struct(graph.values[o].aval) for o in op.operands]
    moving = [i for i, active in enumerate(op.active) if active]
    given = graph.needs[op.kind].given

    def step(values: list[Any], cotangents: list[Any]) -> Any:
        full = iter(values)
        known = [x if o < 0 else next(full) for x, o in zip(operands, op.operands, strict=True)]

        def run(*floats: Any) -> list[Any]:
            new = dict(zip(moving, floats, strict=True))
            outputs = _compat.bind(op.eqn, [new.get(i, x) for i, x in enumerate(known)])
            return [x for x, g in zip(outputs, given, strict=True) if g]

        outputs, pull = jax.vjp(run, *[known[i] for i in moving])
        return outputs, pull(cotangents)

    shapes = [x for x, o in zip(operands, op.operands, strict=True) if o >= 0]
    cotangents = [_compat.struct(v.aval) for v, g in zip(op.eqn.outvars, given, strict=True) if g]
    return jax.make_jaxpr(step)(shapes, cotangents)
