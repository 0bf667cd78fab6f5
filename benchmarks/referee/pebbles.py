"""The optimum of a game by search through everything: which values are in memory when each equation runs.

In: ``Game``, bytes. Out: the fewest seconds that any order recomputes within them, or infinity.

A position is a stage and the set of values that are there. From it the equation that is due may run, any forward
equation may run (again), any value may be dropped. Dijkstra's algorithm over these positions finds the least seconds;
no order is left out. With the orders that ``benchmarks.referee.checkmate`` has, it is an oracle for it: there each
equation runs once in a stage, in program order, which in very little memory is not enough.

Limits: 2^n sets for each stage; up to about 14 forward equations.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

from benchmarks.referee.model import Game, Stage


class _Board:
    """The game in bit masks."""

    def __init__(self, game: Game, budget_bytes: int):
        self.game, self.budget_bytes = game, budget_bytes
        self.reads = [_mask(reads) for reads in game.reads]
        self._bytes: dict[int, int] = {}

    def size(self, values: int) -> int:
        """Bytes of a set of values."""
        if values not in self._bytes:
            self._bytes[values] = sum(b for i, b in enumerate(self.game.value_bytes) if values >> i & 1)
        return self._bytes[values]

    def runs(self, i: int, there: int, held_bytes: int) -> bool:
        """Whether a forward equation can run."""
        return not self.reads[i] & ~there and self.size(there | 1 << i) + held_bytes <= self.budget_bytes

    def due(self, stage: Stage, there: int) -> int:
        """The set of values behind what is due; -1 if that cannot run."""
        if stage.equation >= 0:
            return there | 1 << stage.equation if self.runs(stage.equation, there, stage.during_bytes) else -1
        fits = self.size(there) + stage.during_bytes <= self.budget_bytes
        return there if fits and not _mask(stage.reads) & ~there else -1


def _mask(values: tuple[int, ...]) -> int:
    return sum(1 << v for v in values)


def least_seconds(game: Game, budget_bytes: int, in_order: bool = False) -> float:
    """Return the seconds that must run again within a budget (bytes beside what the caller owns).

    Args:
        game: the program.
        budget_bytes: the budget.
        in_order: count only orders in which equations run again in program order in each stage, once each.
    """
    board = _Board(game, budget_bytes)
    count, end = len(game.reads), len(game.stages)
    known = [min(sum(s.equation >= 0 for s in game.stages[:t]), count) for t in range(end)]
    wanted = [_mask(tuple(values)) for values in game.wanted]
    best = {(0, 0, 0): 0.0}
    heap = [(0.0, 0, 0, 0)]  # seconds, -stage, values, the first equation that may run

    def reach(seconds: float, stage: int, there: int, first: int) -> None:
        if seconds < best.get((stage, there, first), inf):
            best[stage, there, first] = seconds
            heappush(heap, (seconds, -stage, there, first))

    while heap:
        seconds, negative, there, first = heappop(heap)
        t = -negative
        if t == end:
            return seconds
        if seconds > best[t, there, first]:
            continue
        stage = game.stages[t]
        if useless := there & ~wanted[t]:
            reach(seconds, t, there & ~useless, first)
            continue
        if (behind := board.due(stage, there)) >= 0:
            reach(seconds, t + 1, behind, 0)
        for i in range(known[t]):
            if there >> i & 1:
                reach(seconds, t, there & ~(1 << i), first)
            elif i >= first and wanted[t] >> i & 1 and board.runs(i, there, stage.held_bytes):
                reach(seconds + game.seconds[i], t, there | 1 << i, i + 1 if in_order else 0)
    return inf
