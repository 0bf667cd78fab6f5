"""What people write by hand, on every block the cuts suggest.

In: ``Graph``, ``Cuts``. Out: schedules in which every segment saves by the same rule, the last block is plain.

The dynamic program's costs are additive; the whole program's are not quite. These schedules are judged by the
evaluator beside those of the dynamic program, so that a plan is not behind a uniform policy by such an error.
Rules: the outputs of matrix products and convolutions (``dots``), those without batch dimensions
(``dots_no_batch``). Blocks: every cut, every cut that a single value crosses, every second of these. In a program with
scans: the rules, and to save nothing, on every step of every scan.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Set

from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part, Schedule, Segment, as_is, saving, structured
from remat_plan.graph.structure import structure_of
from remat_plan.planning.cuts import Cuts
from remat_plan.planning.limits import NO_LIMITS
from remat_plan.planning.saving import is_product, is_unbatched_product, plain_segment, save_segment, stays_plain

_SINGLE_SHARE = 0.9


def _single_cuts(graph: Graph, cuts: Cuts) -> list[int]:
    """Cut numbers whose frontier is one value (others are small beside it)."""
    chosen = [0]
    for number in range(1, len(cuts.positions) - 1):
        sizes = [graph.values[v].size_bytes for v in cuts.frontiers[number]]
        if sizes and max(sizes) >= _SINGLE_SHARE * sum(sizes):
            chosen.append(number)
    return [*chosen, len(cuts.positions) - 1]


def _boundaries(graph: Graph, cuts: Cuts) -> Iterator[tuple[int, ...]]:
    everything = tuple(range(len(cuts.positions)))
    single = tuple(_single_cuts(graph, cuts))
    yield everything
    yield single
    inner, end = single[1:-2], single[-2:]
    yield (0, *inner[1::2], *end)
    yield (0, *inner[0::2], *end)


def _is_nothing(op: Op) -> bool:
    return False


def structured_schedule(graph: Graph, keeps: Callable[[Op], bool]) -> Schedule:
    """Return the schedule in which every region inside every structure is one segment, and the rest is as it is.

    A region with effects that are read, or with a structure that has some, is segments between them.
    """
    return _between(graph, keeps, {op.index for op in graph.ops if structure_of(op) is not None}, as_is)


def _region_schedule(region: Graph, keeps: Callable[[Op], bool]) -> Schedule:
    def segment(start: int, end: int) -> Segment:
        return saving(start, end, [v for op in region.ops[start:end] if keeps(op) for v in op.outputs])

    return _between(region, keeps, region.apart, segment) if region.apart else (segment(0, len(region.ops)),)


def _between(
    graph: Graph, keeps: Callable[[Op], bool], single: Set[int], rest: Callable[[int, int], Segment]
) -> Schedule:
    """Return ``single`` equations each by itself, structures among them planned inside, and ``rest`` between them."""
    segments: list[Segment] = []
    start = 0
    for index in sorted(single):
        op = graph.ops[index]
        structure = structure_of(op)
        if index > start:
            segments.append(rest(start, index))
        start = index + 1
        if structure is None:
            segments.append(as_is(index, start))
            continue
        pairs = zip(structure.regions(graph, op), structure.run_counts(op), strict=True)
        parts = [Part(int(count), _region_schedule(region, keeps)) for region, count in pairs]
        segments.append(structured(index, Choice(tuple(parts))))
    if start < len(graph.ops):
        segments.append(rest(start, len(graph.ops)))
    return tuple(segments)


def baseline_schedules(graph: Graph, cuts: Cuts) -> tuple[tuple[Segment, ...], ...]:
    """Return the uniform schedules of a program, each once.

    Args:
        graph, cuts: the program.
    """
    if any(structure_of(op) is not None for op in graph.ops):
        if cuts.limits != NO_LIMITS:
            return ()
        return tuple(structured_schedule(graph, rule) for rule in (is_product, is_unbatched_product, _is_nothing))
    schedules: dict[tuple[Segment, ...], None] = {}
    for numbers in _boundaries(graph, cuts):
        positions = sorted({cuts.positions[n] for n in numbers})
        for keeps in (is_product, is_unbatched_product, _is_nothing):
            segments = []
            for start, end in itertools.pairwise(positions):
                ops = [op for op in graph.ops[start:end] if op.index not in cuts.free]
                saved = tuple(v for op in ops if keeps(op) for v in op.outputs)
                if end == len(graph.ops) or stays_plain(graph, cuts, start, end):
                    segments.append(plain_segment(graph, cuts, start, end))
                else:
                    segments.append(save_segment(graph, cuts, start, end, saved))
            if len(segments) > 1:
                schedules[tuple(segments)] = None
    return tuple(schedules)
