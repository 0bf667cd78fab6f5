"""Chains of any length under a memory limit: chains of groups of blocks.

In: ``ChainProblem``. Out: a table that answers every budget: ``ChainTable`` for a short chain, ``GroupedTable`` for a
long one.

One dynamic program over n blocks has n^2 / 2 rows, and a quantum that is coarser than a block where n is large: every
block is then rounded away, or up. So a long chain is cut into at most ``WIDE`` groups; each group is a chain that is
solved by itself (again in groups, if it is long), equal ones once. Its schedules are the options of the group, with
their bytes and seconds exactly as its blocks give them, nothing rounded: as they are, or under one more checkpoint,
where only the frontier behind the group is kept. The chain of groups is then short. Mixed over the groups, some
options a group are as fine as all options of all blocks. Cost: linear in the number of different groups, for each one
short dynamic program; there are few where blocks repeat.

Limits: no segment but a nested checkpoint spans two groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from remat_plan.solve.chain import WIDE, ChainProblem, ChainTable, Leaf, Nest, RunOption, intervals, solve
from remat_plan.solve.pareto import undominated

Nodes = tuple[Leaf | Nest, ...]

_WHOLE = 2 * WIDE
"""The longest chain that is one table if that is not too much work: of more blocks the quantum is too coarse."""

_WORK = 500_000
"""So many rows (one per different interval) times blocks: two seconds. Groups take less, but their schedules recompute
more where memory is tight."""

_LEAST_GROUP = 12
"""Groups of fewer blocks separate what may be one segment; of more, they are too few to nest well in little memory."""

_STRETCH = 1.5
"""Groups may be longer by this factor, where more of them are then equal."""

_POINTS = 20
"""So many schedules of a group, evenly over its memory, become its options."""

_NEEDED_LATER = (0.0, 0.25, 0.5, 1.0, 2.0)
"""What later groups may need, in shares of the most that one block of a group needs."""

_SLOTS = 6000


@dataclass(frozen=True, slots=True)
class GroupOption:
    """One way to run a group: ``nodes`` of its blocks, numbered from its first one, under one more checkpoint if
    ``nested``."""

    nodes: Nodes
    nested: bool
    cost: RunOption


class GroupedTable(ChainTable):
    """The solved table of a long chain: that of its groups, whose nodes are expanded. Build with ``solve_chain``.

    ``starts`` are the first block of each group, and the end of the chain; ``options`` are those of each group.
    """

    def __init__(self, problem: ChainProblem, starts: Sequence[int], options: Sequence[Sequence[GroupOption]]):
        super().__init__(_problem_of_groups(problem, starts, options), _SLOTS)
        self.starts, self.options = starts, options

    def schedule(self, slot: int) -> Nodes:
        """Return the segments of the whole chain, over its blocks; see ``ChainTable``."""
        return tuple(self._expanded(super().schedule(slot)))

    def nested(self, slot: int) -> Nodes:
        """Return those where the chain is run again as one checkpointed part."""
        return tuple(self._expanded(super().nested(slot)))

    def _expanded(self, nodes: Nodes) -> Iterator[Leaf | Nest]:
        """Yield nodes over blocks for nodes over groups."""
        for node in nodes:
            start, end = self.starts[node.start], self.starts[node.end]
            if isinstance(node, Nest):
                yield Nest(start, end, tuple(self._expanded(node.children)))
                continue
            option = self.options[node.start][node.option]
            moved = tuple(_moved(option.nodes, start))
            if option.nested:
                yield Nest(start, end, moved)
            else:
                yield from moved


def _moved(nodes: Nodes, by: int) -> Iterator[Leaf | Nest]:
    """Yield nodes with block numbers ``by`` higher."""
    for node in nodes:
        if isinstance(node, Nest):
            yield Nest(node.start + by, node.end + by, tuple(_moved(node.children, by)))
        else:
            yield Leaf(node.start + by, node.end + by, node.option)


def solve_chain(problem: ChainProblem) -> ChainTable:
    """Solve a chain of any length for every budget at once."""
    if is_short(problem.block_classes):
        return solve(problem)
    starts = _starts(problem)
    known: dict[tuple[int, ...], tuple[GroupOption, ...]] = {}
    options = []
    for start, end in itertools.pairwise(starts):
        classes = problem.block_classes[start:end]
        if classes not in known:
            known[classes] = _group_options(part(problem, start, end))
        options.append(known[classes])
    return GroupedTable(problem, starts, options)


def is_short(classes: tuple[int, ...]) -> bool:
    """Tell whether a chain is solved as one table."""
    n = len(classes)
    return n <= WIDE or (n <= _WHOLE and (int(intervals(classes)[0].max()) + 1) * n <= _WORK)


def _starts(problem: ChainProblem) -> list[int]:
    """Return where groups start, and the end.

    Groups are as long as must be, or longer if more of them are then equal; where hardly any are, each ends where its
    successor needs least of it.
    """
    classes = problem.block_classes
    n = len(classes)
    least = max(_LEAST_GROUP, -(-n // WIDE))
    most = min(int(least * _STRETCH), n)
    even = [[*range(0, n, length), n] for length in range(least, most + 1)]
    sizes = [sum(b for b, _ in frontier) for frontier in problem.frontiers]
    low = [0]
    while n - low[-1] > most:
        window = range(low[-1] + least, low[-1] + most + 1)
        low.append(min(window, key=lambda cut: (sizes[cut], cut)))
    low.append(n)
    different = [len({classes[s:e] for s, e in itertools.pairwise(starts)}) for starts in (low, *even)]
    fewest = min(range(len(even)), key=lambda i: different[i + 1])
    return even[fewest] if 2 * different[fewest + 1] <= different[0] else low


def part(problem: ChainProblem, start: int, end: int) -> ChainProblem:
    """Return blocks ``start .. end-1`` as a chain of their own."""
    return ChainProblem(
        block_classes=problem.block_classes[start:end],
        runs=tuple(tuple((e - start, o) for e, o in row if e <= end) for row in problem.runs[start:end]),
        frontiers=tuple(tuple((b, min(c, end) - start) for b, c in f) for f in problem.frontiers[start : end + 1]),
        forward_seconds=problem.forward_seconds[start:end],
        may_nest=problem.may_nest[start:end],
    )


def cost_of(problem: ChainProblem, nodes: Nodes, again: bool) -> tuple[int, int, float]:
    """Return the bytes that nodes keep, the bytes they need meanwhile, and their seconds; nothing is rounded.

    ``again``: they are the end of a checkpointed part, so the forward pass of the last one is not run twice.
    """
    kept = needed = 0
    seconds = 0.0
    for node in nodes:
        last = again and node is nodes[-1]
        if isinstance(node, Nest):
            left = problem.frontier_bytes(node.start, node.end)
            _, meanwhile, inner = cost_of(problem, node.children, True)
            seconds += inner + (0.0 if last else sum(problem.forward_seconds[node.start : node.end]))
        else:
            option = next(o for e, o in problem.runs[node.start] if e == node.end)[node.option]
            left, meanwhile = option.kept_bytes, option.transient_bytes
            seconds += option.last_seconds if last else option.seconds
        needed = max(needed, kept + meanwhile, kept + left)
        kept += left
    return kept, needed, seconds


def _group_options(problem: ChainProblem) -> tuple[GroupOption, ...]:
    """Return the options of a group: schedules of its own chain, as they are and under one more checkpoint.

    What a group keeps is there while all later groups work; what it needs beside that, while it works itself. So it is
    solved for several amounts of what the later ones need: with none, its own need is what is limited, with much, what
    it keeps.
    """
    n = len(problem.block_classes)
    found: dict[tuple[Nodes, bool], GroupOption] = {}
    most = max(o.transient_bytes for row in problem.runs for _, options in row for o in options)
    for share in _NEEDED_LATER:
        table = solve_chain(_with_rest(problem, int(share * most)))
        for point in _spread(table.breakpoints()):
            nodes = table.schedule(point)[:-1]
            kept, needed, seconds = cost_of(problem, nodes, False)
            cost = RunOption(kept, needed, seconds, cost_of(problem, nodes, True)[2])
            found[nodes, False] = GroupOption(nodes, False, cost)
    if all(problem.may_nest) and n > 1:
        table = solve_chain(problem)
        left, forward = problem.frontier_bytes(0, n), sum(problem.forward_seconds)
        for point in _spread(table.breakpoints(1)):
            nodes = table.nested(point)
            _, needed, seconds = cost_of(problem, nodes, True)
            cost = RunOption(left, max(needed, left), forward + seconds, seconds)
            found[nodes, True] = GroupOption(nodes, True, cost)
    costs = attrgetter("cost.kept_bytes", "cost.seconds", "cost.transient_bytes", "cost.last_seconds")
    return tuple(undominated(found.values(), costs))


def _with_rest(problem: ChainProblem, rest_bytes: int) -> ChainProblem:
    """Return a chain with one block more, which stands for what comes later and needs so many bytes."""
    n = len(problem.block_classes)
    return ChainProblem(
        block_classes=(*problem.block_classes, min(problem.block_classes) - 1),
        runs=(*problem.runs, ((n + 1, (RunOption(0, rest_bytes, 0.0),)),)),
        frontiers=(*problem.frontiers, ()),
        forward_seconds=(*problem.forward_seconds, 0.0),
        may_nest=(*problem.may_nest, False),
    )


def _spread(points: list[int]) -> list[int]:
    """Choose points spread evenly over the slots, both ends among them, half of them over the lowest eighth."""
    low, high = points[0], points[-1]
    wanted = [low + (high - low) * i / (_POINTS - 1) for i in range(_POINTS)]
    wanted += [low + (high - low) * i / (4 * _POINTS) for i in range(_POINTS // 2)]
    return sorted({min(points, key=lambda p: abs(p - w)) for w in wanted})


def _problem_of_groups(
    problem: ChainProblem, starts: Sequence[int], options: Sequence[Sequence[GroupOption]]
) -> ChainProblem:
    """Return the chain of groups; equal groups have the same options object."""
    count = len(options)
    group_of = np.searchsorted(np.asarray(starts), np.arange(starts[-1] + 1), side="right") - 1  # of a cut
    frontiers = [tuple((b, int(group_of[c])) for b, c in problem.frontiers[start]) for start in starts]
    numbers: dict[int, int] = {}
    spans = list(itertools.pairwise(starts))
    return ChainProblem(
        block_classes=tuple(numbers.setdefault(id(o), len(numbers)) for o in options),
        runs=tuple(((i + 1, tuple(o.cost for o in options[i])),) for i in range(count)),
        frontiers=tuple(frontiers),
        forward_seconds=tuple(float(sum(problem.forward_seconds[s:e])) for s, e in spans),
        may_nest=tuple(all(problem.may_nest[s:e]) for s, e in spans),
    )
