"""A chain of blocks under a memory limit: dynamic programming with several options a block.

In: ``ChainProblem`` (blocks, runs of blocks with options, frontier bytes). Out: ``ChainTable``, one table that
answers every budget; ``ChainTable.schedule(limit)`` is the tree of segments. Made for chains of about ``WIDE`` blocks;
``solve.long_chain`` makes longer ones of such.

Recurrence (persistent schedules of Beaumont et al. 2019, arXiv 1911.13214, Theorem 1; options per block after
Rockmate, Zhao et al. 2023): with the frontier of s stored and m bytes beside it, blocks s..t-1 cost

    C(s, t, m) = min over  run s..e-1 under option k:   C(e, t, m - kept_k) + seconds_k     if m >= transient_k
                           checkpoint s..e-1, later:    C(e, t, m - frontier(s, e)) + forward(s, e) + D(s, e, m)

where D is C without the recomputation of its last segment: when a checkpointed part is run again, the forward
pass of its last segment is needed once only (JAX drops the other one as dead code). Intervals with equal
contents share one row. Memory is counted in quanta that do not depend on the budget, so the cost is monotone in
the budget. Complexity: rows x candidates x slots, vectorised over slots and over the rows of one start; there are up
to n^2 / 2 rows and n candidates.

Limits: byte counts are rounded to the nearest quantum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

WIDE = 64
"""Chains of up to so many blocks are solved as they are: longer ones have too many rows, and too few slots a block."""


@dataclass(frozen=True, slots=True)
class RunOption:
    """One way to run a run of blocks: bytes kept after its forward pass (its end frontier included), bytes
    needed while its backward pass runs, seconds recomputed; the last also for a run at the end of a checkpointed part,
    whose forward pass is not run twice."""

    kept_bytes: int
    transient_bytes: int
    seconds: float
    last_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """A chain of ``n`` blocks.

    Attributes:
        block_classes: per block a number; equal numbers mean equal blocks in equal surroundings.
        runs: per start block, the runs that may be one segment: (end, options); at least the block alone.
        frontiers: per cut 0..n the (bytes, last cut that it crosses) of each value of the frontier.
        may_nest: per block, whether it may run inside a checkpointed segment (blocks with effects may not).
    """

    block_classes: tuple[int, ...]
    runs: tuple[tuple[tuple[int, tuple[RunOption, ...]], ...], ...]
    frontiers: tuple[tuple[tuple[int, int], ...], ...]
    forward_seconds: tuple[float, ...]
    may_nest: tuple[bool, ...]

    def kept(self) -> ChainProblem:
        """The problem of what is kept alone: no run needs more."""
        runs = [
            [(end, tuple([replace(o, transient_bytes=o.kept_bytes) for o in options])) for end, options in row]
            for row in self.runs
        ]
        return replace(self, runs=tuple([tuple(row) for row in runs]))

    def frontier_bytes(self, s: int, e: int) -> int:
        """Bytes that storing the frontier of cut ``e`` adds to the stored frontier of cut ``s``."""
        return sum(b for b, _ in self.frontiers[e]) - sum(b for b, last in self.frontiers[s] if last >= e)


@dataclass(frozen=True, slots=True)
class Leaf:
    """Blocks ``start .. end-1`` as one segment under option ``option`` of that run."""

    start: int
    end: int
    option: int


@dataclass(frozen=True, slots=True)
class Nest:
    """Blocks ``start .. end-1`` checkpointed as a whole; the backward pass runs ``children`` instead."""

    start: int
    end: int
    children: tuple[Leaf | Nest, ...]


Candidate = tuple[int, int, int, int, float, float]
"""(end, option or -1, bytes left behind, bytes needed, seconds, seconds at the end of D); bytes are in quanta."""

_TIE = 1e-12
"""The share of all seconds within which two choices count as equal; the first one is taken. Intervals with equal
contents share a row, though their seconds are rounded where they are."""


class ChainTable:
    """The solved table of a chain. Build with ``solve``."""

    def __init__(self, problem: ChainProblem, slots: int):
        self.problem = problem
        self.n = len(problem.block_classes)
        self.quantum_bytes = max(1, -(-self._most_bytes() // max(slots - 1, 1)))
        self.slots = slots
        self.starting: dict[int, tuple[list[Candidate], list[Candidate]]] = {}
        self.ids, self.known = intervals(problem.block_classes)
        self.forward = np.concatenate([[0.0], np.cumsum(problem.forward_seconds)])
        self.nestable = np.concatenate([[0], np.cumsum([not x for x in problem.may_nest])])
        # Per interval the cost by slot; of each, row 0 is C of the module docstring, row 1 is D.
        self.rows = np.full((int(self.ids.max()) + 1, 2, self.slots), np.inf)
        for start in reversed(range(self.n)):
            if self.known[start] < self.n:
                self.fill(start)

    def _most_bytes(self) -> int:
        """Bytes at which every block can take its cheapest option."""
        kept = worst = 0
        for runs in self.problem.runs:
            options = runs[0][1]
            kept += max((o.kept_bytes for o in options), default=0)
            worst = max(worst, max((o.transient_bytes for o in options), default=0))
        return kept + worst + 1

    def units(self, size_bytes: int) -> int:
        """Bytes in quanta, rounded to the nearest."""
        return round(size_bytes / self.quantum_bytes)

    def candidates(self, s: int, t: int) -> list[Candidate]:
        """What may come first of an interval."""
        options, nested = self._starting(s)
        return [c for c in options if c[0] <= t] + [c for c in nested if c[0] < t]

    def _starting(self, s: int) -> tuple[list[Candidate], list[Candidate]]:
        if s not in self.starting:
            self.starting[s] = [*self._options(s)], [*self._nested(s)]
        return self.starting[s]

    def _options(self, s: int) -> Iterator[Candidate]:
        for end, options in self.problem.runs[s]:
            for k, o in enumerate(options):
                yield end, k, self.units(o.kept_bytes), self.units(o.transient_bytes), o.seconds, o.last_seconds

    def _nested(self, s: int) -> Iterator[Candidate]:
        for end in range(s + 2, self.n):
            if self.nestable[end] == self.nestable[s]:
                units = self.units(self.problem.frontier_bytes(s, end))
                yield end, -1, units, units, float(self.forward[end] - self.forward[s]), 0.0

    def row(self, s: int, t: int) -> np.ndarray:
        """Return the costs of an interval."""
        return self.rows[self.ids[s, t]]

    def fill(self, s: int) -> None:
        """Compute the rows of the intervals that start at a block and are not known; those of later starts must be.

        What ends first comes first: a checkpointed part is run again at what the candidates up to its end make of it.
        """
        options, nested = self._starting(s)
        known = int(self.known[s])
        first_id = self.ids[s, known + 1]
        cost = self.rows[first_id : first_id + self.n - known]
        room = np.empty_like(cost)
        for end, option, kept, needed, seconds, last in sorted([*options, *nested], key=itemgetter(0)):
            first = max(kept, needed)
            if first >= self.slots:
                continue
            if option >= 0 and end > known:
                own = cost[end - known - 1, :, first:]
                np.minimum(own, [[seconds], [last]], out=own)
            beyond = max(end, known)
            if beyond == self.n:
                continue
            later = self.rows[_slice_of(self.ids[end, beyond + 1 :]), :, first - kept : self.slots - kept]
            new = np.add(later, seconds, out=room[: len(later), :, first:])
            if option < 0:
                new += self.row(s, end)[1, first:]
            longer = cost[beyond - known :, :, first:]
            np.minimum(longer, new, out=longer)

    def choose(self, s: int, t: int, slot: int, table: int) -> tuple[int, int]:
        """Return (end, option or -1) of the choice that the cost of an interval comes from.

        Costs only are stored while the table is filled: choices are looked up for one slot at a time. ``ValueError`` if
        no schedule needs so little.
        """
        best = self.row(s, t)[table, slot] if slot >= 0 else np.inf
        if not np.isfinite(best):
            raise ValueError("no schedule fits in so little memory")
        for end, option, kept, needed, seconds, last in self.candidates(s, t):
            if slot < max(kept, needed):
                continue
            cost = last if end == t and table else seconds
            if end < t:
                cost += self.row(end, t)[table, slot - kept]
            if option < 0:
                cost += self.row(s, end)[1, slot]
            if cost <= best + _TIE * max(best, self.forward[-1]):
                return end, option
        raise AssertionError("the table has a cost that no choice leads to")

    def schedule(self, slot: int) -> tuple[Leaf | Nest, ...]:
        """Return the segments of the whole chain in ``slot`` quanta; ``ValueError`` if none needs so little."""
        return self._extract(0, self.n, slot, 0)

    def nested(self, slot: int) -> tuple[Leaf | Nest, ...]:
        """Return those where the chain is run again as one checkpointed part (D); raises as ``schedule`` does."""
        return self._extract(0, self.n, slot, 1)

    def _extract(self, s: int, t: int, slot: int, table: int) -> tuple[Leaf | Nest, ...]:
        nodes: list[Leaf | Nest] = []
        while s < t:
            end, option = self.choose(s, t, slot, table)
            if option < 0:
                nodes.append(Nest(s, end, self._extract(s, end, slot, 1)))
                slot -= self.units(self.problem.frontier_bytes(s, end))
            else:
                options = next(o for e, o in self.problem.runs[s] if e == end)
                nodes.append(Leaf(s, end, option))
                slot -= self.units(options[option].kept_bytes)
            s = end
        return tuple(nodes)

    @property
    def costs(self) -> np.ndarray:
        """Recomputed seconds of the whole chain per slot (``inf`` where nothing fits)."""
        return self.row(0, self.n)[0]

    def breakpoints(self, table: int = 0) -> list[int]:
        """The slots at which the schedule changes, from least memory to most; of table 1, those of ``nested``."""
        costs = self.row(0, self.n)[table]
        return [i for i in range(len(costs)) if np.isfinite(costs[i]) and (i == 0 or costs[i] != costs[i - 1])]


def intervals(classes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Number the intervals of a chain, equal ones alike.

    Returns:
        The numbers, by start and end, and per start the last end up to which an equal interval starts later. The
        numbers of the longer ones follow each other.
    """
    n = len(classes)
    found: dict[tuple[int, int], int] = {}
    ids, known = np.zeros((n, n + 1), int), np.arange(n)
    for s in reversed(range(n)):
        current = -1
        for t in range(s, n):
            key = (current, classes[t])
            if key in found:
                known[s] = t + 1
            current = ids[s, t + 1] = found.setdefault(key, len(found))
    return ids, known


def _slice_of(ids: np.ndarray) -> slice | np.ndarray:
    """Return increasing numbers as a slice, which is read in place, where they follow each other."""
    return slice(ids[0], ids[-1] + 1) if ids[-1] - ids[0] == len(ids) - 1 else ids


def solve(problem: ChainProblem, slots: int | None = None) -> ChainTable:
    """Solve a chain for every budget at once, its memory in so many quanta; by default 600 to 3000, growing with the
    chain."""
    return ChainTable(problem, slots or min(max(16 * len(problem.block_classes), 600), 3000))
