"""How much of an array a kernel does not read, where it takes parts of it.

In: a program, the kernels that compute each step. Out: bytes by kernel and value.

Each part of a split is a kernel that reads its share of the array, and rows of an embedding are read by number: memory
traffic counts these, not the whole array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remat_plan.cost.steps import Program, Step

_PARTIAL = frozenset({"slice", "dynamic_slice", "gather", "split", "unstack"})
"""Primitives that read of their first operand no more than they write."""


def unread_bytes(program: Program, groups: Sequence[frozenset[int]]) -> Mapping[int, Mapping[int, int]]:
    """Return by kernel and value the bytes that it does not read; kernels that read all are left out."""
    steps = program.steps
    partial = [index for index, step in enumerate(steps) if step.primitive in _PARTIAL and step.reads]
    members: dict[int, list[int]] = {root: [] for index in partial for root in groups[index]}
    if not members:
        return {}
    for index, roots in enumerate(groups):
        for root in roots:
            if root in members:
                members[root].append(index)
    return {root: _unread(steps, root, inside, program.sizes) for root, inside in members.items()}


def _unread(steps: Sequence[Step], root: int, inside: Sequence[int], sizes: Sequence[int]) -> dict[int, int]:
    """Bytes that a kernel of the steps ``inside``, of which ``root`` makes the result, does not read, by value."""
    needed: dict[int, int] = {}
    made: set[int] = set()
    for index in reversed(inside):
        step = steps[index]
        made.update(step.writes)
        written = sum([sizes[value] for value in step.writes])
        wanted = written if index == root else sum([needed.get(value, 0) for value in step.writes])
        for value in step.reads:
            whole = sizes[value]
            part = wanted if _takes_part(step, value) else whole * wanted // written if written else whole
            needed[value] = min(whole, needed.get(value, 0) + part)
    return {value: sizes[value] - part for value, part in needed.items() if value not in made and part < sizes[value]}


def _takes_part(step: Step, value: int) -> bool:
    return step.primitive in _PARTIAL and value == step.reads[0]
