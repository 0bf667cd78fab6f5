"""What a user wants kept, recomputed, or never recomputed: names turned into values and equations.

In: ``Graph``, ``Constraints`` (``checkpoint_name`` names and primitive names). Out: ``Limits``: the equations that
must not run again, the values that must not be kept, the equations that stay outside any segment; the same for every
region inside, at any depth. ``planning.honours`` tells whether a schedule respects them.

A name stands for the value that was named: ``checkpoint_name`` is an alias, so what is kept is the output of the
equation in front of it, and an equation's own derivative finds it too. Not to be kept holds for every alias
(reshape, name) of a value, since they are the same bytes.

An equation whose derivative runs it again by itself (a ``scan``, a ``custom_vjp``) can only be kept from running
again by leaving it outside any segment. So is a structure with something inside that must not run again.

A name that a region gives to one of its inputs stands for what is around it: for the operand, and of a carry for what
the step before carried out.

Limits: what is inside equations that are not planned inside (``while``, ``custom_vjp``) is not
seen. What depends on literals only is made again wherever it is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from remat_plan import _compat
from remat_plan.cost.rules import Kind, communicates, kind_of
from remat_plan.graph.action import offered_actions
from remat_plan.graph.flatten import live_eqns
from remat_plan.graph.needs import Need
from remat_plan.graph.records import TAG_PREFIX, Graph, Op
from remat_plan.graph.structure import Trips, structure_of
from remat_plan.graph.uses import free_ops
from remat_plan.small.wording import short


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a user asked for, by name; arguments of ``api.plan``.

    Attributes:
        must_save: ``checkpoint_name`` names of values that are never computed again.
        must_recompute: ``checkpoint_name`` names of values that are not kept for the backward pass.
        never_recompute: names of primitives that never run again; None for the collectives of the program, which keep
            all devices waiting for each other.
        actions: names of actions that a search may choose for a value, beside saving it as it is; those that are
            offered, where nothing is said.
    """

    must_save: tuple[str, ...] = ()
    must_recompute: tuple[str, ...] = ()
    never_recompute: tuple[str, ...] | None = None
    actions: tuple[str, ...] = field(default_factory=offered_actions)

    @property
    def is_free(self) -> bool:
        """Whether nothing was asked for."""
        return not (self.must_save or self.must_recompute or self.never_recompute)

    def by_name(self) -> Constraints:
        """What holds for a strategy that was asked for by name, which does what it says: collectives run again too."""
        return replace(self, never_recompute=self.never_recompute or (), actions=())


NO_CONSTRAINTS = Constraints(actions=())


@dataclass(frozen=True, slots=True)
class Limits:
    """Constraints on one region, in its numbers.

    Attributes:
        fixed: equations that must not run again inside a segment: their outputs are kept where they are read.
        forbidden: values that must not be kept.
        pinned: equations that stay outside any segment.
        whole: structures that must not run again themselves: run as they are.
        changed: structures that hold values which must not be kept: not run as they are, but inside a segment.
        regions: limits of the regions inside structures, by ``id``, as far as there are any.
        actions: those that a value may be kept by, beside saving it as it is. They forbid nothing, so they do not
            count where limits are compared, and are the same in all regions.
    """

    fixed: frozenset[int] = frozenset()
    forbidden: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    changed: frozenset[int] = frozenset()
    regions: Mapping[int, Limits] = field(default_factory=dict, hash=False)
    actions: tuple[str, ...] = field(default=(), compare=False)

    def inside(self, region: Graph) -> Limits:
        """The limits of a region inside a structure."""
        return replace(self.regions.get(id(region), NO_LIMITS), actions=self.actions)

    def lets_split(self, ops: Collection[int], values: Collection[int]) -> bool:
        """Whether equations may run slice by slice, all of them again and with what they make kept or not."""
        named = self.fixed | self.pinned | self.whole | self.changed
        return named.isdisjoint(ops) and self.forbidden.isdisjoint(values)


NO_LIMITS = Limits()


def make_constraints(must_save: Any, must_recompute: Any, never_recompute: Any) -> Constraints:
    """Check what a user gave and return it as one value.

    Raises:
        TypeError: not a list of strings.
        ValueError: a name is to be kept and recomputed.

    >>> make_constraints(["attention"], (), ("psum",))
    Constraints(must_save=('attention',), must_recompute=(), never_recompute=('psum',), actions=())
    """
    saved = name_list("must_save", must_save)
    again = name_list("must_recompute", must_recompute)
    never = None if never_recompute is None else name_list("never_recompute", never_recompute)
    if both := sorted(set(saved) & set(again)):
        raise ValueError(f"{both[0]!r} is in both must_save and must_recompute: remove it from one of them.")
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
        raise TypeError(f"{argument}={short(names)}: give a list of names (strings).")
    return tuple(sorted(set(given)))


def known_names(graph: Graph) -> tuple[str, ...]:
    """Return the ``checkpoint_name`` names in a program."""
    return tuple(sorted({v.name for v in graph.values if v.name and not v.name.startswith(TAG_PREFIX)}))


def all_regions(graph: Graph) -> Iterator[Graph]:
    """Yield a program and the regions inside it, at any depth."""
    yield graph
    for _, region, _ in _inside(graph):
        yield from all_regions(region)


