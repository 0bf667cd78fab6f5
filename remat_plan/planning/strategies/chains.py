"""The program as a chain of blocks: what the strategies that choose among cuts have in common.

In: ``Task``. Out: ``Chain``: per block the bytes that its backward pass needs when it is computed again, per cut the
bytes of its frontier; and segments made of runs of blocks.

The bytes of a run are those of the values its backward equations read and of the internals that JAX keeps beside
them (``graph.needs``), each once: what is there when a segment that saves nothing has just been run again. That is an
estimate, made without tracing; which of the schedules made with it is best, the evaluator says.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from remat_plan.graph.schedule import Segment
from remat_plan.graph.structure import structure_of
from remat_plan.planning.saving import backward_reads, may_nest, plain_segment, save_segment, stays_plain
from remat_plan.planning.strategies.records import Schedule, Task


@dataclass(frozen=True, slots=True)
class Chain:
    """Blocks 0 .. n-1 between n+1 cuts.

    Attributes:
        block_bytes: per block, residuals of its backward pass that are made inside it.
        spans: per cut, (bytes, last cut that it crosses) of each value of the frontier.
        alone: per block, whether it stays outside segments that only save memory (effects, pins, max-pools).
    """

    block_bytes: tuple[int, ...]
    spans: tuple[tuple[tuple[int, int], ...], ...]
    alone: tuple[bool, ...]

    @property
    def n(self) -> int:
        """How many blocks there are."""
        return len(self.block_bytes)

    def frontier_bytes(self, start: int, end: int) -> int:
        """Bytes that keeping the frontier of cut ``end`` adds to that of cut ``start``."""
        return sum(b for b, _ in self.spans[end]) - sum(b for b, last in self.spans[start] if last >= end)


def make_chain(task: Task) -> Chain:
    """Return the chain of a program."""
    graph, cuts = task.graph, task.cuts
    sizes, alone = [], []
    for start, end in itertools.pairwise(cuts.positions):
        read = backward_reads(graph, start, end)
        made = sum(graph.values[v].size_bytes for v in read if start <= graph.values[v].producer < end)
        kept = sum(graph.needs[op.kind].internal_bytes for op in graph.ops[start:end] if op.differentiated)
        sizes.append(made + kept)
        alone.append(is_alone(task, start, end))
    last: dict[int, int] = {}
    for number, frontier in enumerate(cuts.frontiers):
        last.update(dict.fromkeys(frontier, number))
    spans = tuple(tuple((graph.values[v].size_bytes, last[v]) for v in sorted(f)) for f in cuts.frontiers)
    return Chain(tuple(sizes), spans, tuple(alone))


def is_alone(task: Task, start: int, end: int) -> bool:
    """Whether a range of equations stays outside segments: it must, or it is a structure by itself."""
    ops = [op for op in task.graph.ops[start:end] if op.index not in task.cuts.free]
    single = len(ops) == 1 and structure_of(ops[0]) is not None
    return single or stays_plain(task.graph, task.cuts, start, end)


def one_segment(task: Task, start: int, end: int, plain: bool = False, wanted: Sequence[int] = ()) -> Segment:
    """Return equations ``start .. end-1`` as one segment that saves ``wanted``, or as they are.

    A range that must stay outside segments is left as it is in any case.
    """
    if plain or is_alone(task, start, end):
        return plain_segment(task.graph, task.cuts, start, end)
    return save_segment(task.graph, task.cuts, start, end, wanted)


def segments_between(task: Task, numbers: Sequence[int]) -> Schedule:
    """Return one segment that saves nothing between each two cuts of ``numbers``, the last one left as it is.

    The last one would be run again at once, for nothing. Blocks that stay outside segments are cut out.
    """
    wanted = set(numbers)
    for number, (start, end) in enumerate(itertools.pairwise(task.cuts.positions)):
        if is_alone(task, start, end):
            wanted.update((number, number + 1))
    positions = [task.cuts.positions[n] for n in sorted(wanted)]
    last = len(task.graph.ops)
    return tuple(one_segment(task, s, e, plain=e == last) for s, e in itertools.pairwise(positions))


def nestable(task: Task, start: int, end: int) -> bool:
    """Whether blocks ``start .. end-1`` may be run again as a whole."""
    return may_nest(task.graph, task.cuts, task.cuts.positions[start], task.cuts.positions[end])


def block_segment(task: Task, number: int, plain: bool) -> Segment:
    """Return one block as a segment that saves nothing, or as it is."""
    return one_segment(task, task.cuts.positions[number], task.cuts.positions[number + 1], plain)


def equal_groups(signatures: Sequence[object], most: int = 8) -> list[tuple[int, int]]:
    """Return ranges of blocks: each repetition of a repeated sequence of blocks is one, other blocks stand alone.

    So the two halves of a transformer layer are one range where the layers follow each other.

    >>> equal_groups("eabababh")
    [(0, 1), (1, 3), (3, 5), (5, 7), (7, 8)]
    """
    groups: list[tuple[int, int]] = []
    at = 0
    while at < len(signatures):
        best, period = 0, 1
        for length in range(1, most + 1):
            count = _repetitions(signatures, at, length)
            if count > 1 and count * length > best:
                best, period = count * length, length
        groups += [(i, i + period) for i in range(at, at + max(best, 1), period)]
        at += max(best, 1)
    return groups


def _repetitions(signatures: Sequence[object], at: int, length: int) -> int:
    first = list(signatures[at : at + length])
    count = 1
    while len(first) == length and list(signatures[at + count * length : at + (count + 1) * length]) == first:
        count += 1
    return count
