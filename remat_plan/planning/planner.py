"""From a graph to its schedules, for every amount of memory.

In: ``Graph``, ``Rules``. Out: ``Planner``: solved chains, each a ``Curve`` of schedules as trees of ``Segment``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import overload

from remat_plan.cost.builder import Rules
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Schedule, Segment, around, as_is, closed, saving, structured
from remat_plan.graph.structure import holds_structure
from remat_plan.planning.chains import make_problem
from remat_plan.planning.cuts import (
    Cuts,
    cut_before_products,
    cut_everywhere,
    find_cuts,
    whole_region,
)
from remat_plan.planning.honours import honours
from remat_plan.planning.limits import NO_LIMITS, Limits, check_some
from remat_plan.planning.offloads import may_offload, offloaded
from remat_plan.planning.options import Options, SegmentOption, find_options
from remat_plan.planning.runs import MERGE, Run, actions_of, make_run, op_seconds, planned_problem
from remat_plan.planning.strategies.find import BY_HAND, named_schedules
from remat_plan.planning.strategies.records import Task
from remat_plan.small.remembered import remembered
from remat_plan.solve import milp, min_cut
from remat_plan.solve.chain import ChainTable, Leaf, Nest
from remat_plan.solve.long_chain import GroupedTable, solve_chain


class Curve(Sequence[Schedule]):
    """The schedules of one solved chain, from the least memory to the least seconds.

    Attributes:
        limits: per schedule the bytes, beside arguments and outputs, that it was made for; increasing.
        seconds: per schedule what the dynamic program believes it costs beyond the plain step.
    """

    def __init__(self, graph: Graph, cuts: Cuts, options: Options, table: ChainTable | GroupedTable):
        self.graph, self.cuts, self.options, self.table = graph, cuts, options, table
        self.points = tuple(_shallow(table))
        self.limits = tuple(p * table.quantum_bytes for p in self.points)
        self.seconds = tuple(float(table.costs[p]) for p in self.points)
        self._schedules: dict[int, Schedule] = {}

    def __len__(self) -> int:
        return len(self.points)

    @overload
    def __getitem__(self, point: int) -> Schedule: ...

    @overload
    def __getitem__(self, point: slice) -> list[Schedule]: ...

    def __getitem__(self, point: int | slice) -> Schedule | list[Schedule]:
        if isinstance(point, slice):
            return [self[p] for p in range(*point.indices(len(self)))]
        if point not in self._schedules:
            self._schedules[point] = self._segments(self.table.schedule(self.points[point]))
        return self._schedules[point]

    def spread(self, most: int) -> list[Schedule]:
        """Schedules that are equally far apart, both ends among them; ``most`` of them at most."""
        most = min(most, len(self))
        return [self[round(i * (len(self) - 1) / max(most - 1, 1))] for i in range(most)]

    def _segments(self, nodes: Sequence[Leaf | Nest]) -> tuple[Segment, ...]:
        result = []
        for node in nodes:
            start, end = self.cuts.positions[node.start], self.cuts.positions[node.end]
            if isinstance(node, Nest):
                result.append(around(start, end, self._segments(node.children)))
                continue
            option = self.options.profiles[node.start, node.end].options[node.option]
            run = self.options.runs[node.start, node.end]
            if option.way.choices:
                result.append(structured(run.ops[0], option.way.choices[0][1]))
            elif option.tail:
                result += _with_tail(self.graph, start, end, run, option)
            else:
                result.append(replace(run.segment(option.way), start=start, end=end))
        return tuple(result)


def _with_tail(graph: Graph, start: int, end: int, run: Run, option: SegmentOption) -> list[Segment]:
    """The segment of an option, and behind it what stays as it is."""
    border = run.ops[-option.tail]
    behind = {v for index in run.ops if index >= border for v in graph.ops[index].outputs}
    saved = {run.values[i]: action for i, action in option.way.actions}
    made = saving(start, border, {v: action for v, action in saved.items() if v not in behind})
    return [made, as_is(border, end)]


_DEEPEST = 16
"""Segments are nested so deep at most. Each level may run what is behind it once more, and takes JAX up to 18 of the
thousand calls that Python allows (jax 0.10 fails at 60 levels, 0.12 at 80): most are left to the program around."""


def _shallow(table: ChainTable | GroupedTable) -> list[int]:
    """The points of a table but for the first ones, those with the least memory, that nest too deep."""
    points = table.breakpoints()
    while len(points) > 1 and _levels(table.schedule(points[0])) > _DEEPEST:
        points.pop(0)
    return points


def _levels(nodes: Sequence[Leaf | Nest]) -> int:
    return max((1 + _levels(node.children) for node in nodes if isinstance(node, Nest)), default=0)


_MERGE_SMALL = 12
"""So many equations of a small program may be one segment by themselves."""


class Planner:
    """All schedules of one program on one hardware.

    Attributes:
        cuts, options, problem: the stages' results.

    Raises:
        ValueError: limits that no schedule respects.
    """

    def __init__(
        self, graph: Graph, rules: Rules, limits: Limits = NO_LIMITS, cuts: Cuts | None = None, merge: int = MERGE
    ):
        self.graph, self.rules = graph, rules
        self.cuts = find_cuts(graph, limits) if cuts is None else cuts
        self.options = self._options(limits, merge)
        self.problem = make_problem(graph, self.cuts, self.options)

    def _options(self, limits: Limits, merge: int) -> Options:
        """The options of all runs; those of a program that was planned before in this process are known."""
        find = partial(find_options, self.graph, self.cuts, self.rules, RegionPlanner(limits), merge)
        key = limits.key and ("options", limits.key, self.cuts.positions, merge)
        return remembered(self.rules.identity, key, find)

    @cached_property
    def curve(self) -> Curve:
        """The family of the chain, all that a region inside a structure needs."""
        return Curve(self.graph, self.cuts, self.options, solve_chain(self.problem))

    @cached_property
    def kept_curve(self) -> Curve:
        """The family of the chain where bytes count that are kept, as in a loop, which keeps them of every step."""
        return Curve(self.graph, self.cuts, self.options, solve_chain(self.problem.kept()))

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        """The family of the chain, and of small programs one of single equations (solved on first use)."""
        fine = cut_everywhere(self.graph, self.cuts)
        if fine is None:
            return (self.curve,)
        return self.curve, Planner(self.graph, self.rules, self.cuts.limits, fine, _MERGE_SMALL).curve


_MAX_HULL = 8
_SHARE = 1 / 16
_SECONDS_SHARE = 1 / 32
"""Segments of a region may differ in what they keep by about this share of what is kept at most, and in what they
recompute by this share of the forward pass: a person may write any of those between, and no mixture of steps comes near
where the rows that stretches copy are large (weights)."""

_CHAIN_POINTS = 16
"""So many schedules of the chain of a region's blocks, equally far apart, are judged at most."""

