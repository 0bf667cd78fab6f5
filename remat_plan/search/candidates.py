"""Where the schedules of one program come from.

In: the ``Rules`` of its graph, ``Request``s. Out: schedules to choose from: the planner's curves, uniform schedules
beside them, what a local search makes of all these in a small program, those of a strategy that was asked for by name.
All are made on first use; chains are solved, and strategies asked, once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from remat_plan.cost.builder import Rules
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Schedule, as_is
from remat_plan.graph.structure import holds_structure
from remat_plan.graph.uses import last_uses
from remat_plan.planning.blend import joined
from remat_plan.planning.constraints import Constraints
from remat_plan.planning.cuts import Cuts, cut_before_products, frontiers, is_small, without_loss
from remat_plan.planning.honours import honours
from remat_plan.planning.improve import Judged, improved
from remat_plan.planning.inside import Inside, find_inside
from remat_plan.planning.limits import collectives, resolve
from remat_plan.planning.moves import Moves, can_move
from remat_plan.planning.names import known_names, names_inside
from remat_plan.planning.offloads import in_loops, may_offload
from remat_plan.planning.planner import Planner
from remat_plan.planning.saving import is_product, save_segment
from remat_plan.planning.splits import SlicedProgram
from remat_plan.planning.strategies.find import (
    BY_HAND,
    find_schedules,
    make_task,
    named_schedules,
    schedules_by_names,
)
from remat_plan.planning.strategies.records import (
    AS_WRITTEN,
    BY_RULE,
    CHECKED,
    MOVES,
    NO_SETTINGS,
    Found,
    Settings,
    Strategy,
    Task,
)
from remat_plan.planning.taught import FURTHER, SearchedChain, chain_of
from remat_plan.small.doors import flag
from remat_plan.small.progress import Progress
from remat_plan.small.remembered import remembered
from remat_plan.traced.programs import Program

_LONG_OPS = 4000
"""Beside the schedules of longer programs, whose predictions take a second each, uniform ones are not judged, nor are
slices of the whole."""

_BY_HAND = (*BY_HAND, "memory", "log")
"""Strategies whose schedules are judged beside the planner's own uniform ones."""

_SCALAR_SHARE = 1e-3
"""What crosses a position behind a loss is less than this share of what crosses before it."""

CURVE_POINTS = 15
"""So many points of a curve, equally far apart, stand for all of it: fewer may miss its least peak."""

_MOST_JUDGED, _MOST_EQUATIONS = 800, 60_000
"""So many schedules of a small program the local search judges at most, and so many equations of all their gradients: a
second of work. Fewer leave a few per cent of overhead, above all in the least memory; twice as many find hardly more.
An equation has up to four in its gradient, a cumulative product hundreds: with four of those a plan took 16 s."""

Goal = Literal["memory", "time"]
"""What is wanted: the least recomputation within a budget, or the fastest step whatever it needs."""

MEMORY: Final = "memory"
TIME: Final = "time"


@dataclass(frozen=True, slots=True)
class Request:
    """What a plan was asked for, beside the budget and the device; arguments of ``api.plan``."""

    strategy: Strategy
    verify: bool
    argnums: tuple[int, ...]
    has_aux: bool
    static_argnums: tuple[int, ...]
    existing: str
    constraints: Constraints = field(default_factory=Constraints)
    settings: Settings = NO_SETTINGS
    goal: Goal = MEMORY

    def __post_init__(self) -> None:
        flag("verify", self.verify)


def may_stay_written(program: Program, request: Request) -> bool:
    """Whether the function as written is a candidate: a search without constraints, of one that has own remat."""
    free = AS_WRITTEN in request.strategy.sources and request.constraints.is_free
    return free and program.has_own_remat


def with_last_block(graph: Graph, cuts: Cuts, schedule: Schedule) -> Schedule | None:
    """A schedule whose last block, which stays as it is, is a segment too, up to where the loss begins.

    So it comes out where a person wraps every block. The loss begins where the fewest bytes cross, behind the last
    product. None where the last block is none that stays as it is, or has no product.
    """
    *before, tail = schedule
    products = [op.index for op in graph.ops[tail.start : tail.end] if is_product(op)]
    positions = tuple(range(products[-1] + 1, tail.end)) if products else ()
    if tail.checkpointed or tail.choices or not positions:
        return None
    crossing = frontiers(graph, positions, cuts.free, last_uses(graph))
    sizes = [sum(graph.values[v].size_bytes for v in live) for live in crossing]
    # a frontier of nothing but scalars is behind the loss
    large = [(size, place) for size, place in zip(sizes, positions, strict=True) if size > _SCALAR_SHARE * max(sizes)]
    if not large:
        return None
    border = min(large)[1]
    return (*before, save_segment(graph, cuts, tail.start, border), as_is(border, tail.end))


