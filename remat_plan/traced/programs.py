"""A traced program with everything that is known before planning.

In: a function and its arguments. Out: ``Traced``: the call and its jaxpr; ``Program``: graph, fingerprint and shapes
of the outputs too; and running it under a schedule (``make_runner``), that of its author included.

Two kinds of functions are traced. A loss (``trace_loss``) returns one scalar, or ``(scalar, aux)``, and its gradient
step is ``value_and_grad``. Any other function (``trace_function``) is differentiated in every input of floating
point, and its gradient step is its VJP: cotangents of its outputs of floating point are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax

from remat_plan import _compat
from remat_plan.graph.build import build
from remat_plan.graph.call import Call, check_loss, make_call, make_function_call
from remat_plan.graph.calls import evaluate, holds_remat
from remat_plan.graph.fingerprint import Fingerprint, fingerprint
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import WRITTEN, Segment, as_is, is_written
from remat_plan.rewrite.emit import Emitter, as_array
from remat_plan.small import garbage
from remat_plan.small.wording import short
from remat_plan.structures import registry  # noqa: F401 (its import makes structures known)

Existing = Literal["replan", "keep"]
EXISTING = get_args(Existing)
"""What becomes of a function's own ``jax.checkpoint`` regions: planned anew, or kept."""

Runner = Callable[..., list[Any]]
"""Runs a program: flat arguments, and constants in place of those closed over, to flat outputs."""


@dataclass(frozen=True, slots=True)
class Traced:
    """One call, traced to the closed jaxpr of its flat form and the structure of what it returns.

    The gradient step of a loss is ``value_and_grad``; ``cotangents`` are what the VJP of other functions is given.
    """

    call: Call
    jaxpr: Any
    output_tree: Any
    is_loss: bool
    cotangents: tuple[jax.ShapeDtypeStruct, ...]

    @property
    def wanted(self) -> tuple[bool, ...]:
        """Which outputs a cotangent is given to: of a loss the first, what is beside it (``aux``) gets none."""
        outputs = _compat.open_jaxpr(self.jaxpr)[0].outvars
        return tuple([_compat.is_float(v.aval) and (i == 0 or not self.is_loss) for i, v in enumerate(outputs)])

    @property
    def has_gradient(self) -> bool:
        """Whether there is a backward pass at all."""
        return self.is_loss or (any(self.call.differentiated) and bool(self.cotangents))


@dataclass(frozen=True, slots=True)
class Program(Traced):
    """One call, traced, and its graph; see ``Traced``."""

    graph: Graph
    fingerprint: Fingerprint

    @property
    def plain(self) -> tuple[Segment, ...]:
        """The schedule that recomputes nothing."""
        return (as_is(0, len(self.graph.ops)),)

    @property
    def written(self) -> tuple[Segment, ...]:
        """The schedule that leaves the function as it was written."""
        return WRITTEN

    @property
    def has_own_remat(self) -> bool:
        """Whether ``jax.checkpoint`` regions of the user were dissolved, so that as written it is not the plain one."""
        return not self.graph.keep_remat and holds_remat(self.jaxpr)


def check_existing(existing: str) -> None:
    """Raise ``ValueError`` if ``existing`` is no way to treat the user's own ``jax.checkpoint`` regions."""
    if existing not in EXISTING:
        raise ValueError(f"existing={short(existing)}: choose one of {', '.join(map(repr, EXISTING))}.")


def trace_loss(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    static_argnums: int | Sequence[int],
) -> Traced:
    """Trace a loss function; ``TypeError`` or ``ValueError`` for bad arguments or outputs (see ``graph.call``)."""
    call, closed, shapes = make_call(fn, args, kwargs, argnums, static_argnums).trace()
    check_loss(call, shapes, has_aux)
    return Traced(call, closed, jax.tree.structure(shapes), True, ())


def trace_function(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], static_argnums: int | Sequence[int] = ()
) -> Traced:
    """Trace any function of arrays; errors as of ``trace_loss``."""
    return traced_function(*make_function_call(fn, args, kwargs, static_argnums).trace())


def traced_function(call: Call, closed: Any, shapes: Any) -> Traced:
    """A call that was traced (``Call.trace``), taken as one of any function."""
    avals = [var.aval for var in _compat.open_jaxpr(closed)[0].outvars]
    cotangents = tuple(_compat.struct(aval) for aval in avals if _compat.is_float(aval))
    return Traced(call, closed, jax.tree.structure(shapes), False, cotangents)


@garbage.seldom_in
def make_program(traced: Traced, existing: str) -> Program:
    """Build the graph of a traced call; ``existing`` says what becomes of the user's own ``jax.checkpoint`` regions."""
    graph = build(traced.jaxpr, traced.call.differentiated, keep_remat=existing == "keep", wanted=traced.wanted)
    shared = traced.call, traced.jaxpr, traced.output_tree, traced.is_loss, traced.cotangents
    return Program(*shared, graph, fingerprint(graph))


def trace_program(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    static_argnums: int | Sequence[int],
    existing: str,
) -> Program:
    """Trace a loss function and build its graph; errors as of ``trace_loss``."""
    check_existing(existing)
    return make_program(trace_loss(fn, args, kwargs, argnums, has_aux, static_argnums), existing)


def make_runner(program: Program, schedule: Sequence[Segment], prevent_cse: bool = True) -> Runner:
    """Return a program under a schedule, as a function of flat values; ``prevent_cse`` as in ``jax.checkpoint``.

    Regions of the user that are left as written keep the ``prevent_cse`` that they were written with.
    """
    if not is_written(schedule):
        return Emitter(program.graph, schedule, prevent_cse)
    jaxpr, constants = _compat.open_jaxpr(program.jaxpr)

    def as_written(args: Sequence[Any], given: Sequence[Any] = constants) -> list[Any]:
        """Run it; the first of the constants that are given are those of the outermost jaxpr."""
        outer = [*map(as_array, given[: len(constants)])]  # a rule of the user's may index them by what is traced
        return [as_array(x) for x in _compat.run_jaxpr(jaxpr, outer, args)]

    return as_written


def run_plain(program: Program, values: Sequence[Any]) -> list[Any]:
    """Run a program on flat values as JAX has it: no equation merged, checkpointed regions only where they are kept."""
    if program.graph.keep_remat:
        return _compat.as_function(program.jaxpr)(*values)
    return evaluate(*_compat.open_jaxpr(program.jaxpr), values)


def run_schedule(program: Program, schedule: Sequence[Segment], prevent_cse: bool = True) -> Any:
    """Run a program on its own arguments under a schedule and return what the function returns."""
    run = make_runner(program, schedule, prevent_cse)
    return jax.tree.unflatten(program.output_tree, run(program.call.leaves))
