"""``shard_map``: a region run once on every device, on its part of the arrays.

Its equations speak of the axes of its mesh, so its region, and those inside it, are made while a map over them is being
traced.

Limits: bytes of the values inside are those of one device; those of values outside are, where their types say how they
are sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.records import Graph, Op
from remat_plan.structures.call import Call
from remat_plan.structures.regions import kept, region_of


class ShardMap(Call):
    """See the module docstring."""

    name = "shard_map"
    primitives: tuple[str, ...] = ("shard_map",)

    def regions(self, graph: Graph, op: Op) -> tuple[Graph, ...]:
        """What runs on one device."""
        return kept(graph, op, lambda: (self._traced(graph, op),))

    def _traced(self, graph: Graph, op: Op) -> Graph:
        inner = _compat.call_jaxpr(op.eqn)

        def mapped(make: Callable[[], Any]) -> Any:
            made: list[Any] = []

            def body(args: Sequence[Any]) -> list[Any]:
                made.append(make())
                return _compat.evaluate(*_compat.open_jaxpr(inner), args)

            jax.make_jaxpr(self.wrap(op.eqn, body))(*[_compat.struct(a.aval) for a in op.eqn.invars])
            return made[0]

        around = graph.in_place
        in_place = mapped if around is None else lambda make: around(lambda: mapped(make))
        region = mapped(lambda: region_of(graph, inner, op.active, graph.needs[op.kind].given))
        return replace(region, in_place=in_place)

    def wrap(self, eqn: Any, body: Callable[[Sequence[Any]], list[Any]]) -> Callable[..., list[Any]]:
        """Map a body as an equation maps its own."""
        return jax.shard_map(lambda *args: body(args), **_compat.shard_map_arguments(eqn))
