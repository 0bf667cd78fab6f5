"""How often the loops of a compiled module run.

In: a ``while`` instruction of a ``Module``. Out: its trip count, or None; the numbers that it carries unchanged.

XLA:CPU and XLA:GPU write the trip count of a counted loop into its backend config. XLA:TPU does not, so the counter is
read: what the loop starts with, what its condition compares, what its body adds. Numbers are followed through copies,
fusions and what a loop carries unchanged, as ``carried + offset``.

Limits: a condition that is not one comparison of a counter with a number is unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from remat_plan.compiled.hlo import Computation, Instruction, Module

_KNOWN = re.compile(r"known_trip_count\W+n\W+(\d+)")
_SAME = frozenset({"copy", "bitcast", "reshape", "convert", "copy-start", "copy-done", "optimization-barrier"})
_DEEPEST = 16
"""A number is not followed through more instructions than that."""

Constants = Mapping[int, int]
"""What is known of the values that a loop carries: those that are the same number in every step, by position."""


class _Number(NamedTuple):
    """``carried[place] + offset``, of the tuple that a body or a condition is given; without a place the offset."""

    place: int | None
    offset: int = 0


_Parameter = Callable[[int], "_Number | None"]


def steps_of(module: Module, inside: Computation, loop: Instruction, around: Constants) -> tuple[int | None, Constants]:
    """Return how many steps a loop has, None where that is not known, and what is known of the values it carries.

    ``around`` is what is known of those that the loop around carries.
    """
    bodies, conditions = module.called(loop, "body"), module.called(loop, "condition")
    known = _KNOWN.search(loop.attributes)
    told = int(known.group(1)) if known else None
    if not bodies:
        return told, {}
    starts = _starts(module, inside, loop, around)
    next_of = {i: _next(module, bodies[0], i) for i in starts}
    constants = {i: start for i, start in starts.items() if next_of[i] == _Number(i, 0)}
    compared = _comparison(module, conditions[0]) if conditions else None
    if told is not None or compared is None:
        return told, constants
    counter, bound, direction = compared
    if counter.place is None or counter.place not in starts:
        return None, constants
    limit = 0 if bound.place is None else constants.get(bound.place)
    step = next_of[counter.place]
    if limit is None or step is None or step.place != counter.place or not step.offset:
        return None, constants
    start = starts[counter.place] + counter.offset
    return _count(start, limit + bound.offset, step.offset, direction), constants


def _count(start: int, limit: int, step: int, direction: str) -> int | None:
    """The steps from a start to a limit; None where it is never reached that way."""
    if direction in ("GT", "GE"):
        start, limit, step, direction = -start, -limit, -step, {"GT": "LT", "GE": "LE"}[direction]
    if direction == "NE":
        return (limit - start) // step if (limit - start) % step == 0 and (limit - start) // step >= 0 else None
    if direction not in ("LT", "LE") or step <= 0:
        return None
    return max(0, math.ceil((limit + (direction == "LE") - start) / step))


def _comparison(module: Module, condition: Computation) -> tuple[_Number, _Number, str] | None:
    """What a condition compares, the counter first, and how; None where it is no such comparison."""
    owner, compare, bound = condition, condition.root, _Number
    if compare.opcode == "fusion":
        owner, bound = _callee(module, condition, compare, _Number)
        compare = owner.root
    if compare.opcode != "compare" or len(compare.operands) != 2:
        return None
    left, right = (_follow(module, owner, name, bound) for name in compare.operands)
    direction = compare.word("direction")
    if left is None or right is None:
        return None
    if left.place is not None:
        return left, right, direction
    return right, left, {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}.get(direction, direction)


def _starts(module: Module, inside: Computation, loop: Instruction, around: Constants) -> dict[int, int]:
    """The known numbers that a loop starts with, by position."""
    made = inside.operand(loop, 0)
    if made is None or made.opcode != "tuple":
        return {}

    def parameter(index: int) -> _Number | None:
        return _Number(None, around[index]) if index in around else None

    found = {i: _follow(module, inside, name, parameter) for i, name in enumerate(made.operands)}
    return {i: number.offset for i, number in found.items() if number is not None}


def _next(module: Module, body: Computation, index: int) -> _Number | None:
    """What a body returns at a position."""
    operands = body.root.operands
    if body.root.opcode != "tuple" or index >= len(operands):
        return None
    return _follow(module, body, operands[index], _Number)


def _callee(
    module: Module, owner: Computation, fusion: Instruction, parameter: _Parameter
) -> tuple[Computation, _Parameter]:
    """The computation of a fusion, and what its parameters are."""
    callee = module.called(fusion, "calls")

    def argument(index: int) -> _Number | None:
        names = fusion.operands
        return _follow(module, owner, names[index], parameter) if index < len(names) else None

    return (callee[0] if callee else owner), argument


def _follow(module: Module, owner: Computation, name: str, parameter: _Parameter, depth: int = 0) -> _Number | None:
    """The number that an instruction of ``owner`` is; ``parameter`` tells what that is given, by position."""
    found = owner.instructions.get(name)
    if found is None or depth > _DEEPEST:
        return None

    def operand(index: int) -> _Number | None:
        if index >= len(found.operands):
            return None
        return _follow(module, owner, found.operands[index], parameter, depth + 1)

    if found.opcode == "constant":
        return _Number(None, int(found.inside)) if re.fullmatch(r"-?\d+", found.inside) else None
    if found.opcode == "parameter":
        return parameter(int(found.inside)) if not found.type.startswith("(") else None
    if found.opcode == "get-tuple-element":
        source = owner.operand(found, 0)
        index = re.search(r"index=(\d+)", found.attributes)
        return parameter(int(index.group(1))) if index and source and source.opcode == "parameter" else None
    if found.opcode in _SAME:
        return operand(0)
    if found.opcode in ("add", "subtract"):
        left, right = operand(0), operand(1)
        if left is not None and right is not None:
            return _sum(left, right, 1 if found.opcode == "add" else -1)
    if found.opcode == "fusion":
        callee, argument = _callee(module, owner, found, parameter)
        return _follow(module, callee, callee.root.name, argument, depth + 1) if callee is not owner else None
    return None


def _sum(left: _Number, right: _Number, sign: int) -> _Number | None:
    if right.place is None:
        return _Number(left.place, left.offset + sign * right.offset)
    return _Number(right.place, left.offset + right.offset) if left.place is None and sign == 1 else None
