"""Equations with effects (``jax.debug.print``, ordered callbacks), and what they keep from being planned.

In: a ``Graph``. Out: texts with source lines, for the notes of a plan and for errors. An effect must happen exactly
once and in its order, so an equation that has one is never inside a segment, and a loop, a branch or a call that holds
one stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from remat_plan import _compat
from remat_plan.graph.records import Graph
from remat_plan.results.decisions import line_text

_SHOWN = 3
"""How many places a text names; the others are counted."""


def effect_places(graph: Graph) -> tuple[str, ...]:
    """Primitive and source line of each effect, those inside loops, branches and calls too."""
    return tuple(dict.fromkeys(_text(inner) for _, inner in _effects(graph)))


def effect_notes(graph: Graph) -> list[str]:
    """What is not planned because of effects: where, why, and what to do; nothing for a program without."""
    around = {_text(outer): _text(inner) for outer, inner in _effects(graph) if outer is not inner}
    apart = dict.fromkeys(_text(outer) for outer, inner in _effects(graph) if outer is inner)
    notes = []
    if around:
        whole = _listed(f"{outer} (for {inner} in it)" for outer, inner in around.items())
        notes.append(
            f"left as a whole, with nothing planned inside: {whole}. An effect must happen exactly once; take it out, "
            "or return the value and use it outside"
        )
    if apart:
        notes.append(
            f"no segment goes across {_listed(apart)}: an effect must happen exactly once. Take it out, or return the "
            "value and use it outside, if that keeps the peak high"
        )
    return notes


def _effects(graph: Graph) -> Iterator[tuple[Any, Any]]:
    """Equations of the program with effects, each with the innermost equation in it that has one, perhaps itself."""
    return ((op.eqn, _innermost(op.eqn)) for op in graph.ops if op.effectful)


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
