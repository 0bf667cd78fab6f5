"""The strategy ``milp``: which values to keep, solved exactly.

In: ``Task`` of a small program. Out: ``Found``: schedules for a spread of kept bytes.

Checkmate (Jain et al. 2020, arXiv 1910.02653): what to keep as an integer linear program (``solve.milp``), here with
each equation run again at most once. The model is solved for three ways to divide the program (one segment; the
segments of ``memory``; every block), with the values that cross a cut kept anyway, each for a spread of bytes. Between
the fewest and the most bytes, the selection is the one that recomputes the fewest seconds; which of all has the peak
that is wanted, the evaluator and the compiler say.

Limits: exact for seconds and kept bytes, not for the peak, which also holds what a segment needs while it is run again.
NP-hard, so programs above ``MILP_MOST_OPS`` equations are refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from remat_plan.graph.uses import last_uses
from remat_plan.planning.cuts import Cuts, frontiers
from remat_plan.planning.runs import make_run, op_seconds, segment_problem
from remat_plan.planning.strategies.chains import is_alone, one_segment
from remat_plan.planning.strategies.records import MILP_MOST_OPS, Found, Schedule, Task
from remat_plan.planning.strategies.sublinear import find_memory
from remat_plan.solve import milp
from remat_plan.solve.min_cut import SegmentProblem, save_most, save_none

_POINTS = 11
_NODES = 2000


def find_milp(task: Task) -> Found:
    """Solve for a spread of kept bytes.

    Raises:
        ValueError: the program is too large.
    """
    count = len(task.graph.ops)
    if count > MILP_MOST_OPS:
        raise ValueError(
            f"strategy='milp' solves an integer program exactly, for up to {MILP_MOST_OPS} equations; this program has "
            f"{count}. Use strategy='auto' or strategy='chain', which take programs of any length."
        )
    seconds = op_seconds(task.graph, task.hardware)
    schedules: dict[Schedule, None] = {}
    solved = 0
    for positions in _divisions(task):
        for wanted in _selections(task, positions, seconds):
            pairs = itertools.pairwise(positions)
            schedules[tuple(one_segment(task, s, e, wanted=wanted) for s, e in pairs)] = None
            solved += 1
    return Found(tuple(schedules), (f"{solved} integer programs of {count} equations were solved exactly",))


def _divisions(task: Task) -> Iterator[tuple[int, ...]]:
    """Yield the ways to divide the program, as positions."""
    cuts = task.cuts
    alone = {p for pair in itertools.pairwise(cuts.positions) if is_alone(task, *pair) for p in pair}
    light = find_memory(task).schedules[0]
    ways = [{0, len(task.graph.ops)}, {s.start for s in light} | {len(task.graph.ops)}, set(cuts.positions)]
    yield from dict.fromkeys(tuple(sorted(way | alone)) for way in ways)


def _selections(task: Task, positions: tuple[int, ...], seconds: list[float]) -> Iterator[Sequence[int]]:
    """Yield the exact selections for a spread of kept bytes, as values of the program."""
    graph, cuts = task.graph, task.cuts
    divided = Cuts(
        positions, frontiers(graph, positions, cuts.free, last_uses(graph)), cuts.free, cuts.needed, cuts.limits
    )
    run = make_run(graph, divided, 0, len(positions) - 1)
    crossing = frozenset().union(*divided.frontiers)
    problem = _with_free(segment_problem(graph, run, seconds), {run.values.index(v) for v in crossing})
    least, most = save_none(problem).kept_bytes, save_most(problem).kept_bytes
    for limit in sorted({least + (most - least) * i // (_POINTS - 1) for i in range(_POINTS)}):
        selection = milp.exact(problem, limit, nodes=_NODES)
        yield [run.values[i] for i in sorted(selection.saved)]


def _with_free(problem: SegmentProblem, stored: set[int]) -> SegmentProblem:
    """Return the problem with some values stored anyway."""
    sizes = tuple(0 if v in stored else b for v, b in enumerate(problem.value_bytes))
    return SegmentProblem(
        problem.op_inputs,
        problem.op_outputs,
        problem.op_seconds,
        sizes,
        problem.saveable,
        problem.needed,
        problem.fixed,
    )