_FINER_POINTS = 3
"""Of segments inside a segment that may begin at every product, so many with the least memory are worth a look."""

_LONG_REGION = 400
"""Regions of more equations get the two ends of their hull and their chains only: an integer program of thousands of
equations takes seconds, and what lies between the ends the chain of the region's blocks offers too."""


@dataclass(frozen=True, slots=True)
class RegionPlanner:
    """Makes schedules of the regions inside structures, within the limits of what is ``around`` them."""

    around: Limits = NO_LIMITS

    def __call__(self, rules: Rules) -> tuple[Schedule, ...]:
        """See ``solve_region``."""
        return solve_region(rules, self.around)

    def moved(self, rules: Rules, schedules: Sequence[Schedule]) -> tuple[Schedule, ...]:
        """What is made of schedules of a loop's step by moving what they keep to the host; none where it may not go."""
        limits = self.around.inside(rules.graph)
        return offloaded(rules.graph, limits, schedules) if may_offload(limits, rules.hardware) else ()


def solve_region(rules: Rules, around: Limits = NO_LIMITS) -> tuple[Schedule, ...]:
    """Return schedules of the region inside a structure, from those that keep most to those that keep least.

    As it is; one segment for each point of the minimum-cut hull and between them (by integer program); the chain of its
    own blocks (with structures among them also that of what is kept alone), and that as a segment around segments,
    which keeps nothing but what goes in. Of these, what respects the limits that ``around`` has for it, and runs
    effects once.

    Raises:
        ValueError: limits that no schedule respects.
    """
    region = rules.graph
    n = len(region.ops)
    if not n:
        return ((as_is(0, 0),),)
    limits = around.inside(region)
    found: dict[Schedule, None] = {(as_is(0, n),): None}
    if not region.apart:
        found.update(dict.fromkeys(_one_segment(region, rules, limits)))
    found.update(dict.fromkeys(_chained(region, rules, limits)))
    schedules = tuple([schedule for schedule in found if honours(region, limits, schedule)])
    check_some(schedules, region)
    return schedules


def _one_segment(region: Graph, rules: Rules, limits: Limits) -> Iterator[Schedule]:
    """Yield a region as one segment: for each point of the hull and between them."""
    n = len(region.ops)
    cuts = whole_region(region, limits)
    run = make_run(region, cuts, 0, 1)
    problem = planned_problem(rules, run, op_seconds(region, rules.hardware))
    hull = min_cut.hull(problem, _MAX_HULL if n <= _LONG_REGION else 2)
    if n <= _LONG_REGION:
        hull = milp.between(problem, hull, share=_SHARE, seconds_share=_SECONDS_SHARE)
    for choice in {c.actions: c for c in hull}.values():
        yield (saving(0, n, {run.values[i]: action for i, action in actions_of(run, choice)}),)


def _chained(region: Graph, rules: Rules, limits: Limits) -> Iterator[Schedule]:
    """Yield the chains of a region's blocks: open, with the last block a segment too, as a segment around segments."""
    n = len(region.ops)
    planner = Planner(region, rules, limits)
    chains = planner.curve.spread(_CHAIN_POINTS)
    if holds_structure(region):
        chains += planner.kept_curve.spread(_CHAIN_POINTS)
    if n <= _LONG_REGION:
        task = Task(region, planner.cuts, rules.hardware, inner=True)
        chains += named_schedules(task, BY_HAND)
    for children in dict.fromkeys(chains):
        if len(children) > 1 or holds_structure(region):
            yield children
            yield closed(children, region.apart)
            yield (around(0, n, children),)
    finer = cut_before_products(region, planner.cuts) if n <= _LONG_REGION else None
    if finer is not None:
        curve = Planner(region, rules, limits, finer).curve
        for children in curve[:_FINER_POINTS]:
            yield (around(0, n, children),)
