"""Programs timed in turns, so that what else a machine does falls on all of them alike.

In: ``Run``s, a number of rounds. Out: ``Samples``: seconds of each run in each round; ``Ratio``: how much longer one
run takes than another, from the pairs of one round.

Every round runs each program once, in an order that turns from round to round; programs that take less than
``LEAST_SECONDS`` are called several times a round. Each call is waited for. Arguments are made, and results dropped,
while the clock stands. Each turn begins with a call that is not timed: in a training loop a step follows itself, and
finds the memory that it gave back a moment ago. Where free memory is handed back to the host of a virtual machine, what
was free during the other programs' turns costs many times as much to touch; all of that would fall on the program that
needs most, as if it were slow.

Limits: a machine whose speed changes within a round is not told from one of noise; the interval shows how much there
was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax

from remat_plan.small import garbage

LEAST_SECONDS = 0.02
"""A program is called as often in each round as makes so many seconds, since shorter ones measure the clock."""

MOST_CALLS = 200
"""How often at most, whatever a program takes."""

LEAST_PAIRS = 6
"""Of fewer pairs even the least and the largest do not hold the median 19 times of 20: 2 / 2^5 is over 1 / 20."""


@dataclass(frozen=True, slots=True)
class Run:
    """A program that can be run again and again: a compiled function, and what makes its arguments.

    These are new ones each time where the call takes their memory (donation).
    """

    call: Callable[..., Any]
    arguments: Callable[[], Sequence[Any]]

    def seconds(self, calls: int = 1) -> tuple[float, float]:
        """Call it, and return mean seconds of a call: by the clock, and of all processors of this process."""
        wall = processor = 0.0
        for _ in range(calls):
            arguments = jax.block_until_ready(self.arguments())
            begun, used = time.perf_counter(), time.process_time()
            results = jax.block_until_ready(self.call(*arguments))
            wall += time.perf_counter() - begun
            processor += time.process_time() - used
            del results, arguments
        return wall / calls, processor / calls


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds of one run, a number for each round: by the clock, and of all processors in this process.

    On the latter other processes count less. Each round has so many calls; the seconds are of one.
    """

    seconds: tuple[float, ...]
    processor_seconds: tuple[float, ...]
    calls: int

    @property
    def median_seconds(self) -> float:
        """The median over all rounds."""
        return median(self.seconds)

    @property
    def spread_seconds(self) -> float:
        """The distance between the quartiles."""
        ordered = sorted(self.seconds)
        last = len(ordered) - 1
        return ordered[round(0.75 * last)] - ordered[round(0.25 * last)]


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long something takes: the median over pairs, and an interval around it.

    Attributes:
        value: the median.
        low, high: what the true median is between, 19 times of 20, whatever the noise is like; with fewer than
            ``LEAST_PAIRS``, the least and the largest.
    """

    value: float
    low: float
    high: float

    @staticmethod
    def exactly(value: float) -> Ratio:
        """A ratio without noise."""
        return Ratio(value, value, value)

    @staticmethod
    def of(before: Sequence[float], after: Sequence[float]) -> Ratio:
        """The ratio of pairs, each of one round.

        >>> Ratio.of([1.0, 2.0, 4.0], [1.5, 2.0, 5.0])
        Ratio(value=1.25, low=1.0, high=1.5)
        """
        found = sorted(b / a for a, b in zip(before, after, strict=True))
        left = _left_out(len(found))
        return Ratio(median(found), found[left], found[-1 - left])


def _left_out(count: int) -> int:
    """How many of the smallest and of the largest of ``count`` values the interval around the median leaves out.

    The true median is below the k-th smallest value with the chance that fewer than k of ``count`` tosses show heads.
    """
    chance, left = 0.0, -1
    for k in range(count):
        chance += math.comb(count, k) / 2**count
        if 2 * chance > 1 / 20:  # the interval holds the median 19 times of 20
            break
        left = k
    return max(left, 0)


def time_in_turns(
    runs: Sequence[Run], rounds: int, say: Callable[[int], None] = lambda done: None
) -> tuple[Samples, ...]:
    """Time programs in turns, each once before the clock runs; ``say`` is told how many rounds are done."""
    for run in runs:
        run.seconds()  # compiles, and touches the memory for the first time
    calls = [min(max(math.ceil(LEAST_SECONDS / run.seconds()[0]), 1), MOST_CALLS) for run in runs]
    found: list[list[tuple[float, float]]] = [[] for _ in runs]
    with garbage.seldom():  # a collection of all that a trace left behind takes longer than a small step
        for number in range(rounds):
            say(number)
            for index in _order(len(runs), number):
                runs[index].seconds()  # not timed: after another program, memory is not as this one leaves it
                found[index].append(runs[index].seconds(calls[index]))
    return tuple(
        Samples(tuple(w for w, _ in samples), tuple(p for _, p in samples), n)
        for samples, n in zip(found, calls, strict=True)
    )


def _order(count: int, number: int) -> list[int]:
    """The order of a round: every second one goes backwards, every two begin with another run.

    >>> [_order(2, n) for n in range(3)], [_order(3, n) for n in range(3)]
    ([[0, 1], [1, 0], [1, 0]], [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
    """
    turned = [(number // 2 + i) % count for i in range(count)]
    return turned[::-1] if number % 2 else turned
