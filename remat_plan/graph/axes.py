"""Along which axis the elements of an equation stay apart, so that it can be run slice by slice.

In: an equation, and what is known of one axis through it: a dimension of an operand or a result.
Out: ``Axis``: the dimension of every operand and result along it; or None, where the elements along it are not apart.
``places_inside``: the variables inside that are on the axis, each with its dimension, or how its partial results are
joined.

What a primitive does with an axis, ``graph.labels`` tells. Through an equation that holds others (calls, rules of
``custom_jvp``, scans) the axis spreads from what is known over the equations inside, forwards and backwards, until
nothing is added. It stays apart only if it does through every equation that it reaches. A value that is carried has it
in the same dimension before and after each step. The rule of a ``custom_jvp`` must keep the same axis apart: it is
traced at full size, as a jaxpr of operands and tangents, and so are rules that it uses in turn.

Dimensions of one axis may have different extents: a reshape that merges (B, S) has B and B·S. A number of units must
divide them all: every extent inside must be a multiple of what those outside have in common.

Limits: a result that no part of the axis reaches (the counter of a loop) is not apart, so neither is the equation.
Partial results may not be read inside, nor carried. ``while``, ``cond``, ``custom_vjp``, calls with shardings, rules
that ask for symbolic zeros, any dimension that is spread over devices, any equation with effects: never apart.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from remat_plan import _compat
from remat_plan.graph.calls import inlinable
from remat_plan.graph.labels import Labels, labels_of
from remat_plan.graph.needs import Derivative


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis through an equation.

    Attributes:
        operands: the dimension of each along the axis; None: it is read whole.
        results: the dimension of each, or how partial results are joined: ``"add"``, ``"max"``, ``"min"``.
    """

    operands: tuple[int | None, ...]
    results: tuple[int | str, ...]


Place: TypeAlias = int | str
"""A dimension, or how partial results are joined."""

Rules: TypeAlias = frozenset[tuple[str, Axis]]
"""The rules that are being looked through: where one calls its own function again, nothing new can be found."""


@dataclass(frozen=True, slots=True)
class Inside:
    """What an equation holds.

    Attributes:
        jaxpr: open; ``constants``: the values of its constants.
        whole: how many operands are the same in all steps, constants and first carries.
        carried: how many results are carried; operands after ``whole``, results after ``carried`` have steps in front.
        is_loop: a scan.
    """

    jaxpr: Any
    constants: tuple[Any, ...]
    whole: int = 0
    carried: int = 0
    is_loop: bool = False

    def down(self, places: Sequence[Place | None], border: int) -> list[Place | None] | None:
        """The places in one step, from those outside; None where the axis is that of the steps."""
        if not self.is_loop:
            return list(places)
        found = [p if i < border or not isinstance(p, int) else p - 1 for i, p in enumerate(places)]
        return None if -1 in found else found

    def up(self, places: Sequence[Place | None], border: int) -> list[Place | None]:
        """The places outside, from those in one step."""
        rows = 1 if self.is_loop else 0
        return [p + rows if i >= border and isinstance(p, int) else p for i, p in enumerate(places)]


def inside_of(eqn: Any) -> Inside | None:
    """Return what an equation runs on its operands; None for those that hold nothing, or are not looked into."""
    if eqn.primitive.name == "scan":
        consts, carried = _compat.scan_counts(eqn)
        return Inside(*_compat.open_jaxpr(eqn.params["jaxpr"]), consts + carried, carried, is_loop=True)
    called = _compat.checkpointed_jaxpr(eqn) or _compat.custom_jvp_jaxpr(eqn) or inlinable(eqn)
    return None if called is None else Inside(*_compat.open_jaxpr(called))