def in_structures(schedule: Schedule) -> Schedule:
    """A schedule with what is beside its structures left as it is, as where a person wraps no more than the body of a
    scan; the same where it has none."""
    if not any(segment.choices for segment in schedule):
        return schedule
    return joined(tuple([s if s.choices else as_is(s.start, s.end) for s in schedule]))


class Candidates:
    """The schedules of one program, whatever they are asked for."""

    def __init__(self, rules: Rules, progress: Progress):
        self.rules, self.progress = rules, progress
        self._inside: dict[Constraints, Inside] = {}
        self._planners: dict[Constraints, Planner] = {}
        self._sliced: dict[Constraints, SlicedProgram] = {}
        self._tasks: dict[Request, Task] = {}
        self._named: dict[Request, Found | None] = {}

    def inside(self, constraints: Constraints) -> Inside:
        """Where the equations of the program are that a search is about, under a user's constraints."""
        if constraints not in self._inside:
            self._inside[constraints] = find_inside(self.rules, resolve(self.rules.graph, constraints))
        return self._inside[constraints]

    def planner(self, constraints: Constraints) -> Planner:
        """The chain of these equations, solved under a user's constraints."""
        if constraints not in self._planners:
            self.progress.say("solving")
            inside = self.inside(constraints)
            self._planners[constraints] = Planner(inside.rules.graph, inside.rules, inside.limits)
        return self._planners[constraints]

    def sliced(self, request: Request) -> SlicedProgram | None:
        """The whole program in slices; None of a long one."""
        if len(self.rules.graph.ops) > _LONG_OPS:
            return None
        if request.constraints not in self._sliced:
            self._sliced[request.constraints] = SlicedProgram(self.inside(request.constraints))
        return self._sliced[request.constraints]

    def task(self, request: Request) -> Task:
        """What the strategy of a request is given.

        Raises:
            ValueError: constraints that the program does not allow.
        """
        if request not in self._tasks:
            rules, searches = self.rules, bool(request.strategy.sources)
            constraints = request.constraints if searches else request.constraints.by_name()
            self._tasks[request] = make_task(rules.graph, rules.hardware, constraints, request.settings, rules.spread)
        return self._tasks[request]

    def keeps_collectives(self, request: Request) -> bool:
        """Whether collectives are kept from running again though nobody spoke of them."""
        silent = request.constraints.never_recompute is None and bool(request.strategy.sources)
        return silent and bool(collectives(self.rules.graph))

    def may_stay_plain(self, request: Request) -> bool:
        """Whether a budget above the plain peak means that nothing is recomputed."""
        graph, limits = self.rules.graph, self.task(request).cuts.limits
        return request.strategy.budget != CHECKED and honours(graph, limits, (as_is(0, len(graph.ops)),))

    def named(self, request: Request) -> Found | None:
        """The schedules of the strategy that was asked for; None where it is the planner's own search.

        Raises:
            ValueError: none of them respects the user's constraints.
        """
        if request not in self._named:
            self.progress.say(f"making schedules by strategy {request.strategy.name}")
            found = find_schedules(request.strategy, self.task(request))
            if found is not None and not found.schedules:
                raise ValueError(
                    f"strategy={request.strategy.name!r} has no schedule that satisfies must_save, must_recompute, "
                    "never_recompute and never_split. Use strategy='auto', or remove a name from them."
                )
            self._named[request] = found
        return self._named[request]

    def uniform(self, request: Request) -> tuple[Schedule, ...]:
        """Schedules by one rule for all blocks, to be judged beside the planner's."""
        if not self._takes_rules(request):
            return ()
        task = self._task_inside(request)
        graph, cuts = task.graph, task.cuts
        task = replace(task, cuts=without_loss(graph, cuts))
        # A segment that ends before a product, not behind it, is differentiated with less beside it: in a small program
        # that may be what the least peak needs.
        shorter = cut_before_products(graph, task.cuts) if is_small(graph) else None
        tasks = [task] if shorter is None else [task, replace(task, cuts=shorter)]
        known = [s for each in tasks for s in named_schedules(each, _BY_HAND)]
        known += [s for s in (with_last_block(graph, cuts, s) for s in known) if s]
        known += [in_structures(s) for s in known]
        return self._around(request, known)

    def by_names(self, request: Request, judged: Judged) -> tuple[Schedule, ...]:
        """Schedules that keep named values in loops and branches, to be judged beside the planner's.

        A mixture of experts in the bytes of its authors' policies takes 6 % less time as predicted than by the chain of
        blocks of a layer, which has few points between them.
        """
        if not self._takes_rules(request) or request.constraints.must_recompute:
            return ()
        inside, task = self.inside(request.constraints), self._task_inside(request)
        names = set(names_inside(task.graph)).difference(known_names(task.graph))
        known = schedules_by_names(task, sorted(names), lambda s: judged(inside.around(s)))
        return self._around(request, known)

    def _takes_rules(self, request: Request) -> bool:
        """Whether schedules by a rule are judged beside those of a search."""
        graph = self.inside(request.constraints).rules.graph
        return BY_RULE in request.strategy.sources and len(graph.ops) <= _LONG_OPS

    def _task_inside(self, request: Request) -> Task:
        """The task of a request where the equations are that a search is about."""
        rules, cuts = self.inside(request.constraints).rules, self.planner(request.constraints).cuts
        return replace(self.task(request), graph=rules.graph, cuts=cuts, spread=rules.spread)

    def _around(self, request: Request, known: list[Schedule]) -> tuple[Schedule, ...]:
        """Those schedules of the equations inside that are allowed, and what is made of them by moving what steps of
        loops keep, as schedules of the program."""
        inside = self.inside(request.constraints)
        graph, limits = inside.rules.graph, inside.limits
        if may_offload(limits, self.rules.hardware):
            known = [*known, *(made for s in known for made in in_loops(graph, limits, s))]
        return tuple(dict.fromkeys(inside.around(s) for s in known if honours(graph, limits, s)))

    def beside(self, request: Request, judged: Judged, identity: Hashable) -> tuple[Schedule, ...]:
        """Schedules that are judged whatever the budget is: uniform ones of a program with structures, between which
        there are ways that a chain of few blocks has not, and those of a local search.
        """
        uniform = self.uniform(request) if holds_structure(self.inside(request.constraints).rules.graph) else ()
        return *uniform, *self.by_names(request, judged), *self.improved(request, judged, identity)

    def low(self, request: Request) -> tuple[Schedule, ...]:
        """Schedules that may need least of all: by one rule for all blocks, and the first of each chain's curve.

        Which of them it is, no chain knows.
        """
        curves = self.planner(request.constraints).curves
        around = self.inside(request.constraints).around
        first = (around(joined(curve[point])) for curve in curves for point in FURTHER if point < len(curve))
        return tuple(dict.fromkeys([*self.uniform(request), *first]))

    def whole(self, request: Request) -> Schedule | None:
        """One segment around all of the program, which keeps nothing, where constraints allow that."""
        return next(iter(named_schedules(self.task(request), ["nothing"])), None)

    def chains(self, request: Request) -> list[SearchedChain]:
        """The planner's chains, which nobody taught yet; where something may go to the host, those with nothing there
        first: no plan is to be slower for what it may do."""
        allowed = dict.fromkeys([request.constraints.on_device(), request.constraints])
        return [chain_of(self.planner(constraints), self.inside(constraints)) for constraints in allowed]

    def allows(self, request: Request, schedule: Schedule) -> bool:
        """Whether a schedule respects the constraints of a request."""
        return honours(self.rules.graph, self.task(request).cuts.limits, schedule)

    def improved(self, request: Request, judged: Judged, identity: Hashable) -> tuple[Schedule, ...]:
        """Of a small program, what a local search makes of all the others: of these none beats another.

        They are for all budgets, so what is found for one does not depend on what was asked before. It is remembered in
        this process.

        Args:
            request: with a strategy that searches.
            judged: says what a schedule costs.
            identity: equal for programs with the same schedules and the same costs of them.
        """
        inside = self.inside(request.constraints)
        graph = inside.rules.graph
        if MOVES not in request.strategy.sources or not is_small(graph) or not can_move(graph):
            return ()

        def search() -> tuple[Schedule, ...]:
            self.progress.say("improving schedules")
            moves = Moves(graph, self.planner(request.constraints).cuts)
            plain = [(as_is(0, len(graph.ops)),)] if self.may_stay_plain(request) else []
            curves = self.planner(request.constraints).curves
            along = [schedule for curve in curves for schedule in curve.spread(CURVE_POINTS)]
            seeds = [*plain, *along, *map(inside.within, self.uniform(request))]
            honoured = [s for s in map(joined, seeds) if honours(graph, moves.cuts.limits, s)]
            equations = sum(1 + len(vjp.eqns) if vjp else 1 for vjp in (graph.needs[op.kind].vjp for op in graph.ops))
            most = min(_MOST_JUDGED, _MOST_EQUATIONS // equations)
            found = improved(honoured, moves.neighbours, lambda s: judged(inside.around(s)), most)
            return tuple(map(inside.around, found))

        return remembered(identity, ("improved", request.constraints), search)
