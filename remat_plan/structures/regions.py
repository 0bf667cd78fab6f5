"""The region inside a structure, as a graph of its own.

In: an equation, one of its jaxprs, which of its inputs carry a tangent, which outputs are given a cotangent.
Out: ``Graph``, made once for equal equations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from remat_plan.graph.build import build
from remat_plan.graph.records import Graph, Op


def kept(graph: Graph, op: Op, make: Callable[[], Any]) -> Any:
    """Return what ``make`` makes of an equation; equal equations of a graph share one."""
    if op.kind not in graph.bodies:
        graph.bodies[op.kind] = make() if graph.in_place is None else graph.in_place(make)
    return graph.bodies[op.kind]


def region_of(graph: Graph, jaxpr: Any, moving: Sequence[bool], wanted: Sequence[bool]) -> Graph:
    """Return a jaxpr of an equation as a region that treats the user's checkpoints as the graph around it does.

    Args:
        graph, jaxpr: the graph around it, and what is inside.
        moving: which inputs carry a tangent.
        wanted: which outputs are given a cotangent.
    """
    region = build(jaxpr, tuple(moving), graph.keep_remat, wanted=wanted)
    return replace(region, is_region=True, in_place=graph.in_place)


def reached(region: Graph, arriving: Sequence[bool]) -> tuple[bool, ...]:
    """Tell which outputs of a region are given a cotangent that some value inside wants."""
    return tuple(v >= 0 and region.active[v] and a for v, a in zip(region.outputs, arriving, strict=True))
