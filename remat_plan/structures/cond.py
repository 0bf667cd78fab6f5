"""``lax.cond`` and ``lax.switch``: one of several regions, chosen while the program runs.

JAX keeps the residuals of all branches, whichever runs (zeros for the others), so a branch that keeps much costs
memory even where it hardly ever runs. Each branch gets a schedule of its own; which ones go together is decided by
one price for a byte, of those kept or of those and what is needed inside.

Limits: all branches are taken to be equally likely to be the slowest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from remat_plan.cost.builder import Rules
from remat_plan.cost.passes import Numbers, Pull, Signature, Stack, Unit
from remat_plan.cost.program import Lowering
from remat_plan.cost.units import BranchUnit
from remat_plan.cost.whole_step import RegionUnit
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part
from remat_plan.graph.structure import RegionSolver
from remat_plan.rewrite.emit import RegionRunner
from remat_plan.structures.regions import Way, kept, reached, region_of, ways_of, worth_having

_PRICES = 12
"""At most so many prices of a byte are tried; a choice for each is one schedule to compare."""


class Cond:
    """One of several regions; methods as of ``graph.structure.Structure``."""

    name = "cond"
    primitives: tuple[str, ...] = ("cond",)

    def is_open(self, op: Op) -> bool:
        return True

    def regions(self, graph: Graph, op: Op) -> tuple[Graph, ...]:
        def make() -> tuple[Graph, ...]:
            given = graph.needs[op.kind].given
            return tuple(region_of(graph, branch, op.active[1:], given) for branch in op.eqn.params["branches"])

        return kept(graph, op, make)

    def run_counts(self, op: Op) -> Sequence[float]:
        return (1.0,) * len(op.eqn.params["branches"])

    def loop(self, graph: Graph, op: Op) -> None:
        """A branch is no loop."""

    def describe(self, graph: Graph, op: Op, choice: Choice) -> str:
        return f"cond of {len(choice.parts)} branches"

    def unit(self, rules: Rules, op: Op, choice: Choice) -> Unit:
        regions = self.regions(rules.graph, op)
        arriving = rules.arriving(op)
        units = [
            RegionUnit(rules.inside(region), part.schedule, reached(region, arriving), stored=True)
            for region, part in zip(regions, choice.parts, strict=True)
        ]
        return Chosen(BranchUnit(units, rules.bodies_facts, rules.hardware, op.eqn), Stack(op.eqn.invars[0].aval))

    def choices(self, rules: Rules, op: Op, solve: RegionSolver) -> Iterator[Choice]:
        """For each price of a byte, the cheapest ways to run the branches."""
        table = [self.ways(rules, op, region, solve) for region in self.regions(rules.graph, op)]
        found: dict[Choice, None] = {}
        # What is kept counts from the forward pass on; what is needed too where the peak is in the branch itself: its
        # layers may be segments of their own.
        for needed in (False, True):
            sizes = [[(w, w.kept_bytes + needed * w.inside_bytes) for w in ways] for ways in table]
            for price in prices([[(size, way.price) for way, size in ways] for ways in sizes]):
                best = [min(ways, key=lambda w: (w[0].price + price * w[1], w[1]))[0] for ways in sizes]
                found[Choice(tuple(Part(1, way.schedule) for way in best))] = None
        return iter(found)

    def ways(self, rules: Rules, op: Op, region: Graph, solve: RegionSolver) -> list[Way]:
        """The ways to run one branch."""
        inside, moving = rules.inside(region), reached(region, rules.arriving(op))
        schedules = solve(inside)
        units = [RegionUnit(inside, schedule, moving, stored=True) for schedule in schedules]
        alone = [BranchUnit([unit], rules.bodies_facts, rules.hardware, op.eqn) for unit in units]
        return worth_having(ways_of(schedules, [passes for unit in alone for passes in unit.branches]))

    def emit(self, graph: Graph, op: Op, choice: Choice, run: RegionRunner, late: bool) -> Any:
        regions = self.regions(graph, op)
        runs = [run(region, part.schedule) for region, part in zip(regions, choice.parts, strict=True)]
        branches = [lambda *operands, run=run: run(operands) for run in runs]
        return lambda args: jax.lax.switch(args[0], branches, *args[1:])


class Chosen:
    """A branch with its index, the first input, which has no gradient: a ``cost.passes.Unit``."""

    def __init__(self, branches: BranchUnit, index: Stack):
        self.branches = branches
        inner = branches.signature
        self.signature = Signature((index, *inner.inputs), inner.outputs, (False, *inner.moving), inner.arriving)

    def run(self, state: Lowering, inputs: Sequence[int]) -> Numbers:
        return self.branches.run(state, inputs[1:])

    def linearize(self, state: Lowering, inputs: Sequence[int]) -> tuple[Numbers, Pull]:
        outputs, pull = self.branches.linearize(state, inputs[1:])
        return outputs, lambda cotangents: [None, *pull(cotangents)]


def prices(table: Sequence[Sequence[tuple[int, float]]]) -> list[float]:
    """Return prices of a byte, from zero up, at which some branch changes its choice; a spread of at most ``_PRICES``.

    >>> prices([[(0, 3.0), (10, 1.0)]])
    [0.0, 0.1, 0.4]
    """
    slopes = sorted(
        {(a[1] - b[1]) / (b[0] - a[0]) for rows in table for a in rows for b in rows if a[0] < b[0] and a[1] > b[1]}
    )
    around = [0.0, *(s * f for s in slopes for f in (0.5, 2.0))]
    if len(around) <= _PRICES:
        return around
    return [around[round(i * (len(around) - 1) / (_PRICES - 1))] for i in range(_PRICES)]
