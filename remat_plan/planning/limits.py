"""What a user wants kept, recomputed, never recomputed, or never split: names turned into values and equations.

In: ``Graph``, ``Constraints`` (``checkpoint_name`` names and primitive names). Out: ``Limits``: the equations that
must not run again, the values that must not be kept, the equations that stay outside any segment or in one piece; the
same for every region inside, at any depth. ``planning.honours`` tells whether a schedule respects them.

What is kept by name is the output of the equation in front of the name (``planning.names``), so that an equation's own
derivative finds it too. Not to be kept holds for every alias (reshape, name) of a value, since they are the same bytes.

An equation whose derivative runs it again by itself (a ``scan``, a ``custom_vjp``) can only be kept from running
again by leaving it outside any segment. So is a structure with something inside that must not run again.

Limits: what is inside equations that are not planned inside (``while``, ``custom_vjp``) is not
seen. What depends on literals only is made again wherever it is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from remat_plan import _compat
from remat_plan.cost.rules import Kind, communicates, kind_of
from remat_plan.graph.action import action_of
from remat_plan.graph.flatten import live_eqns
from remat_plan.graph.needs import Need
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.structure import Trips, structure_of
from remat_plan.graph.uses import free_ops
from remat_plan.planning.constraints import Constraints
from remat_plan.planning.names import (
    Meant,
    all_regions,
    check_names,
    made_in,
    names_inside,
    structures_in,
    values_meant,
)
from remat_plan.small.wording import did_you_mean


@dataclass(frozen=True, slots=True)
class Limits:
    """Constraints on one region, in its numbers.

    Attributes:
        fixed: equations that must not run again inside a segment: their outputs are kept where they are read.
        forbidden: values that must not be kept.
        pinned: equations that stay outside any segment.
        whole: structures that must not run again themselves: run as they are.
        changed: structures that hold values which must not be kept: not run as they are, but inside a segment.
        unsplit: equations that do not run in slices.
        regions: limits of the regions inside structures, by ``id``, as far as there are any.
        movable: the values that may be kept on the host; None for all.
        actions: those that a value may be kept by, beside saving it as it is. They forbid nothing, so they do not
            count where limits are compared, and are the same in all regions.
        host_bytes: so much may be kept on the host.
    """

    fixed: frozenset[int] = frozenset()
    forbidden: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    changed: frozenset[int] = frozenset()
    unsplit: frozenset[int] = frozenset()
    movable: frozenset[int] | None = None
    regions: Mapping[int, Limits] = field(default_factory=dict, hash=False)
    actions: tuple[str, ...] = field(default=(), compare=False)
    host_bytes: float = field(default=math.inf, compare=False)

    @property
    def priced(self) -> tuple[str, ...]:
        """Those of ``actions`` whose seconds add up value by value: what goes to the host shares a link."""
        return tuple([name for name in self.actions if not action_of(name).on_host])

    def lets_move(self, values: Collection[int]) -> bool:
        """Whether values may be kept on the host."""
        return self.movable is None or self.movable.issuperset(values)

    def inside(self, region: Graph) -> Limits:
        """The limits of a region inside a structure."""
        return replace(self.regions.get(id(region), NO_LIMITS), actions=self.actions, host_bytes=self.host_bytes)

    def lets_split(self, ops: Collection[int], values: Collection[int]) -> bool:
        """Whether equations may run slice by slice, all of them again and with what they make kept or not."""
        named = self.fixed | self.pinned | self.whole | self.changed | self.unsplit
        return named.isdisjoint(ops) and self.forbidden.isdisjoint(values)

    @property
    def key(self) -> Hashable:
        """Equal for limits that count the same; None where that cannot be told: those of regions go by addresses."""
        return None if self.regions else (self, self.actions, self.host_bytes)

    @property
    def lets_stay_written(self) -> bool:
        """Whether the function as written will do: nobody has looked what it keeps, but it splits nothing."""
        return (
            replace(self, unsplit=frozenset(), movable=None, regions={}) == NO_LIMITS
        )  # what regions keep shows around them


NO_LIMITS = Limits()


def resolve(graph: Graph, constraints: Constraints) -> Limits:
    """Find the equations and values that constraints speak of, in a program and in the regions inside it.

    Raises:
        ValueError: an unknown name or primitive, or constraints that contradict each other.
    """
    if constraints.never_recompute is None:
        constraints = replace(constraints, never_recompute=collectives(graph))
    moved = () if constraints.may_offload is True else constraints.may_offload
    if constraints.is_free and not constraints.never_split and not moved:
        return replace(NO_LIMITS, **constraints.allowed)
    check_names(graph, "must_save", constraints.must_save)
    check_names(graph, "must_recompute", constraints.must_recompute)
    check_names(graph, "may_offload", moved)
    never = set(constraints.never_recompute or ())
    primitives = {op.primitive for region in all_regions(graph) for op in region.ops}
    if unknown := sorted(never - primitives):
        raise ValueError(
            f"never_recompute: the program has no primitive {unknown[0]!r}. It has: {', '.join(sorted(primitives))}."
        )
    named = constraints.must_save, constraints.must_recompute, _unsplit_names(graph, constraints, primitives)
    saved, again, unsplit = (values_meant(graph, set(names), {}) for names in named)
    movable = values_meant(graph, set(moved), {}) if moved else None
    limits = _resolve(graph, never, saved, again, (set(named[2]), unsplit), movable)
    return replace(limits, **constraints.allowed)


def _unsplit_names(graph: Graph, constraints: Constraints, primitives: set[str]) -> set[str]:
    """Return what ``never_split`` names; ``ValueError`` for what is no name and no primitive of the program."""
    if constraints.never_split is True:
        return primitives
    known = names_inside(graph)
    if unknown := sorted(set(constraints.never_split) - {*known, *primitives}):
        raise ValueError(
            f"never_split: {unknown[0]!r} is no name and no primitive of this program. Names: "
            f"{', '.join(map(repr, known)) or 'none'}. Primitives: {', '.join(sorted(primitives))}. Give some of them, "
            f"or never_split=True for no slices at all.{did_you_mean(unknown[0], [*known, *primitives])}"
        )
    return set(constraints.never_split)


def collectives(graph: Graph) -> tuple[str, ...]:
    """Return the primitives of a program, and of the regions inside it, that move data between devices."""
    ops = (op for region in all_regions(graph) for op in region.ops)
    return tuple(sorted({op.primitive for op in ops if communicates(op.eqn)}))


def _resolve(
    graph: Graph, never: set[str], saved: Meant, again: Meant, one_piece: tuple[set[str], Meant], movable: Meant | None
) -> Limits:
    """Return the limits of a region, given what the names stand for everywhere.

    ``one_piece``: names and primitives of what does not run in slices, and what values the names stand for.
    ``movable``: what may go to the host; None: all.
    """
    regions: dict[int, Limits] = {}
    holding, changed, handed_on = set(), set(), []
    named, values = one_piece
    unsplit = {graph.values[v].producer for v in made_in(graph, values[id(graph)])}
    unsplit |= {op.index for op in graph.ops if op.primitive in named}
    unsplit |= {v.producer for v in graph.values if v.name in named and v.producer >= 0}
    for op, region, trips in structures_in(graph):
        if id(region) not in regions:
            regions[id(region)] = _resolve(region, never, saved, again, one_piece, movable)
            _check_not_carried(region, trips, regions[id(region)].forbidden | again[id(region)])
        inner = regions[id(region)]
        holding.update([op.index] if inner.fixed | inner.pinned else [])
        unsplit.update([op.index] if inner.unsplit else [])
        changed.update([op.index] if inner.forbidden or inner.changed else [])
        handed_on += [v for v, made in zip(op.outputs, region.outputs, strict=True) if made in inner.forbidden]
    fixed = {graph.values[v].producer for v in made_in(graph, saved[id(graph)])}
    fixed |= {op.index for op in graph.ops if op.primitive in never}
    fixed -= free_ops(graph)
    pinned = {i for i in fixed if _must_stand_alone(graph, graph.ops[i])}
    forbidden = with_aliases(graph, made_in(graph, [*again[id(graph)], *handed_on]))
    for v in sorted(forbidden):
        op = graph.ops[graph.values[v].producer]
        if op.index in fixed and op.primitive != "name":
            raise ValueError(
                f"must_recompute: {op.primitive} {graph.values[v].text} would have to be recomputed, which "
                "must_save or never_recompute forbids."
            )
    return Limits(
        frozenset(fixed - pinned),
        forbidden,
        frozenset(pinned | holding),
        frozenset(i for i in fixed if structure_of(graph.ops[i]) is not None),
        frozenset(changed),
        frozenset(unsplit),
        None if movable is None else with_aliases(graph, movable[id(graph)]),
        {key: inner for key, inner in regions.items() if inner != NO_LIMITS},
    )


def _check_not_carried(region: Graph, trips: Trips | None, forbidden: frozenset[int]) -> None:
    """Raise ``ValueError`` if a value that must not be kept is what steps hand on: each step is given it."""
    for v in itertools.chain.from_iterable(trips.carried if trips is not None else ()):
        if v in forbidden and v >= 0:
            raise ValueError(
                f"must_recompute: {region.values[v].text} is carried from one step of a loop to the next, so it is "
                "saved there. Remove its name from must_recompute, or name a value that stays inside the step."
            )


def check_some(ways: Sequence[object], graph: Graph) -> None:
    """Raise ``ValueError`` if there is no way left to run a part of a region."""
    if not ways:
        there = ", ".join(map(repr, names_inside(graph))) or "none"
        raise ValueError(
            "must_save, must_recompute and never_recompute contradict each other. In one part of the program "
            f"(names there: {there}) a value that must not be saved can only be obtained by recomputing something "
            "that must not be recomputed. Remove a name from one of them."
        )


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
