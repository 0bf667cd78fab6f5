"""The lower bound that a plan is compared with.

In: ``Graph``, ``Cuts``, ``Hardware``, bytes that may be saved. Out: seconds no schedule can go below.

Only dear equations (matrix products, convolutions, sorts, loops) are charged: element-wise work may cost nothing
where the compiler fuses it, so charging it would not be a valid bound.
"""

from __future__ import annotations

import dataclasses

from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import Timeline
from remat_plan.cost.rules import Kind, kind_of
from remat_plan.graph.records import Graph
from remat_plan.planning.cuts import Cuts
from remat_plan.planning.limits import NO_LIMITS
from remat_plan.planning.runs import make_run, op_seconds, segment_problem
from remat_plan.solve.bounds import recompute_bound
from remat_plan.solve.min_cut import SegmentProblem


def certificate_problem(graph: Graph, cuts: Cuts, seconds: list[float]) -> SegmentProblem:
    """Return the whole program as one minimum-cut problem in which only dear equations cost.

    The user's constraints are left out: a bound without them holds with them too.
    """
    run = make_run(graph, dataclasses.replace(cuts, limits=NO_LIMITS), 0, len(cuts.positions) - 1)
    dear = [
        s if kind_of(op.eqn) in (Kind.OPAQUE, Kind.REGION) else 0.0 for op, s in zip(graph.ops, seconds, strict=True)
    ]
    return segment_problem(graph, run, dear)


def lower_bound_seconds(problem: SegmentProblem, save_bytes: float) -> float:
    """Return the least seconds that must be recomputed when ``save_bytes`` may be kept for the backward pass."""
    return recompute_bound(problem, max(save_bytes, 0.0))


def least_overhead(graph: Graph, cuts: Cuts, hardware: Hardware, plain: Timeline, budget_bytes: int) -> float:
    """Return the overhead that no schedule within a budget can go below.

    Args:
        graph, cuts, hardware: the program.
        plain: its timeline without recomputation.
        budget_bytes: bytes on the device, arguments and results among them.
    """
    if plain.seconds <= 0 or plain.peak_bytes <= budget_bytes:
        return 0.0
    problem = certificate_problem(graph, cuts, op_seconds(graph, hardware))
    # Gradients that are not written yet lend their memory, so only the arguments are surely there.
    return lower_bound_seconds(problem, budget_bytes - plain.argument_bytes) / plain.seconds
