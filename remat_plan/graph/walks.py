"""Which values carry a tangent, and which of them a cotangent reaches.

In: a flattened program, the values that are differentiated, the values that are given a cotangent.
Out: both sets, and per equation its ``Need``.

As ``jax.grad`` does it: a walk forward by the JVP of each equation, a walk back by its VJP. What a cotangent never
reaches is given none, so rules are asked only for what JAX asks of them. Equal equations are traced once, also in
another program: the regions of segments in slices, and what is planned next, have most of them in common.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from remat_plan import _compat
from remat_plan.graph.flatten import Flat, FlatEqn
from remat_plan.graph.merge import identity, literal_key
from remat_plan.graph.needs import Need, find_need, has_one_gradient, moving_outputs

_LOG = logging.getLogger("remat_plan")

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|<function [^>]*>|<jax\.[^>]*>|object at [^>]*")

_PLACES = ("slice", "name")
"""Primitives whose parameters say where, or how it is called, and not how much work it is."""


def param_text(eqn: Any) -> str:
    """Return the parameters of an equation as text without addresses, equal in every process."""

    def shown(value: Any) -> Any:
        is_function = callable(value) and not hasattr(value, "eqns") and not hasattr(value, "jaxpr")
        return getattr(value, "__name__", type(value).__name__) if is_function else value

    return _ADDRESS.sub("", ";".join([f"{key}={shown(value)}" for key, value in sorted(eqn.params.items())]))


class Texts:
    """Parameter texts, each jaxpr-carrying equation printed once."""

    def __init__(self) -> None:
        self.known: dict[Any, str] = {}

    def of(self, eqn: Any) -> str:
        try:
            key = (eqn.primitive, tuple(sorted(eqn.params.items())))
            hash(key)
        except TypeError:  # a parameter that cannot be hashed: its text is made each time
            return param_text(eqn)
        if key not in self.known:
            self.known[key] = param_text(eqn)
        return self.known[key]


@dataclass(frozen=True, slots=True)
class Derivatives:
    """What differentiating a program does.

    ``kinds`` are the numbers of the equations' classes, in the order of ``needs``; ``alike`` numbers the classes that
    are equal work; ``active`` tells per equation which operands carry a tangent. ``moving`` values carry a tangent; a
    cotangent reaches those that are ``reached``.
    """

    needs: tuple[Need, ...]
    kinds: tuple[int, ...]
    alike: tuple[int, ...]
    active: tuple[tuple[bool, ...], ...]
    moving: frozenset[int]
    reached: frozenset[int]


def differentiate(flat: Flat, inputs: set[int], outputs: set[int]) -> Derivatives:
    """Follow tangents of ``inputs`` forward, and cotangents of ``outputs`` back.

    Where a rule is given a cotangent and no gradient depends on it, there was no tangent to speak of, and both walks
    are made again without it.
    """
    walks = _Walks(flat)
    useless: set[int] = set()
    while True:
        moving, active = walks.forward(inputs, useless)
        keys, reached = walks.back(active, moving & outputs)
        found = set()
        for item, key in zip(flat.eqns, keys, strict=True):
            need = walks.needs[key]
            flags = zip(item.outputs, need.given, need.active_outputs, strict=True)
            found.update([o for o, given, used in flags if given and not used])
        if not found:
            break
        useless |= found
    kinds = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return Derivatives(
        tuple([walks.needs[key] for key in kinds]),
        tuple([kinds[key] for key in keys]),
        walks.alike(kinds),
        tuple(active),
        frozenset(moving),
        frozenset(reached),
    )


@dataclass(frozen=True, slots=True)
class _Example:
    """An equation that stands for all equal ones, in any program: those of one key; it has none if it stands alone."""

    key: Any
    eqn: Any = field(compare=False)
    operands: tuple[int, ...] = field(compare=False)
    literals: list[Any] = field(compare=False)


def _shared(find: Callable[..., Any]) -> Callable[..., Any]:
    """What is found of an example and flags, once for equal ones."""

    def of(example: _Example, *flags: tuple[bool, ...]) -> Any:
        return find(example.eqn, example.operands, example.literals, *flags)

    known = functools.lru_cache(maxsize=4096)(of)  # a large program has some hundreds
    return lambda example, *flags: (of if example.key is None else known)(example, *flags)


_moving, _need = _shared(moving_outputs), _shared(find_need)


class _Walks:
    """The walks over one program, with what was traced for them."""

    def __init__(self, flat: Flat):
        self.flat, self.texts, self.context = flat, Texts(), _compat.trace_context()
        known: dict[Any, int] = {}
        self.classes = [known.setdefault(self.signature(item), len(known)) for item in flat.eqns]
        first = dict(zip(reversed(self.classes), reversed(flat.eqns), strict=True))
        self.examples = {number: self.example(item) for number, item in first.items()}
        self.moves: dict[Any, tuple[bool, ...]] = {}
        self.needs: dict[Any, Need] = {}

    def signature(self, item: FlatEqn) -> Any:
        """What equal equations have in common: primitive, parameters, types of operands, literals."""
        ins = tuple(
            ("lit", literal_key(self.flat.literals[-1 - o])) if o < 0 else (a.aval.shape, str(a.aval.dtype))
            for a, o in zip(item.eqn.invars, item.operands, strict=True)
        )
        return item.eqn.primitive.name, self.texts.of(item.eqn), ins

    def example(self, item: FlatEqn) -> _Example:
        """An equation as one that others may be equal to, if no function or jaxpr is among its parameters."""
        eqn, operands = item.eqn, item.operands
        literals = [self.flat.literals[-1 - o] for o in operands if o < 0]
        places = iter(range(-1, -len(literals) - 1, -1))
        operands = tuple([next(places) if o < 0 else o for o in operands])
        name, ins, outs = identity(eqn), [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
        shown = map(literal_key, literals), [o < 0 for o in operands]
        told = _compat.source_line(eqn)  # of whom errors and tables tell
        key = None if name is None else (name, *map(tuple, (ins, outs, *shown)), eqn.ctx, told, self.context)
        return _Example(key, eqn, operands, literals)

    def alike(self, keys: Iterable[Any]) -> tuple[int, ...]:
        """Number the equal work among keys of needs: where a slice begins, names and literals do not matter."""
        known: dict[Any, int] = {}
        found = []
        for number, moves, given in keys:
            need = self.needs[number, moves, given]
            read = need.operands, need.outputs, need.internal_eqns, str(need.internal_avals)
            work = self.work(self.examples[number]), moves, given, need.reached, need.direct, read
            found.append(known.setdefault(work, len(known)))
        return tuple(found)

    def work(self, item: _Example) -> Any:
        """What equations that are equal work have in common."""
        eqn = item.eqn
        ins = tuple((o < 0, str(a.aval)) for a, o in zip(eqn.invars, item.operands, strict=True))
        how = str(eqn.outvars[0].aval) if eqn.primitive.name in _PLACES else self.texts.of(eqn)
        return eqn.primitive.name, how, ins

    def need(self, number: int, active: tuple[bool, ...], given: tuple[bool, ...]) -> Need:
        """What the backward pass of a class of equations reads."""
        key = number, active, given
        if key not in self.needs:
            self.needs[key] = _need(self.examples[number], active, given)
        return self.needs[key]

    def moving(self, number: int, active: tuple[bool, ...]) -> tuple[bool, ...]:
        """Tell which outputs of a class of equations carry a tangent.

        Of one output the VJP, which the walk back mostly asks for, tells as much as the JVP.
        """
        eqn = self.examples[number].eqn
        if any(active) and has_one_gradient(eqn):
            try:
                return (any(self.need(number, active, (True,)).reached),)
            except Exception:  # a rule may refuse what JAX never asks it for, and only the walk back knows what it asks
                _LOG.debug("no VJP of an equation that may need none", exc_info=True)
        return _moving(self.examples[number], active)

    def forward(self, inputs: set[int], useless: set[int]) -> tuple[set[int], list[tuple[bool, ...]]]:
        """Return the values that carry a tangent, ``useless`` ones left out, and which operands of equations do."""
        moving = set(inputs)
        rows = []
        for item, number in zip(self.flat.eqns, self.classes, strict=True):
            active = tuple([o in moving for o in item.operands])
            key = number, active
            if key not in self.moves:
                self.moves[key] = self.moving(number, active)
            pairs = zip(item.outputs, self.moves[key], strict=True)
            moving.update([o for o, moves in pairs if moves and o not in useless])
            rows.append(active)
        return moving, rows

    def back(self, active: list[tuple[bool, ...]], outputs: set[int]) -> tuple[list[Any], set[int]]:
        """Return per equation the key of its need, and the values that a cotangent of ``outputs`` reaches."""
        reached = set(outputs)
        keys = []
        rows = zip(reversed(self.flat.eqns), reversed(self.classes), reversed(active), strict=True)
        for item, number, moves in rows:
            given = tuple([o in reached for o in item.outputs])
            key = number, moves, given
            reached.update([o for o, r in zip(item.operands, self.need(*key).reached, strict=True) if r])
            keys.append(key)
        return keys[::-1], reached
