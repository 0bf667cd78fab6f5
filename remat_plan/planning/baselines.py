"""What people write by hand, on every block the cuts suggest.

In: ``Graph``, ``Cuts``. Out: schedules in which every segment saves by the same rule, the last block is plain.

The dynamic program's costs are additive; the whole program's are not quite. These schedules are judged by the
evaluator beside those of the dynamic program, so that a plan is not behind a uniform policy by such an error.
Rules: the outputs of matrix products and convolutions (``dots``), those without batch dimensions
(``dots_no_batch``). Blocks: every cut, every cut that a single value crosses, every second of these.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from remat_plan.cost.program import MATRIX_PRIMITIVES
from remat_plan.graph.records import Graph, Op
from remat_plan.planning.cuts import Cuts
from remat_plan.rewrite.segments import Segment

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


def _dear(op: Op, batched: bool) -> bool:
    if op.primitive not in MATRIX_PRIMITIVES:
        return False
    numbers = op.eqn.params.get("dimension_numbers")
    return batched or op.primitive != "dot_general" or not numbers[1][0]


def baseline_schedules(graph: Graph, cuts: Cuts, isolate: frozenset[str]) -> tuple[tuple[Segment, ...], ...]:
    """Return the uniform schedules of a program, each once.

    Args:
        graph, cuts: the program.
        isolate: primitives whose blocks stay plain (see ``cuts.find_cuts``).
    """
    if any(op.effectful for op in graph.ops):
        return ()
    schedules: dict[tuple[Segment, ...], None] = {}
    for numbers in _boundaries(graph, cuts):
        positions = sorted({cuts.positions[n] for n in numbers})
        for batched in (True, False):
            segments = []
            for start, end in itertools.pairwise(positions):
                ops = [op for op in graph.ops[start:end] if op.index not in cuts.free]
                saved = tuple(v for op in ops if _dear(op, batched) for v in op.outputs)
                alone = end < len(graph.ops) and start == 0 and graph.ops[end].primitive in isolate
                plain = end == len(graph.ops) or alone or (len(ops) == 1 and ops[0].primitive in isolate)
                segments.append(Segment(start, end, "plain" if plain else "save", () if plain else saved))
            if len(segments) > 1:
                schedules[tuple(segments)] = None
    return tuple(schedules)
