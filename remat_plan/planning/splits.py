"""The ways to run a run of blocks in slices.

In: a ``Run``, the ``Rules`` of its graph. Out: ``Split`` ways in its own numbers: of which value and dimension, in how
many slices, what is kept around the loop over slices.

The axis is one of the largest value that the run makes: the one along which most of what it makes is apart, so that
what stays whole is smallest. Weights are read once in each slice, and their gradients written once, so that more than
32 slices gain little and cost much; the knee is near 8 to 16.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.graph.apart import lines_of
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Schedule, as_is, structured
from remat_plan.graph.slices import Sliced, sliced
from remat_plan.graph.ways import Keep, Plain, Segment, Split
from remat_plan.planning.cuts import find_cuts, whole_region, without_loss
from remat_plan.planning.inside import Inside
from remat_plan.planning.limits import NO_LIMITS
from remat_plan.planning.runs import Run, actions_of, make_run, op_seconds, planned_problem
from remat_plan.planning.strategies.find import named_schedules
from remat_plan.planning.strategies.records import Task
from remat_plan.small.remembered import remembered
from remat_plan.solve import min_cut

KNEE, BEYOND = 8, {8: (2, 16), 16: (32,)}
"""The number of slices that is tried first, and those that are tried where so many are of use: each region takes as
long to build as the segment takes to trace. Without 16 the heads ``inductor`` and ``trl`` of ``benchmarks.split``, in
the bytes of eight slices by hand, take 22 and 43 % more time on an H100 by prediction, with it 15 and 24 %."""

SLICES = tuple(sorted({KNEE, *itertools.chain(*BEYOND.values())}))

LARGE_SHARE = 0.2
"""Blocks that need less meanwhile than this share of what the largest one needs are not split."""

LEAST_SLICE_BYTES = 1 << 20
"""No slice of the largest value of a run has fewer bytes: regions take time to trace (a perceptron, ``mlp`` of the
benchmarks, is planned in 8 processor seconds instead of 3). With twice as many ``cyclegan`` at 25 % of its peak takes
47 instead of 35 % more time by prediction; with four times as many, or none in slices, it is refused."""

PROGRAM_SLICES = (2, 4, 8, 16, 32)
"""The numbers of slices of a whole program, whose batch is small. Each takes about half as long to build as planning
all else does, so they are made one after the other, as a budget needs them."""

_INSIDE = ("dots", "dots_no_batch", "each_block")
"""What is kept of a slice of a whole program, from most to least. On a CPU a GPT-2 in eight slices needs 1776 MB; with
its products kept, 1208 MB in the same time by prediction, and with each block run again 914 MB, in 20 % more."""

_MAX_HULL = 4


def split_ways(rules: Rules, run: Run, least_slice_bytes: int, counts: Sequence[int] = SLICES) -> Iterator[Split]:
    """Yield the ways to run a run in slices that have so many bytes; none where its limits forbid it.

    Slices of what lies on several devices would be sent from one to the other.
    """
    for slices, value, dimension in _lines(rules, run, counts, least_slice_bytes):
        way = Split(value, dimension, slices)
        found = sliced(rules.borders, run.segment(Plain()), way)
        for schedule in _schedules(rules, found) if found else ():
            yield replace(way, value=run.values.index(value), sliced=schedule)


def _lines(rules: Rules, run: Run, counts: Sequence[int], least_slice_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield the numbers of slices that a run may run in, each with the value and the dimension of it to go by."""
    graph, largest = rules.graph, _largest(rules.graph, run)
    if largest is None or rules.spread or not run.limits.lets_split(run.ops, run.values):
        return
    size = graph.values[largest].size_bytes
    counts = [slices for slices in counts if slices * least_slice_bytes <= size]
    lines = lines_of(rules.borders, run.segment(Plain()), largest) if counts else []
    for slices in counts:
        fitting = [line.dimension for line in lines if line.whole_bytes < size and line.units % slices == 0]
        yield from [(slices, largest, dimension) for dimension in fitting[:1]]


