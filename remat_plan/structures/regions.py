"""The region inside a structure, as a graph of its own, and what the ways to run it cost.

In: an equation, one of its jaxprs, which of its inputs carry a tangent, which outputs are given a cotangent.
Out: ``Graph``, made once for equal equations. In: its schedules, the passes of a run by each. Out: ``Way``s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from remat_plan.cost.passes import Passes
from remat_plan.cost.price import price
from remat_plan.graph.build import build
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Schedule
from remat_plan.solve.pareto import undominated


def kept(graph: Graph, op: Op, make: Callable[[], Any]) -> Any:
    """Return what ``make`` makes of an equation; equal equations of a graph share one."""
    if op.kind not in graph.bodies:
        graph.bodies[op.kind] = make() if graph.in_place is None else graph.in_place(make)
    return graph.bodies[op.kind]


def region_of(graph: Graph, jaxpr: Any, moving: Sequence[bool], wanted: Sequence[bool]) -> Graph:
    """Return a jaxpr of an equation as a region that treats the user's checkpoints as the graph around it does.

    ``moving``: which inputs carry a tangent; ``wanted``: which outputs are given a cotangent.
    """
    region = build(jaxpr, tuple(moving), graph.keep_remat, wanted=wanted)
    return replace(region, is_region=True, in_place=graph.in_place)


def reached(region: Graph, arriving: Sequence[bool]) -> tuple[bool, ...]:
    """Tell which outputs of a region are given a cotangent that some value inside wants."""
    return tuple(v >= 0 and region.active[v] and a for v, a in zip(region.outputs, arriving, strict=True))


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a region: what one run keeps (a loop's carry included where it is kept), what its backward pass
    needs meanwhile, the price of both passes (see ``cost.price``), what is kept on the host."""

    schedule: Schedule
    kept_bytes: int
    inside_bytes: int
    price: float
    host_bytes: int = 0


def ways_of(schedules: Sequence[Schedule], passes: Sequence[Passes]) -> list[Way]:
    """Return what a run costs by each schedule, from its passes; the first schedule runs the region as it is."""
    seconds = [p.forward.region.seconds + p.backward.region.seconds for p in passes]
    flops = [p.forward.flops + p.backward.flops for p in passes]
    made = zip(schedules, passes, seconds, flops, strict=True)
    return [
        Way(
            schedule,
            kept_bytes=sum(p.residual_bytes),
            inside_bytes=p.backward.region.transient_bytes,
            price=price(s, f, seconds[0], flops[0]),
            host_bytes=p.forward.region.host_bytes,
        )
        for schedule, p, s, f in made
    ]


def worth_having(ways: Sequence[Way]) -> list[Way]:
    """Keep the ways that no other one beats in bytes (kept here and on the host, needed) and price, from fewest kept
    bytes to most."""
    return undominated(ways, lambda w: (w.kept_bytes, w.price, w.inside_bytes, w.host_bytes))