def axis_of(
    eqn: Any, operands: Sequence[int | None], results: Sequence[Place | None], rules: Rules = frozenset()
) -> Axis | None:
    """Complete the axis of an equation from what is known of it (None: not known).

    None where the elements are not apart along it, where that contradicts what is known, or where no dimension is.

    Example:
        >>> import jax
        >>> product = jax.make_jaxpr(lambda x, w: x @ w)(jax.numpy.ones((8, 4)), jax.numpy.ones((4, 6))).eqns[0]
        >>> axis_of(product, [0, None], [None])
        Axis(operands=(0, None), results=(0,))
        >>> axis_of(product, [1, None], [None])
        Axis(operands=(1, 0), results=('add',))
    """
    if eqn.effects or not any(isinstance(d, int) for d in (*operands, *results)):
        return None
    if (held := inside_of(eqn)) is not None:
        axis = _axis_inside(eqn, held, operands, results, rules)
    else:
        labels = labels_of(eqn)
        axis = None if labels is None else _complete(labels, operands, results)
    return None if axis is None or _is_spread_over_devices(eqn, axis) else axis


def _complete(labels: Labels, operands: Sequence[int | None], results: Sequence[Place | None]) -> Axis | None:
    found = {row[d] for row, d in zip(labels.operands, operands, strict=True) if d is not None}
    found |= {row[d] for row, d in zip(labels.results, results, strict=True) if isinstance(d, int)}
    if len(found) > 1 or (label := found.pop()) is None:
        return None
    taken = [row.index(label) if label in row else None for row in labels.operands]
    given = [row.index(label) if label in row else labels.joins.get(label) for row in labels.results]
    known = zip((*operands, *results), (*taken, *given), strict=True)
    if any(k is not None and k != d for k, d in known):
        return None
    axis = Axis(tuple(taken), tuple([d for d in given if d is not None]))
    return axis if len(axis.results) == len(given) else None


def _is_spread_over_devices(eqn: Any, axis: Axis) -> bool:
    places = zip((*eqn.invars, *eqn.outvars), (*axis.operands, *axis.results), strict=True)
    return any(isinstance(d, int) and _compat.is_spread(getattr(a.aval, "sharding", None), d) for a, d in places)


def _axis_inside(
    eqn: Any, held: Inside, operands: Sequence[int | None], results: Sequence[Place | None], rules: Rules
) -> Axis | None:
    """Complete the axis of an equation that holds a jaxpr."""
    places = places_inside(held, operands, results, rules)
    if places is None:
        return None
    taken = held.up(_read(places, held.jaxpr.invars), held.whole)
    given = held.up(_read(places, held.jaxpr.outvars), held.carried)
    axis = Axis(tuple([p if isinstance(p, int) else None for p in taken]), tuple([p for p in given if p is not None]))
    if len(axis.results) < len(given) or not _in_units(eqn, axis, places):
        return None
    return axis if _compat.custom_jvp_jaxpr(eqn) is None or _rule_keeps(eqn, axis, rules) else None


def places_inside(
    held: Inside, operands: Sequence[int | None], results: Sequence[Place | None], rules: Rules = frozenset()
) -> dict[Any, Place] | None:
    """Return the variables on the axis in what an equation holds; None where that does not keep the axis apart."""
    taken, given = held.down(operands, held.whole), held.down(results, held.carried)
    if taken is None or given is None:
        return None
    first = held.whole - held.carried
    carried = list(zip(held.jaxpr.invars[first : held.whole], held.jaxpr.outvars[: held.carried], strict=True))
    return spread(held.jaxpr, taken, given, carried, rules)


def spread(
    jaxpr: Any,
    operands: Sequence[Place | None],
    results: Sequence[Place | None],
    carried: Sequence[tuple[Any, Any]],
    rules: Rules,
) -> dict[Any, Place] | None:
    """Spread an axis over a jaxpr; None where an equation that it reaches does not keep it apart.

    ``carried``: variables before and after a step, which are in the same place.
    """
    places: dict[Any, Place] = {}
    known = [*zip(jaxpr.invars, operands, strict=True), *zip(jaxpr.outvars, results, strict=True)]
    if not _put(places, known):
        return None
    asked: dict[int, tuple[Any, ...]] = {}  # of each equation: what was known of it when it was asked about last
    while True:
        before = len(places)
        for eqn in (*jaxpr.eqns, *reversed(jaxpr.eqns)):
            taken, given = _read(places, eqn.invars), _read(places, eqn.outvars)
            state = (*taken, *given)
            if all(p is None for p in state) or asked.get(id(eqn)) == state:
                continue
            if any(isinstance(p, str) for p in taken):
                return None
            axis = axis_of(eqn, [p for p in taken if not isinstance(p, str)], given, rules)
            found = (
                () if axis is None else zip((*eqn.invars, *eqn.outvars), (*axis.operands, *axis.results), strict=True)
            )
            if axis is None or not _put(places, found):
                return None
            asked[id(eqn)] = (*_read(places, eqn.invars), *_read(places, eqn.outvars))
        for start, end in carried:
            if not _put(places, zip((start, end), reversed(_read(places, (start, end))), strict=True)):
                return None
            if isinstance(places.get(start), str):
                return None
        if len(places) == before:
            return places


