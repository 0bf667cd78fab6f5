"""What a user wants kept, recomputed, or never recomputed: names turned into values and equations.

In: ``Graph``, ``Constraints`` (``checkpoint_name`` names and primitive names). Out: ``Limits``: the equations that
must not run again, the values that must not be kept, the equations that stay outside any segment.

A name stands for the value that was named: ``checkpoint_name`` is an alias, so what is kept is the output of the
equation in front of it, and an equation's own derivative finds it too. Not to be kept holds for every alias
(reshape, name) of a value, since they are the same bytes.

An equation whose derivative runs it again by itself (a ``scan``, a ``custom_vjp``) can only be kept from running
again by leaving it outside any segment.

Limits: names and primitives inside loops and branches are not seen, as their insides are not planned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from remat_plan import _compat
from remat_plan.cost.rules import Kind, kind_of
from remat_plan.graph.flatten import live_eqns
from remat_plan.graph.needs import Need
from remat_plan.graph.records import TAG_PREFIX, Graph, Op
from remat_plan.graph.structure import structure_of


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a user asked for, by name; arguments of ``api.plan``.

    Attributes:
        must_save: ``checkpoint_name`` names of values that are never computed again.
        must_recompute: ``checkpoint_name`` names of values that are not kept for the backward pass.
        never_recompute: names of primitives that never run again.
    """

    must_save: tuple[str, ...] = ()
    must_recompute: tuple[str, ...] = ()
    never_recompute: tuple[str, ...] = ()


NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True, slots=True)
class Limits:
    """Constraints on one program, in its numbers.

    Attributes:
        fixed: equations that must not run again inside a segment: their outputs are kept where they are read.
        forbidden: values that must not be kept.
        pinned: equations that stay outside any segment.
    """

    fixed: frozenset[int] = frozenset()
    forbidden: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()


NO_LIMITS = Limits()


def make_constraints(must_save: Any, must_recompute: Any, never_recompute: Any) -> Constraints:
    """Check what a user gave and return it as one value.

    Raises:
        TypeError: not a list of strings.
        ValueError: a name is to be kept and recomputed.

    >>> make_constraints(["attention"], (), ("psum",))
    Constraints(must_save=('attention',), must_recompute=(), never_recompute=('psum',))
    """
    saved = name_list("must_save", must_save)
    again = name_list("must_recompute", must_recompute)
    never = name_list("never_recompute", never_recompute)
    if both := sorted(set(saved) & set(again)):
        raise ValueError(f"{both[0]!r} is in must_save and in must_recompute: leave it out of one of them.")
    return Constraints(saved, again, never)


def name_list(argument: str, names: Any) -> tuple[str, ...]:
    """Return names as a sorted tuple, each once.

    Raises:
        TypeError: not a list of strings; ``argument`` is what the message calls it.
    """
    if names is None:
        return ()
    if isinstance(names, str):
        raise TypeError(f"{argument}={names!r}: give a list of names, [{names!r}].")
    given = list(names) if isinstance(names, Iterable) else [names]
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"{argument}={names!r}: give a list of names (strings).")
    return tuple(sorted(set(given)))


def known_names(graph: Graph) -> tuple[str, ...]:
    """Return the ``checkpoint_name`` names in a program."""
    return tuple(sorted({v.name for v in graph.values if v.name and not v.name.startswith(TAG_PREFIX)}))


def names_inside(graph: Graph) -> tuple[str, ...]:
    """Return the names in a program and in the regions inside it, those of loops and branches."""
    found = set(known_names(graph))
    for op in graph.ops:
        structure = structure_of(op)
        for region in structure.regions(graph, op) if structure is not None else ():
            found.update(names_inside(region))
    return tuple(sorted(found))


def check_names(graph: Graph, argument: str, names: Iterable[str]) -> None:
    """Raise ``ValueError`` for a name that no value of the program has; the message lists those there are."""
    known = known_names(graph)
    unknown = sorted(set(names) - set(known))
    if not unknown:
        return
    there = (
        f"Names in this program: {', '.join(map(repr, known))}."
        if known
        else "This program has no names: give values names with jax.ad_checkpoint.checkpoint_name(value, name)."
    )
    raise ValueError(
        f"{argument}: no value is named {unknown[0]!r}. {there} (Names inside loops and branches are not seen.)"
    )


