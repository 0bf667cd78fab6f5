"""Regions that are run once and must stay calls: ``jit`` with shardings or layouts of its own, ``shard_map``.

A ``jit`` without them is inlined when the graph is built, so its equations stand beside the others. The equations of a
``shard_map``, run once on every device on its part of the arrays, speak of the axes of its mesh, so its region, and
those inside it, are made while a map over them is being traced.

Limits: bytes of the values inside are those of one device; those of values outside are, where their types say how they
are sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.cost.passes import Unit
from remat_plan.cost.whole_step import RegionUnit
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part
from remat_plan.graph.structure import RegionSolver
from remat_plan.rewrite.emit import RegionRunner
from remat_plan.structures.regions import kept, reached, region_of


class Call:
    """``jit`` with shardings or layouts; methods as of ``graph.structure.Structure``."""

    name = "call"
    primitives: tuple[str, ...] = ("jit", "pjit")

    def is_open(self, op: Op) -> bool:
        return True

    def regions(self, graph: Graph, op: Op) -> tuple[Graph, ...]:
        given = graph.needs[op.kind].given
        return kept(graph, op, lambda: (region_of(graph, _compat.call_jaxpr(op.eqn), op.active, given),))

    def run_counts(self, op: Op) -> Sequence[float]:
        return (1.0,)

    def loop(self, graph: Graph, op: Op) -> None:
        """A call is no loop."""

    def describe(self, graph: Graph, op: Op, choice: Choice) -> str:
        return f"{self.name} {op.eqn.params.get('name', '')}".strip()

    def unit(self, rules: Rules, op: Op, choice: Choice) -> Unit:
        (region,) = self.regions(rules.graph, op)
        arriving = reached(region, rules.arriving(op))
        return RegionUnit(rules.inside(region, is_body=False), choice.parts[0].schedule, arriving, stored=False)

    def choices(self, rules: Rules, op: Op, solve: RegionSolver) -> Iterator[Choice]:
        (region,) = self.regions(rules.graph, op)
        return (Choice((Part(1, schedule),)) for schedule in solve(rules.inside(region, is_body=False)))

    def emit(self, graph: Graph, op: Op, choice: Choice, run: RegionRunner, late: bool) -> Any:
        (region,) = self.regions(graph, op)
        called = self.wrap(op.eqn, run(region, choice.parts[0].schedule))
        return lambda args: called(*args)

    def wrap(self, eqn: Any, body: Callable[[Sequence[Any]], list[Any]]) -> Callable[..., list[Any]]:
        """Call a body as an equation calls its own."""
        return jax.jit(lambda *args: body(args), **_compat.jit_arguments(eqn))


class ShardMap(Call):
    """``shard_map``."""

    name = "shard_map"
    primitives: tuple[str, ...] = ("shard_map",)

    def regions(self, graph: Graph, op: Op) -> tuple[Graph, ...]:
        return kept(graph, op, lambda: (self._traced(graph, op),))

    def _traced(self, graph: Graph, op: Op) -> Graph:
        inner, mapped, around = _compat.call_jaxpr(op.eqn), _compat.map_of(op.eqn), graph.in_place
        in_place = mapped if around is None else lambda make: around(lambda: mapped(make))
        region = mapped(lambda: region_of(graph, inner, op.active, graph.needs[op.kind].given))
        return replace(region, in_place=in_place)

    def wrap(self, eqn: Any, body: Callable[[Sequence[Any]], list[Any]]) -> Callable[..., list[Any]]:
        """Map a body as an equation maps its own."""
        return jax.shard_map(lambda *args: body(args), **_compat.shard_map_arguments(eqn))