def _put(places: dict[Any, Place], found: Iterable[tuple[Any, Place | None]]) -> bool:
    """Note where variables are; False where one is known to be elsewhere, or is a literal."""
    for atom, place in found:
        if place is not None and (_compat.is_literal(atom) or places.setdefault(atom, place) != place):
            return False
    return True


def _read(places: dict[Any, Place], atoms: Sequence[Any]) -> list[Place | None]:
    return [None if _compat.is_literal(a) else places.get(a) for a in atoms]


def _in_units(eqn: Any, axis: Axis, places: dict[Any, Place]) -> bool:
    """Tell whether any number of units that the extents outside are multiples of fits those inside too."""
    outside = zip((*eqn.invars, *eqn.outvars), (*axis.operands, *axis.results), strict=True)
    unit = math.gcd(*[v.aval.shape[p] for v, p in outside if isinstance(p, int)])
    return unit > 0 and not any(v.aval.shape[p] % unit for v, p in places.items() if isinstance(p, int))


def _rule_keeps(eqn: Any, axis: Axis, rules: Rules) -> bool:
    """Tell whether the rule of a ``custom_jvp`` keeps the axis of its function apart."""
    key = (str(_compat.custom_jvp_jaxpr(eqn)), axis)
    if key in rules:
        return True
    places = rule_places(eqn, axis, rules | {key})
    return places is not None and _in_units(eqn, axis, places)


def rule_places(eqn: Any, axis: Axis, rules: Rules = frozenset()) -> dict[Any, Place] | None:
    """Return the variables on the axis in ``rule_of`` an equation; None where that does not keep the axis apart."""
    rule = rule_of(eqn)
    if rule is None:
        return None
    moves = [_compat.is_float(a.aval) for a in eqn.invars]
    floats = [_compat.is_float(v.aval) for v in eqn.outvars]
    taken = [*axis.operands, *_compat.partition_list(moves, axis.operands)[1]]
    given = [*axis.results, *_compat.partition_list(floats, axis.results)[1]]
    places = spread(rule[0], taken, given, (), rules)
    # an operand or a tangent that the function does not have on the axis is whole when the rule is run
    return None if places is None or _read(places, rule[0].invars) != taken else places


def rule_of(eqn: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the rule of a ``custom_jvp`` as an open jaxpr and its constants; None where it cannot be traced.

    It is a function of all operands and the tangents of those that are floats, to all results and the tangents of
    those that are.
    """
    traced = _traced.__wrapped__ if _compat.checking_leaks() else _traced
    return traced(eqn, _compat.trace_context())


@functools.lru_cache(maxsize=256)  # an equation is asked about once for every dimension, and each trace is slow
def _traced(eqn: Any, context: Any) -> tuple[Any, tuple[Any, ...]] | None:
    del context  # it is part of the key
    moves = [_compat.is_float(a.aval) for a in eqn.invars]
    floats = [_compat.is_float(v.aval) for v in eqn.outvars]
    derivative = Derivative(eqn, range(len(moves)), (), moves)
    tangents = _compat.partition_list(moves, derivative.structs)[1]

    def push(values: list[Any], moving: list[Any]) -> list[Any]:
        outputs, directions = derivative.push(values, moving)
        return [*outputs, *_compat.partition_list(floats, directions)[1]]

    try:
        return _compat.open_jaxpr(jax.make_jaxpr(push)(derivative.structs, tangents))
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        # the user's rule refuses, or has an error; where a derivative is taken, JAX raises that again
        return None
