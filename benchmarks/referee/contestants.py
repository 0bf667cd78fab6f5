"""Who plays: the planner and the rules that it is set against, each with all the orders that it can offer.

In: a small JAX function. Out: ``Contest``: its ``Game``, and ``Score``s by contestant.

    planner    what ``strategy="auto"`` chooses from: its curves, the uniform schedules beside them, and what its local
               search makes of these
    rotor      the optimal persistent schedule of a heterogeneous chain (Beaumont et al. 2019): the planner's dynamic
               program, on its cuts, with two ways to run a block: keep everything, or the input alone
    chen       Chen et al. 2016: sqrt(n) (Algorithm 1) and budgeted (Algorithm 3), on the same cuts
    min-cut    PyTorch's compiler with a memory budget: the best set of saved values by bytes, as a 0/1 program, with
               what is missing run again where it is read

Each is taken at its best: of all that it offers, the order with the fewest seconds that fits by ``play`` counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from benchmarks.referee.model import HARDWARE, Game, make_game, make_rules
from benchmarks.referee.orders import lazy_order, order_of
from benchmarks.referee.play import Order, Score, plain_order, play
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import Schedule
from remat_plan.graph.ways import Keep, Plain, Way
from remat_plan.planning.certificate import least_overhead
from remat_plan.planning.chains import make_problem
from remat_plan.planning.constraints import NO_CONSTRAINTS
from remat_plan.planning.cuts import find_cuts
from remat_plan.planning.options import Options
from remat_plan.planning.planner import Curve, Planner
from remat_plan.planning.strategies.find import find_schedules, make_task
from remat_plan.planning.strategies.records import NO_SETTINGS
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search.candidates import Candidates, Request
from remat_plan.small.progress import Progress
from remat_plan.solve import milp
from remat_plan.solve.chain import solve
from remat_plan.solve.min_cut import SegmentProblem
from remat_plan.traced.programs import Program, trace_program

_POINTS = 40
"""So many sizes of saved values are tried for the min-cut."""


class Contest:
    """One function, and what every contestant offers for it.

    Attributes:
        program, game: the function, traced, and in numbers.
    """

    def __init__(self, fn: Any, args: tuple[Any, ...]):
        self.program: Program = trace_program(fn, args, {}, 0, False, (), "replan")
        self.rules = make_rules(self.program.graph)
        self.game: Game = make_game(self.rules)

    @cached_property
    def plain(self) -> Score:
        """Nothing runs again."""
        return play(self.game, plain_order(self.game))

    @cached_property
    def offers(self) -> dict[str, list[Score]]:
        """Per contestant the scores of all that it offers."""
        found = {
            name: [play(self.game, order_of(self.game, s)) for s in dict.fromkeys(self.schedules(name))]
            for name in ("planner", "rotor", "chen")
        }
        found["min-cut"] = [play(self.game, order) for order in self._min_cut()]
        return found

    def best(self, name: str, budget_bytes: int) -> Score | None:
        """The best of a contestant within a budget; None if it has nothing that fits."""
        fitting = [s for s in (self.plain, *self.offers[name]) if s.peak_bytes <= budget_bytes]
        return min(fitting, key=lambda s: s.again_seconds, default=None)

    def bound_seconds(self, budget_bytes: int) -> float:
        """The lower bound that a plan within a budget prints, in seconds."""
        timeline = StepProgram(self.rules).loss_timeline(self.program.plain)
        owned = timeline.argument_bytes + timeline.output_bytes
        cuts = find_cuts(self.program.graph)
        return least_overhead(self.rules, cuts, timeline, budget_bytes + owned) * timeline.seconds

    def schedules(self, name: str) -> Iterable[Schedule]:
        """The schedules that the planner, rotor or Chen offer."""
        return {"planner": self._planned, "rotor": self._rotor, "chen": self._chen}[name]()

    def _planned(self) -> list[Schedule]:
        candidates = Candidates(self.rules, Progress("referee", False))
        request = Request(lookup("auto"), False, (0,), False, (), "replan")
        curves = candidates.planner(NO_CONSTRAINTS).curves
        better = candidates.improved(request, self.judged, identity=object())  # told other rules: nothing is shared
        beside = [*candidates.uniform(request), *better]
        return [*(schedule for curve in curves for schedule in curve), *beside]

    def judged(self, schedule: Schedule) -> tuple[int, float]:
        """Bytes and seconds of a schedule by the package's evaluator, told the rules of the game."""
        timeline = StepProgram(self.rules).loss_timeline(schedule)
        return timeline.peak_bytes, timeline.seconds

    def _rotor(self) -> list[Schedule]:
        planner = Planner(self.program.graph, self.rules)
        cuts, options = planner.cuts, planner.options
        single = {pair: run for pair, run in options.runs.items() if pair[1] == pair[0] + 1}
        profiles = {}
        for pair, run in single.items():
            leaves = {i for i, v in enumerate(run.values) if v in run.leaves}
            profile = options.profiles[pair]
            ways = tuple(o for o in profile.options if _keeps_only(o.way, leaves))
            profiles[pair] = dataclasses.replace(profile, options=ways or profile.options)
        both = Options(single, profiles)
        problem = make_problem(self.program.graph, cuts, both)
        curve = Curve(self.program.graph, cuts, both, solve(problem))
        return list(curve)

    def _chen(self) -> Iterable[Schedule]:
        task = make_task(self.program.graph, HARDWARE, NO_CONSTRAINTS, NO_SETTINGS)
        for name in ("memory", "budgeted"):
            found = find_schedules(lookup(name), task)
            yield from found.schedules if found else ()

    def _min_cut(self) -> Iterable[Order]:
        problem = saved_set_problem(self.game)
        for i in range(_POINTS + 1):
            selection = milp.exact(problem, self.plain.peak_bytes * i // _POINTS)
            yield lazy_order(self.game, selection.saved)


def _keeps_only(way: Way, values: set[int]) -> bool:
    """Whether a run stays plain, or is a segment that keeps nothing but some values; Rotor knows no other ways."""
    return isinstance(way, Plain) or (isinstance(way, Keep) and {v for v, _ in way.actions} <= values)


def saved_set_problem(game: Game) -> SegmentProblem:
    """Return the choice of what to save between the passes, nothing else, as the package's integer program."""
    count = len(game.reads)
    return SegmentProblem(
        op_inputs=game.reads,
        op_outputs=tuple((i,) for i in range(count)),
        op_seconds=game.seconds,
        value_bytes=game.value_bytes,
        saveable=(True,) * count,
        needed=frozenset(v for stage in game.stages for v in stage.reads),
    )
