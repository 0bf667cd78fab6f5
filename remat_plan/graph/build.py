"""From a function to its ``Graph``.

In: a function, example arguments (arrays or ``ShapeDtypeStruct``), which flat arguments are differentiated.
Out: ``Graph`` with activity (what carries tangents and cotangents) and needs per class of equal equations.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from remat_plan import _compat
from remat_plan.graph.flatten import Flat, flatten
from remat_plan.graph.merge import merge_equal
from remat_plan.graph.needs import Need, find_need
from remat_plan.graph.records import Graph, Op, Value

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|<function [^>]*>|<jax\.[^>]*>|object at [^>]*")


def param_text(eqn: Any) -> str:
    """Return the parameters of an equation as text without addresses, equal in every process."""
    simple = []
    for key in sorted(eqn.params):
        value = eqn.params[key]
        if callable(value) and not hasattr(value, "eqns") and not hasattr(value, "jaxpr"):
            simple.append(f"{key}={getattr(value, '__name__', type(value).__name__)}")
        else:
            simple.append(f"{key}={value}")
    return _ADDRESS.sub("", ";".join(simple))


class Texts:
    """Parameter texts, each jaxpr-carrying equation printed once."""

    def __init__(self) -> None:
        self.known: dict[Any, str] = {}

    def of(self, eqn: Any) -> str:
        try:
            key = (eqn.primitive, tuple(sorted((k, v) for k, v in eqn.params.items())))
            hash(key)
        except TypeError:
            return param_text(eqn)
        if key not in self.known:
            self.known[key] = param_text(eqn)
        return self.known[key]


def _class_key(eqn: Any, text: str, operands: tuple[int, ...], literals: list[Any], active: tuple[bool, ...]) -> Any:
    ins = tuple(
        ("lit", repr(literals[-1 - o])) if o < 0 else (a.aval.shape, str(a.aval.dtype))
        for a, o in zip(eqn.invars, operands, strict=True)
    )
    return eqn.primitive.name, text, ins, active


def build(closed: Any, differentiated: tuple[bool, ...], keep_remat: bool = False, merge: bool = True) -> Graph:
    """Build the graph of a closed jaxpr.

    Args:
        closed: ``jax.make_jaxpr`` of the function on flat arguments.
        differentiated: which flat arguments gradients are taken of.
        keep_remat: leave the user's own ``jax.checkpoint`` regions whole.
        merge: take equal equations as one.
    """
    flat = flatten(closed, keep_remat)
    count = len(flat.eqns)
    if merge:
        flat = merge_equal(flat)
    tangent = {v for v, d in zip(flat.inputs, differentiated, strict=True) if d}
    texts = Texts()
    classes: dict[Any, int] = {}
    needs: list[Need] = []
    rows: list[tuple[int, tuple[bool, ...]]] = []
    for item in flat.eqns:
        active = tuple(o in tangent for o in item.operands)
        key = _class_key(item.eqn, texts.of(item.eqn), item.operands, flat.literals, active)
        if key not in classes:
            classes[key] = len(needs)
            needs.append(find_need(item.eqn, item.operands, flat.literals, active))
        kind = classes[key]
        rows.append((kind, active))
        tangent.update(o for o, a in zip(item.outputs, needs[kind].active_outputs, strict=True) if a)
    reached = _reached(flat, needs, rows, tangent)
    graph = _graph(flat, needs, rows, reached, differentiated)
    return replace(graph, keep_remat=keep_remat, merged=count - len(flat.eqns))


def _reached(flat: Flat, needs: list[Need], rows: list[tuple[int, tuple[bool, ...]]], tangent: set[int]) -> set[int]:
    """Return the values that carry a tangent and that a cotangent reaches."""
    reached = {o for o in flat.outputs if o in tangent}
    for item, (kind, active) in zip(reversed(flat.eqns), reversed(rows), strict=True):
        arrives = any(o in reached and a for o, a in zip(item.outputs, needs[kind].active_outputs, strict=True))
        if arrives:
            reached.update(o for o, a in zip(item.operands, active, strict=True) if a)
    return reached


def _graph(
    flat: Flat,
    needs: list[Need],
    rows: list[tuple[int, tuple[bool, ...]]],
    reached: set[int],
    differentiated: tuple[bool, ...],
) -> Graph:
    producer = [-1] * len(flat.avals)
    names = [""] * len(flat.avals)
    ops = []
    for index, (item, (kind, active)) in enumerate(zip(flat.eqns, rows, strict=True)):
        for o in item.outputs:
            producer[o] = index
            if item.eqn.primitive.name == "name":
                names[o] = str(item.eqn.params.get("name", ""))
        hit = any(o in reached and a for o, a in zip(item.outputs, needs[kind].active_outputs, strict=True))
        ops.append(Op(index, item.eqn, item.operands, item.outputs, active, hit, kind, _compat.has_effects(item.eqn)))
    values = tuple(Value(i, aval, _compat.aval_bytes(aval), producer[i], names[i]) for i, aval in enumerate(flat.avals))
    return Graph(
        ops=tuple(ops),
        values=values,
        inputs=flat.inputs,
        differentiated_inputs=tuple(v for v, d in zip(flat.inputs, differentiated, strict=True) if d),
        constants=tuple(flat.constants),
        literals=tuple(flat.literals),
        outputs=flat.outputs,
        needs=tuple(needs),
        active=tuple(i in reached for i in range(len(flat.avals))),
    )
