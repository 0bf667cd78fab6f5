"""Online checkpointing: which carries to keep while the length of the loop is not known yet.

In: the number of slots; steps as they come. Out: after each step, which steps' carries are stored.

Source: Wang, Moin and Iaccarino 2009, "Minimal repetition dynamic checkpointing algorithm for unsteady adjoint
calculation", Algorithm 1; the same distribution as Stumm and Walther 2010. Every stored carry has a level. The carry
of a new step takes

1. a free slot, at level 0; else
2. the slot of the latest carry that is *dispensable* (a later one has a higher level), at level 0; else
3. the slot of the latest carry, one level higher than that.

The first carry stays for ever. After n steps no step has to be advanced more often than in the best schedule for n
steps, for every n at once. The backward pass then knows n and splits each part by the table of ``solve.binomial``.

Limits: one carry is stored at every step, so a step costs a copy of the carry more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_plan.solve.binomial import check, make_splits

FOREVER = 2**30
"""The level of the first carry."""


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
    return Stored(np.zeros(1, np.int32), np.full(1, FOREVER, np.int32))


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


def advances(length: int, slots: int) -> int:
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
