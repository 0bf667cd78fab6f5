"""A traced program with everything that is known before planning.

In: a function and its arguments. Out: ``Program``: call, graph, fingerprint, shapes of the outputs; and running it
under a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from remat_plan import collector
from remat_plan.graph.build import build
from remat_plan.graph.call import Call, check_loss, make_call
from remat_plan.graph.fingerprint import Fingerprint, fingerprint
from remat_plan.graph.records import Graph
from remat_plan.planning.cuts import free_ops, last_uses
from remat_plan.rewrite.emit import Emitter
from remat_plan.rewrite.segments import Segment

EXISTING = ("replan", "keep")


@dataclass(frozen=True, slots=True)
class Program:
    """One function traced on one set of arguments."""

    call: Call
    graph: Graph
    fingerprint: Fingerprint
    output_tree: Any

    @property
    def plain(self) -> tuple[Segment, ...]:
        """The schedule that recomputes nothing."""
        return (Segment(0, len(self.graph.ops), "plain"),)


def check_existing(existing: str) -> None:
    """Raise ``ValueError`` if ``existing`` is no way to treat the user's own ``jax.checkpoint`` regions."""
    if existing not in EXISTING:
        raise ValueError(f"existing={existing!r}: say one of {', '.join(map(repr, EXISTING))}.")


@collector.paused()
def trace_program(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    static_argnums: int | Sequence[int],
    existing: str,
) -> Program:
    """Trace a loss function and build its graph.

    Raises:
        TypeError, ValueError: bad arguments or outputs (see ``graph.call``).
    """
    check_existing(existing)
    call = make_call(fn, args, kwargs, argnums, static_argnums)
    closed, shapes = call.trace()
    check_loss(shapes, has_aux)
    graph = build(closed, call.differentiated, keep_remat=existing == "keep")
    return Program(call, graph, fingerprint(graph), jax.tree.structure(shapes))


def make_emitter(graph: Graph, schedule: Sequence[Segment]) -> Emitter:
    """Return a graph under a schedule, as a function of flat values."""
    return Emitter(graph, schedule, free_ops(graph), last_uses(graph))


def run_schedule(program: Program, schedule: Sequence[Segment]) -> Any:
    """Run a program on its own arguments under a schedule and return what the function returns."""
    return jax.tree.unflatten(program.output_tree, make_emitter(program.graph, schedule)(program.call.leaves))
