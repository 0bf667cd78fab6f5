"""From a graph to its schedules, for every amount of memory.

In: ``Graph``, ``Rules``. Out: ``Planner``: solved chains, each a ``Curve`` of schedules as trees of ``Segment``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

from remat_plan.cost.backend import model_for
from remat_plan.cost.hardware import Hardware
from remat_plan.graph.records import Graph
from remat_plan.planning.baselines import baseline_schedules
from remat_plan.planning.builder import Rules
from remat_plan.planning.chains import make_problems
from remat_plan.planning.cuts import Cuts, find_cuts
from remat_plan.planning.limits import NO_CONSTRAINTS, Constraints, resolve
from remat_plan.planning.options import Options, find_options
from remat_plan.rewrite.segments import Segment
from remat_plan.solve.chain import ChainTable, Leaf, Nest
from remat_plan.solve.long_chain import GroupedTable, solve_chain


class Curve:
    """The schedules of one solved chain.

    Attributes:
        limits: per point the bytes, beside arguments and outputs, that its schedule was made for; increasing.
        seconds: per point what the dynamic program believes it costs beyond the plain step (for choosing only).
    """

    def __init__(self, cuts: Cuts, options: Options, table: ChainTable | GroupedTable):
        self.cuts, self.options, self.table = cuts, options, table
        self.points = tuple(table.breakpoints())
        self.limits = tuple(p * table.quantum_bytes for p in self.points)
        self.seconds = tuple(float(table.costs[p]) for p in self.points)
        self._schedules: dict[int, tuple[Segment, ...]] = {}

    def promised_seconds(self, limit_bytes: int) -> float:
        """What the dynamic program believes that its schedule for so many bytes costs; ``inf`` if it has none."""
        point = bisect_right(self.limits, limit_bytes) - 1
        return self.seconds[point] if point >= 0 else inf

    def schedule(self, point: int) -> tuple[Segment, ...]:
        """The segments of a point."""
        if point not in self._schedules:
            self._schedules[point] = self._segments(self.table.schedule(self.points[point]))
        return self._schedules[point]

    def _segments(self, nodes: Sequence[Leaf | Nest]) -> tuple[Segment, ...]:
        result = []
        for node in nodes:
            start, end = self.cuts.positions[node.start], self.cuts.positions[node.end]
            if isinstance(node, Nest):
                result.append(Segment(start, end, "nest", (), self._segments(node.children)))
                continue
            option = self.options.profiles[node.start, node.end].options[node.option]
            run = self.options.runs[node.start, node.end]
            if option.loop is not None:
                result.append(Segment(start, end, "loop", loop=option.loop))
                continue
            saved = tuple(run.values[i] for i in sorted(option.saved))
            result.append(Segment(start, end, "plain" if option.plain else "save", saved))
        return tuple(result)


def isolated_primitives(hardware: Hardware) -> frozenset[str]:
    """Return the primitives whose blocks should stay outside segments.

    Outside a segment a max-pool keeps the indices of its maxima; inside, full-size index arrays live long.
    """
    return frozenset({"reduce_window_max"}) if model_for(hardware).index_pooling else frozenset()


class Planner:
    """All schedules of one program on one hardware.

    Attributes:
        cuts, options: the stages' results.
        curves: one or two families of schedules.

    Raises:
        ValueError: constraints that the program does not allow (see ``limits.resolve``).
    """

    def __init__(self, graph: Graph, rules: Rules, constraints: Constraints = NO_CONSTRAINTS):
        self.graph, self.rules = graph, rules
        self.isolate = isolated_primitives(rules.hardware)
        self.cuts = find_cuts(graph, self.isolate, resolve(graph, constraints))
        self.options = find_options(graph, self.cuts, rules)
        problems = make_problems(graph, self.cuts, self.options)
        self.curves = tuple(Curve(self.cuts, self.options, solve_chain(problem)) for problem in problems)

    def baselines(self) -> tuple[tuple[Segment, ...], ...]:
        """Uniform schedules, to be judged beside the curves."""
        return baseline_schedules(self.graph, self.cuts, self.isolate)