def _inside(graph: Graph) -> Iterator[tuple[Op, Graph, Trips | None]]:
    """Yield structures with the regions inside them, and what they are as loops."""
    for op in graph.ops:
        if (structure := structure_of(op)) is not None:
            for region in structure.regions(graph, op):
                yield op, region, structure.loop(graph, op)


def names_inside(graph: Graph) -> tuple[str, ...]:
    """Return the names in a program and in the regions inside it, those of loops and branches."""
    return tuple(sorted({name for region in all_regions(graph) for name in known_names(region)}))


def check_names(graph: Graph, argument: str, names: Iterable[str]) -> None:
    """Raise ``ValueError`` for a name that no value of the program has, inside or out; the message lists those."""
    known = names_inside(graph)
    unknown = sorted(set(names) - set(known))
    if not unknown:
        return
    there = (
        f"Names in this program: {', '.join(map(repr, known))}."
        if known
        else "This program has no names: name values with jax.ad_checkpoint.checkpoint_name(value, name)."
    )
    raise ValueError(f"{argument}: no value is named {unknown[0]!r}. {there}")


def _source(graph: Graph, v: int) -> int:
    """Return what stands before the names of a value."""
    while v >= 0 and graph.values[v].producer >= 0 and graph.ops[graph.values[v].producer].primitive == "name":
        v = graph.ops[graph.values[v].producer].operands[0]
    return v


def _made(graph: Graph, values: Iterable[int]) -> list[int]:
    """Leave out arguments and constants: whoever is around owns them; and literals."""
    return [v for v in values if v >= 0 and graph.values[v].producer >= 0]


def named_values(graph: Graph, names: Iterable[str]) -> tuple[int, ...]:
    """Return the values that were given one of these names, in order: what stands before the name.

    Arguments and constants are left out: the caller owns them.
    """
    wanted = set(names)
    return tuple(dict.fromkeys(_made(graph, [_source(graph, v.index) for v in graph.values if v.name in wanted])))


Meant = dict[int, set[int]]
"""Per region (by ``id``) the values that names stand for, inputs of the region among them."""


def _meant(graph: Graph, names: set[str], found: Meant, carried: Sequence[tuple[int, int]] = ()) -> Meant:
    """Find what names stand for in a region and in those inside it; ``carried`` as in ``Trips``."""
    values = {_source(graph, v.index) for v in graph.values if v.name in names}
    for op, region, trips in _inside(graph):
        if id(region) not in found:
            _meant(region, names, found, trips.carried if trips is not None else ())
        operands = op.operands[len(op.operands) - len(region.inputs) :]
        pairs = zip(operands, region.inputs, strict=True)
        values |= {_source(graph, v) for v, given in pairs if given in found[id(region)]}
    for _ in carried:  # a carry may be handed on as another one
        values |= {_source(graph, after) for before, after in carried if before in values}
    found[id(graph)] = values
    return found


def resolve(graph: Graph, constraints: Constraints) -> Limits:
    """Find the equations and values that constraints speak of, in a program and in the regions inside it.

    Raises:
        ValueError: an unknown name or primitive, or constraints that contradict each other.
    """
    if constraints.never_recompute is None:
        constraints = replace(constraints, never_recompute=collectives(graph))
    if constraints.is_free:
        return replace(NO_LIMITS, actions=constraints.actions)
    check_names(graph, "must_save", constraints.must_save)
    check_names(graph, "must_recompute", constraints.must_recompute)
    never = set(constraints.never_recompute or ())
    primitives = {op.primitive for region in all_regions(graph) for op in region.ops}
    if unknown := sorted(never - primitives):
        raise ValueError(
            f"never_recompute: the program has no primitive {unknown[0]!r}. It has: {', '.join(sorted(primitives))}."
        )
    saved = _meant(graph, set(constraints.must_save), {})
    limits = _resolve(graph, never, saved, _meant(graph, set(constraints.must_recompute), {}))
    return replace(limits, actions=constraints.actions)


def collectives(graph: Graph) -> tuple[str, ...]:
    """Return the primitives of a program, and of the regions inside it, that move data between devices."""
    ops = (op for region in all_regions(graph) for op in region.ops)
    return tuple(sorted({op.primitive for op in ops if communicates(op.eqn)}))


def _resolve(graph: Graph, never: set[str], saved: Meant, again: Meant) -> Limits:
    """Return the limits of a region, given what the names stand for everywhere."""
    regions: dict[int, Limits] = {}
    holding, changed, handed_on = set(), set(), []
    for op, region, trips in _inside(graph):
        if id(region) not in regions:
            regions[id(region)] = _resolve(region, never, saved, again)
            _check_not_carried(region, trips, regions[id(region)].forbidden | again[id(region)])
        inner = regions[id(region)]
        holding.update([op.index] if inner.fixed | inner.pinned else [])
        changed.update([op.index] if inner.forbidden or inner.changed else [])
        handed_on += [v for v, made in zip(op.outputs, region.outputs, strict=True) if made in inner.forbidden]
    fixed = {graph.values[v].producer for v in _made(graph, saved[id(graph)])}
    fixed |= {op.index for op in graph.ops if op.primitive in never}
    fixed -= free_ops(graph)
    pinned = {i for i in fixed if _must_stand_alone(graph, graph.ops[i])}
    forbidden = with_aliases(graph, _made(graph, [*again[id(graph)], *handed_on]))
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
