"""A chain that is taught by the evaluator.

In: a ``ChainProblem`` with its ``Cuts`` and ``Options``; ``Timeline``s of schedules that it proposes. Out: proposals
for a number of bytes.

The dynamic program adds up what blocks need one by one; of a whole step that is off by up to a half. The timeline of a
schedule says what is alive while each block works, so it says of every option in it by how much: the difference is
added to the option's transient bytes, to those of all equal blocks, and the chain is solved again. Of the options of a
block that were not seen yet all are taken to be off by as much as the others are. Where all that is alive while a block
works is less than what it is to keep, bytes were counted twice, and none of its options keeps more than it needs. So it
takes about ten schedules until the chain believes of those near a budget what the evaluator says of them.

A chain of so many blocks that solving takes longer than evaluating is not taught but searched for the border of what
fits: peaks mostly rise along its curve.

Limits: seconds are believed as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from remat_plan.cost.memory import Timeline
from remat_plan.cost.steps import Place
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Schedule
from remat_plan.planning.blend import joined
from remat_plan.planning.cuts import Cuts
from remat_plan.planning.inside import Inside
from remat_plan.planning.options import Options
from remat_plan.planning.planner import Curve, Planner
from remat_plan.solve.chain import WIDE, ChainProblem, Leaf, Nest, RunOption
from remat_plan.solve.long_chain import solve_chain

_NEAR = 0.7
"""A block teaches where it needs this share of the peak, or is believed to: what is off elsewhere is off otherwise."""

FURTHER = (0, 1, 2, 4, 8)
"""How far behind the last point that is believed to fit others are proposed: some are believed to need too much."""

_Key = tuple[tuple[int, ...], int]
"""The classes of the blocks of a run, and the number of an option."""


class Judged(NamedTuple):
    """What is known of a schedule: its point, the seconds that the chain believed it to take more than the plain step,
    and what it needs beside arguments and outputs."""

    point: int
    seconds: float
    needed_bytes: int


class SearchedChain:
    """Proposes schedules of a curve that stays as it is, and finds the border of what fits on it.

    Args:
        curve: the schedules of a solved chain.
        inside: where it is in the program that is evaluated.

    Attributes:
        judged: what was evaluated.
    """

    def __init__(self, curve: Curve, inside: Inside):
        self.curve, self.inside = curve, inside
        self.judged: dict[Schedule, Judged] = {}

    def teach(
        self,
        timeline: Callable[[Schedule], Timeline],
        room_bytes: int,
        best: Schedule | None,
        doubt_seconds: float,
        same_seconds: float,
    ) -> Schedule | None:
        """Have one more schedule evaluated for a number of bytes, and learn from it; None where there is no new one.

        Args:
            timeline: the evaluator.
            room_bytes: beside arguments and outputs.
            best: of what fits, if it is known; what is believed to be slower by ``doubt_seconds`` is not evaluated.
            doubt_seconds: see there.
            same_seconds: what is believed to take as long as one that fits, but for so much, is not evaluated either.
        """
        most = doubt_seconds + (self.judged[best].seconds if best in self.judged else math.inf)
        fitting = [known.seconds for known in self.judged.values() if known.needed_bytes <= room_bytes]
        for point in self._points(room_bytes):
            schedule, own = self.inside.around(joined(self.curve[point])), self.curve.seconds[point]
            is_new = schedule not in self.judged and all(abs(own - known) > same_seconds for known in fitting)
            if is_new and own < most:
                made = timeline(schedule)
                self.judged[schedule] = Judged(point, own, made.inside_bytes)
                self._learn(point, made)
                return schedule
        return None

    def _points(self, room_bytes: int) -> Iterator[int]:
        """The points of the curve that come into question, in order."""
        limits, peaks = self.curve.limits, {known.point: known.needed_bytes for known in self.judged.values()}
        last = max((point for point, peak in peaks.items() if peak <= room_bytes), default=-1)
        first = min((point for point, peak in peaks.items() if point > last), default=len(limits))
        near = min(peaks, key=lambda point: abs(peaks[point] - room_bytes), default=0)
        off = peaks[near] - limits[near] if peaks else 0
        expected = max((point for point, own in enumerate(limits) if own + off <= room_bytes), default=0)
        if last + 1 < first:
            middle = (last + first) // 2
            yield middle if len(peaks) > 1 else min(max(expected, last + 1), first - 1)
        yield from (first + step for step in FURTHER if first + step < len(limits))

    def _learn(self, point: int, timeline: Timeline) -> None:
        """Learn from what is predicted of a point; a curve that stays as it is does not."""


class TaughtChain(SearchedChain):
    """Proposes schedules of a chain that is solved again with what the evaluator says of them.

    Args:
        graph, cuts, options: what the chain is of.
        problem: the chain.
        curve, inside: of it, as nobody taught it; see there.
    """

    def __init__(self, graph: Graph, cuts: Cuts, options: Options, problem: ChainProblem, curve: Curve, inside: Inside):
        super().__init__(curve, inside)
        self.graph, self.cuts, self.options, self.problem = graph, cuts, options, problem
        self._off: dict[_Key, list[int]] = {}
        self._counted_twice: set[tuple[int, ...]] = set()
        self._offset_bytes = 0

    def _points(self, room_bytes: int) -> Iterator[int]:
        """The last point that is believed to fit, some behind it, and then some before it."""
        needed = [limit + self._offset_bytes for limit in self.curve.limits]
        last = max((point for point, own in enumerate(needed) if own <= room_bytes), default=0)
        yield from (last + step for step in FURTHER if last + step < len(needed))
        yield from (last - step for step in FURTHER[1:] if step <= last)

    def _learn(self, point: int, timeline: Timeline) -> None:
        """Compare what each leaf needed with what it was believed to, and solve again."""
        owned = timeline.argument_bytes + timeline.output_bytes
        peak = max(timeline.peak_bytes - owned, 1)
        nodes = self.curve.table.schedule(self.curve.points[point])
        rows = [*_leaves(self.problem, nodes)]
        leaf_of: dict[Place, int] = {
            (*self.inside.path, place): number
            for number, (leaf, _, _) in enumerate(rows)
            for place in range(self.cuts.positions[leaf.start], self.cuts.positions[leaf.end])
        }
        needed, depth = [0] * len(rows), 1 + len(self.inside.path)
        for place, live in zip(timeline.places, timeline.live_bytes, strict=True):
            if (number := leaf_of.get(place[:depth])) is not None:
                needed[number] = max(needed[number], live - owned)
        for own, (leaf, before, option) in zip(needed, rows, strict=True):
            believed = before + max(option.transient_bytes, option.kept_bytes)
            if own and max(own, believed) >= _NEAR * max(peak, believed):
                key = self.problem.block_classes[leaf.start : leaf.end], leaf.option
                self._off.setdefault(key, []).append(own - before - option.transient_bytes)
                if own < option.kept_bytes:
                    self._counted_twice.add(key[0])
        corrected = self._corrected()
        self._offset_bytes = peak - _believed_bytes(corrected, nodes)
        self.curve = Curve(self.graph, self.cuts, self.options, solve_chain(corrected))

    def _corrected(self) -> ChainProblem:
        """The chain with what was learned."""
        off = {key: fmean(found) for key, found in self._off.items()}
        of_runs: dict[tuple[int, ...], list[float]] = {}
        for (classes, _), own in off.items():
            of_runs.setdefault(classes, []).append(own)

        def corrected(classes: tuple[int, ...], options: Sequence[RunOption]) -> tuple[RunOption, ...]:
            if classes not in of_runs:
                return tuple(options)
            others = min(of_runs[classes])
            made = [_moved(o, int(off.get((classes, k), others))) for k, o in enumerate(options)]
            return tuple(map(_bounded, made) if classes in self._counted_twice else made)

        classes = self.problem.block_classes
        runs = [
            tuple([(end, corrected(classes[start:end], options)) for end, options in row])
            for start, row in enumerate(self.problem.runs)
        ]
        return replace(self.problem, runs=tuple(runs))


def chain_of(planner: Planner, inside: Inside) -> SearchedChain:
    """Return the chain of a program, or of what is inside it, which nobody taught yet."""
    if len(planner.problem.block_classes) > WIDE:
        return SearchedChain(planner.curve, inside)
    return TaughtChain(planner.graph, planner.cuts, planner.options, planner.problem, planner.curve, inside)


def _moved(option: RunOption, off_bytes: int) -> RunOption:
    """Return an option that needs so many bytes more."""
    return replace(option, transient_bytes=max(option.transient_bytes + off_bytes, 0))


def _bounded(option: RunOption) -> RunOption:
    """Return an option that keeps no more than it needs."""
    return replace(option, kept_bytes=min(option.kept_bytes, option.transient_bytes))


def _believed_bytes(problem: ChainProblem, nodes: Sequence[Leaf | Nest]) -> int:
    """Return what the leaves of a solved chain are believed to need."""
    return max(before + max(option.transient_bytes, option.kept_bytes) for _, before, option in _leaves(problem, nodes))


def _leaves(
    problem: ChainProblem, nodes: Sequence[Leaf | Nest], before: int = 0
) -> Iterator[tuple[Leaf, int, RunOption]]:
    """Yield the leaves of a solved chain, what is kept when each begins, and its option."""
    for node in nodes:
        if isinstance(node, Nest):
            yield from _leaves(problem, node.children, before)
            before += problem.frontier_bytes(node.start, node.end)
        else:
            option = next(options for end, options in problem.runs[node.start] if end == node.end)[node.option]
            yield node, before, option
            before += option.kept_bytes
