"""The schedules of ``solve.binomial`` and ``loops.while_loop`` written out, to compare the compiled loops with."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from remat_plan.solve.binomial import INT32_MAX, check, make_splits


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a schedule.

    Attributes:
        kind: ``"store"`` the carry of step ``start`` in ``slot``; ``"restore"`` it; ``"advance"`` from ``start`` to
            ``end``; ``"tape"`` the steps ``start .. end-1``; ``"reverse"`` them, last first.
        start, end: steps; equal for ``"store"`` and ``"restore"``.
        slot: a slot; -1 where there is none.
    """

    kind: str
    start: int
    end: int
    slot: int = -1


def actions(length: int, slots: int, tape: int = 1) -> Iterator[Action]:
    """Write a schedule out: what the compiled loop does, in order.

    >>> for action in actions(3, 1):
    ...     print(action.kind, action.start, action.end)
    store 0 0
    advance 0 2
    tape 2 3
    reverse 2 3
    restore 0 0
    store 0 0
    advance 0 1
    tape 1 2
    reverse 1 2
    restore 0 0
    tape 0 1
    reverse 0 1
    """
    splits = make_splits(length, slots, tape)
    stack: list[int] = []
    start, end = 0, length
    while end > 0:
        stored, last = splits.descend(start, end, slots - len(stack))
        for step, following in zip(stored, (*stored, last)[1:], strict=True):
            yield Action("store", step, step, len(stack))
            yield Action("advance", step, following)
            stack.append(step)
        yield Action("tape", last, end)
        yield Action("reverse", last, end)
        end = last
        if stack:
            start = stack.pop()
            yield Action("restore", start, start, len(stack))


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored carries in order of their steps.

    Attributes:
        steps: int32 (count,): the step before which each carry was stored; the first is 0.
        levels: int32 (count,): their levels.
    """

    steps: np.ndarray
    levels: np.ndarray


def begin() -> Stored:
    """Return what is stored before the first step: its carry."""
    return Stored(np.zeros(1, np.int32), np.full(1, INT32_MAX, np.int32))


def replaced(levels: np.ndarray) -> tuple[int, int]:
    """Return which carry makes room when all slots are taken (an index), and the level of the new one."""
    later = np.maximum.accumulate(levels[::-1])[::-1]
    dispensable = np.flatnonzero(levels < later)
    if dispensable.size:
        return int(dispensable[-1]), 0
    return len(levels) - 1, int(levels[-1]) + 1


def store(stored: Stored, step: int, slots: int) -> Stored:
    """Store the carry before ``step`` (greater than all stored ones); with one slot only the first is kept."""
    check(step, slots, 1)
    steps, levels, level = stored.steps, stored.levels, 0
    if len(steps) == slots:
        if slots == 1:
            return stored
        index, level = replaced(levels)
        steps, levels = np.delete(steps, index), np.delete(levels, index)
    return Stored(np.append(steps, np.int32(step)), np.append(levels, np.int32(level)))


def stored_after(length: int, slots: int) -> tuple[int, ...]:
    """Return the steps whose carries are stored after a loop of ``length`` steps.

    >>> stored_after(6, 3)
    (0, 3, 5)
    """
    stored = begin()
    for step in range(1, length):
        stored = store(stored, step, slots)
    return tuple(int(s) for s in stored.steps)


def advances_online(length: int, slots: int) -> int:
    """Return the steps that advance in the backward pass of a loop whose length came out as ``length``."""
    splits = make_splits(max(length, 1), slots)
    stack = list(stored_after(length, slots)) if length else []
    end, count = length, 0
    while stack:
        start = stack.pop()
        held, last = splits.descend(start, end, slots - len(stack))
        stack.extend(held)
        count += last - start
        end = last
    return count