def named_values(graph: Graph, names: Iterable[str]) -> tuple[int, ...]:
    """Return the values that were given one of these names, in order: what stands before the name.

    Arguments and constants are left out: the caller owns them.
    """
    wanted = set(names)
    found: dict[int, None] = {}
    for value in graph.values:
        if value.name in wanted:
            v = value.index
            while v >= 0 and graph.values[v].producer >= 0 and graph.ops[graph.values[v].producer].primitive == "name":
                v = graph.ops[graph.values[v].producer].operands[0]
            if v >= 0 and graph.values[v].producer >= 0:
                found.setdefault(v)
    return tuple(found)


def resolve(graph: Graph, constraints: Constraints) -> Limits:
    """Find the equations and values that constraints speak of.

    Raises:
        ValueError: an unknown name or primitive, or constraints that contradict each other.
    """
    if constraints == NO_CONSTRAINTS:
        return NO_LIMITS
    check_names(graph, "must_save", constraints.must_save)
    check_names(graph, "must_recompute", constraints.must_recompute)
    primitives = {op.primitive for op in graph.ops}
    if unknown := sorted(set(constraints.never_recompute) - primitives):
        raise ValueError(
            f"never_recompute: the program has no primitive {unknown[0]!r}. It has: {', '.join(sorted(primitives))}. "
            "(What stands inside loops and branches is not seen.)"
        )
    fixed = {graph.values[v].producer for v in named_values(graph, constraints.must_save)}
    fixed |= {op.index for op in graph.ops if op.primitive in constraints.never_recompute}
    pinned = {i for i in fixed if _must_stand_alone(graph, graph.ops[i])}
    forbidden = with_aliases(graph, named_values(graph, constraints.must_recompute))
    for v in sorted(forbidden):
        op = graph.ops[graph.values[v].producer]
        if op.index in fixed and op.primitive != "name":
            raise ValueError(
                f"must_recompute={list(constraints.must_recompute)}: {op.primitive} {graph.values[v].text} would have "
                "to run again, which must_save or never_recompute forbids."
            )
    return Limits(frozenset(fixed - pinned), forbidden, frozenset(pinned))


def with_aliases(graph: Graph, values: Iterable[int]) -> frozenset[int]:
    """Add what reshapes and names make of values, and what values are reshapes of (the same bytes)."""
    pairs: dict[int, list[int]] = {}
    for op in graph.ops:
        if kind_of(op.eqn) == Kind.ALIAS and len(op.outputs) == 1 and op.operands and op.operands[-1] >= 0:
            a, b = op.operands[-1], op.outputs[0]
            if graph.values[a].size_bytes == graph.values[b].size_bytes and graph.values[a].producer >= 0:
                pairs.setdefault(a, []).append(b)
                pairs.setdefault(b, []).append(a)
    found: set[int] = set()
    stack = list(values)
    while stack:
        v = stack.pop()
        if v not in found:
            found.add(v)
            stack += pairs.get(v, ())
    return frozenset(found)


def _must_stand_alone(graph: Graph, op: Op) -> bool:
    """Whether keeping an equation's outputs does not keep it from running again inside a segment."""
    if any(not hasattr(graph.values[v].aval, "shape") for v in op.outputs):
        return True
    need: Need = graph.needs[op.kind]
    if not op.differentiated or need.vjp is None:
        return False
    if need.internal_eqns and _compat.sub_jaxprs(op.eqn.params):
        return True
    return _runs_itself(need, op)


def _runs_itself(need: Need, op: Op) -> bool:
    """Whether the backward pass runs the primitive again although its outputs are there."""
    flat = need.vjp
    assert flat is not None
    n_outputs = len(op.outputs)
    available = {flat.outputs[j] for j in need.outputs}
    waiting = set(flat.inputs[len(op.reads) :])
    for eqn in flat.eqns:
        if any(o in waiting for o in eqn.operands):
            waiting.update(eqn.outputs)
    rest = [e for e in flat.eqns if not any(o in available for o in e.outputs)]
    live = live_eqns(rest, flat.outputs[n_outputs:])
    return any(
        e.eqn.primitive.name == op.primitive for e in live if not any(o in waiting for o in (*e.operands, *e.outputs))
    )
