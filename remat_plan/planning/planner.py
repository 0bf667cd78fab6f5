"""From a graph to its schedules, one for every amount of memory.

In: ``Graph``, ``Hardware``. Out: ``Planner``: the solved chain, its schedules as trees of ``Segment``.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat_plan.cost.hardware import Hardware
from remat_plan.graph.records import Graph
from remat_plan.planning.cuts import Cuts, find_cuts
from remat_plan.planning.options import Options, find_options
from remat_plan.rewrite.segments import Segment
from remat_plan.solve.chain import ChainTable, Leaf, Nest, solve


class Planner:
    """All schedules of one program on one hardware.

    Attributes:
        graph, cuts, options, table: the stages' results.
        points: slots of the table at which the schedule changes, from least memory to most.
    """

    def __init__(self, graph: Graph, hardware: Hardware):
        self.graph, self.hardware = graph, hardware
        self.cuts: Cuts = find_cuts(graph)
        self.options: Options = find_options(graph, self.cuts, hardware)
        self.table: ChainTable = solve(self.options.problem)
        self.points: tuple[int, ...] = tuple(self.table.breakpoints())

    def limit_bytes(self, point: int) -> int:
        """The memory, beside arguments and outputs, that the schedule of a point was made for."""
        return self.points[point] * self.table.quantum_bytes

    def seconds(self, point: int) -> float:
        """What the dynamic program believes is recomputed at a point, in seconds (for choosing only)."""
        return float(self.table.costs[self.points[point]])

    def schedule(self, point: int) -> tuple[Segment, ...]:
        """The segments of a point."""
        return self._segments(self.table.schedule(self.points[point]))

    def _segments(self, nodes: Sequence[Leaf | Nest]) -> tuple[Segment, ...]:
        result = []
        for node in nodes:
            start, end = self.cuts.positions[node.start], self.cuts.positions[node.end]
            if isinstance(node, Nest):
                result.append(Segment(start, end, "nest", (), self._segments(node.children)))
                continue
            option = self.options.profiles[node.start, node.end].options[node.option]
            run = self.options.runs[node.start, node.end]
            saved = tuple(run.values[i] for i in sorted(option.saved))
            result.append(Segment(start, end, "plain" if option.plain else "save", () if option.plain else saved))
        return tuple(result)