class SlicedProgram:
    """A whole program in slices of its batch, its gradient made meanwhile: what is called gradient accumulation.

    Nothing of the loop runs twice, but weights are read once in each slice, and their gradients added up.

    Attributes:
        counts: the numbers of slices that there may be; none where no axis runs through the largest value.
    """

    def __init__(self, inside: Inside):
        rules, limits = inside.rules, inside.limits

        def find() -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[Schedule, ...]]]:
            run = make_run(rules.graph, whole_region(rules.graph, limits), 0, 1)
            lines = {slices: tuple(line) for slices, *line in _lines(rules, run, PROGRAM_SLICES, LEAST_SLICE_BYTES)}
            batch = next(iter(lines.values()), None)  # along another dimension less would be in the loop
            return {slices: line for slices, line in lines.items() if line == batch}, {}

        self._rules, self._around = rules, inside.around
        self._lines, self._made = remembered(rules.identity, limits.key and ("slices", limits.key), find)
        self.counts = tuple(self._lines)

    def schedules(self, slices: int) -> tuple[Schedule, ...]:
        """The schedules of so many slices: one that keeps all of a slice, then those that keep less, by one rule for
        all blocks; none where it cannot run so."""
        if slices not in self._made:
            self._made[slices] = tuple(map(self._around, self._make(slices)))
        return self._made[slices]

    def _make(self, slices: int) -> Iterator[Schedule]:
        rules, whole, (value, dimension) = self._rules, Segment(0, len(self._rules.graph.ops)), self._lines[slices]
        way = Split(value, dimension, slices)
        found = sliced(rules.borders, whole, way)
        if found is None or not found.choices[0][1].gradient_first:
            return
        ((loop, choice),) = found.choices
        (part,), cuts = choice.parts, without_loss(found.body, find_cuts(found.body, NO_LIMITS))
        task = Task(found.body, cuts, rules.hardware, inner=True)
        for inner in (part.schedule, *named_schedules(task, _INSIDE)):
            slices_by = structured(loop, replace(choice, parts=(replace(part, schedule=inner),)))
            region = as_is(0, loop), slices_by, as_is(loop + 1, len(found.region.ops))
            yield (replace(whole, way=replace(way, sliced=tuple([s for s in region if s.start < s.end]))),)


def large_runs(needed: Mapping[tuple[int, int], int]) -> list[tuple[int, int]]:
    """The runs that need most meanwhile, whatever is saved of them; ``needed``: bytes by run."""
    most = max(needed.values(), default=0)
    return [run for run, size in needed.items() if size and size >= LARGE_SHARE * most]


def narrowest(graph: Graph, runs: Mapping[tuple[int, int], Run], block: tuple[int, int]) -> list[tuple[int, int]]:
    """The run around a block with fewest bytes at both ends, where values are whole, and the one that hands on fewest.

    A cut may stand inside a loss, where its logits cross it: behind the product that makes them, or further on. Of runs
    whose largest value is the block's: another one is split for the block that makes it.
    """

    def bytes_first(run: tuple[int, int], *values: int) -> tuple[int, int]:
        return sum(graph.values[v].size_bytes for v in values if graph.values[v].producer >= 0), run[1] - run[0]

    largest = _largest(graph, runs[block])
    around = [run for run in runs if run[0] <= block[0] and block[1] <= run[1]]
    own = [run for run in around if _largest(graph, runs[run]) == largest]
    both = min(own, key=lambda run: bytes_first(run, *runs[run].reads, *runs[run].leaves))
    return [both, min(own, key=lambda run: bytes_first(run, *runs[run].leaves))]


def _largest(graph: Graph, run: Run) -> int | None:
    """The largest floating-point value that a run makes, the first of equal ones."""
    made = [v for v in run.values if _compat.is_float(graph.values[v].aval)]
    return max(made, key=lambda v: (graph.values[v].size_bytes, -v), default=None)


def _schedules(rules: Rules, found: Sliced) -> Iterator[Schedule]:
    """What is kept around the loop: all that JAX keeps, or points of the minimum cut."""
    region, choices = found.region, found.choices
    n = len(region.ops)
    yield (Segment(0, n, Plain(choices)),)
    if choices[0][1].gradient_first:
        return  # what is made by the gradient is all that is kept
    run = make_run(region, whole_region(region), 0, 1)
    problem = planned_problem(rules.inside(region, is_body=False), run, op_seconds(region, rules.hardware))
    for point in min_cut.hull(problem, _MAX_HULL):
        actions = tuple([(run.values[i], action) for i, action in actions_of(run, point)])
        yield (Segment(0, n, Keep(actions, choices)),)
