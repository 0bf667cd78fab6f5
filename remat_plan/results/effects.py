"""Equations with effects (``jax.debug.print``, callbacks), and what they keep from being planned.

In: a ``Graph``. Out: texts with source lines, for the notes of a plan and for errors. An effect must happen exactly
once and in its order. What only tells something runs behind the segment that it is in, and keeps nothing from being
planned. What is read by others is never inside a segment; a loop with an effect in its steps is planned inside, but no
group of its steps is run again; an equation that holds one and cannot be planned inside stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from remat_plan import _compat
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.structure import is_loop, structure_of
from remat_plan.results.decisions import line_text

_SHOWN = 3
"""How many places a text names; the others are counted."""


def effect_places(graph: Graph) -> tuple[str, ...]:
    """Primitive and source line of each effect that keeps something from being planned, those inside loops too."""
    return tuple(dict.fromkeys(_text(_innermost(op.eqn)) for op in _in_the_way(graph)))


def effect_notes(graph: Graph) -> list[str]:
    """What is not planned because of effects: where, why, and what to do; nothing where nothing is lost."""
    ops = list(_in_the_way(graph))
    loops = _around([op for op in ops if is_loop(op)])
    whole = _around([op for op in ops if not is_loop(op) and _innermost(op.eqn) is not op.eqn])
    apart = dict.fromkeys(_text(op.eqn) for op in ops if _innermost(op.eqn) is op.eqn)
    reason = "an effect must happen exactly once. Take it out, or return the value and use it outside"
    notes = []
    if loops:
        notes.append(f"each step is planned, and none is run again in a group: {loops}; {reason}, if the peak is high")
    if whole:
        notes.append(f"left as a whole, with nothing planned inside: {whole}; {reason}")
    if apart:
        notes.append(f"no segment goes across {_listed(apart)}: {reason}, if that keeps the peak high")
    return notes


def _in_the_way(graph: Graph) -> Iterator[Op]:
    """Yield the operations that are planned less freely because of effects, of the regions inside too."""
    for op in graph.ops:
        structure = structure_of(op) if op.index in graph.apart else None
        if op.index in graph.apart and (structure is None or is_loop(op)):
            yield op
        for region in structure.regions(graph, op) if structure is not None else ():
            yield from _in_the_way(region)


def _around(ops: Iterable[Op]) -> str:
    inside = {_text(op.eqn): _text(_innermost(op.eqn)) for op in ops}
    return _listed(f"{outer} (for {inner} in it)" for outer, inner in inside.items())


def _innermost(eqn: Any) -> Any:
    for sub in _compat.sub_jaxprs(eqn.params):
        for inner in _compat.open_jaxpr(sub)[0].eqns:
            if _compat.has_effects(inner):
                return _innermost(inner)
    return eqn


def _text(eqn: Any) -> str:
    return f"{eqn.primitive.name} {line_text(eqn)}".strip()


def _listed(texts: Iterable[str]) -> str:
    told = list(texts)
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return ", ".join(told[:_SHOWN]) + more
