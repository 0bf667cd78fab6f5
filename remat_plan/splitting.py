"""A function that runs slice by slice along one axis: ``rp.split``.

In: a function of arrays, a dimension of its arguments, a number of slices or of bytes. Out: the same function as a loop
over slices. It lowers what recomputation cannot: the memory that one place needs (logits, attention scores, a hidden
layer).

The arguments that are sliced are given a name, so that in the trace the axis starts at the equations which give it; it
spreads from there as it does in a plan (``graph.apart``). Given bytes, the number of slices is found when the function
is first traced, once for each program (``plans.fitting_slices``).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar, cast

import jax
from jax.ad_checkpoint import checkpoint_name

from remat_plan import _compat
from remat_plan.graph.apart import Apart, find_apart
from remat_plan.graph.call import make_function_call
from remat_plan.graph.frameworks import check_function, refuse_bound_linen
from remat_plan.graph.records import AXIS_PREFIX, Graph
from remat_plan.graph.schedule import Schedule, as_is
from remat_plan.graph.slicer import Slicer
from remat_plan.graph.slices import sliced
from remat_plan.graph.uses import Borders
from remat_plan.graph.ways import Plain, Segment, Split
from remat_plan.plans.book import program_digest
from remat_plan.plans.fitting_slices import fitting_slices, numbers_of_slices
from remat_plan.results.places import effect_places, equation_text, value_text
from remat_plan.search.judge import Judge
from remat_plan.small.budget import Budget, parse_budget
from remat_plan.small.doors import door, integer
from remat_plan.small.progress import Progress
from remat_plan.small.recent import Recent
from remat_plan.small.wording import short
from remat_plan.traced.programs import Program, traced_function
from remat_plan.traced.reuse import MOST_SHAPES, Emissions
from remat_plan.verify.targets import resolve

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


@door
def split(
    fn: Callable[P, R],
    *,
    axis: Any = 0,
    slices: int | None = None,
    budget: int | str | float | None = None,
    target: str | None = None,
) -> Callable[P, R]:
    """Return ``fn`` run in slices along one axis, one slice after the other.

    Between the forward and the backward pass only the arguments and results are kept of a slice; the backward pass runs
    each slice again. If ``fn`` returns one scalar that is linear in sums over the axis (a loss that is a mean over
    tokens, with or without a penalty on weights), or reads one scalar sum alone (the root of a mean), the gradient is
    made in the forward pass instead, and nothing runs twice.

    Args:
        fn: any function of arrays without effects. It must keep the axis apart: what it makes along the axis depends
            on nothing elsewhere along it, but for sums that are read at the end only.
        axis: the dimension of the first array; or, as ``in_axes`` of ``jax.vmap``, one entry for each positional
            argument: a dimension, None for an argument that is not sliced by itself, or a pytree of both. What has the
            same axis is sliced with it, whether or not it is named (the labels of a loss).
        slices: how many slices; at least 2, and at most what the axis has room for. Where they do not divide it, the
            last slice is smaller, and there may be fewer.
        budget: instead of ``slices``, bytes on one device, as in ``plan``: the slices are found with which the compiled
            gradient step of ``fn`` alone fits and is fastest (mostly the fewest), if possible such that they divide the
            axis. The step is that of ``rp.checkpoint``: arguments, cotangents of the results, results, gradients,
            temporaries. The number is found when ``fn`` is first traced, once for each set of input shapes; where
            ``fn`` fits as it is, it is left so.
        target: the device that the budget is for, such as ``"gpu:h100"``; by default the attached one.

    Returns:
        A function of the same arguments, with the same results up to rounding: those along the axis put together, those
        that are summed over it added up (floats of less than 32 bits in 32). It works under ``jax.jit``, ``grad``,
        ``jvp``, ``vmap`` and their combinations; jit it, since each call outside of ``jit`` traces ``fn``.

    Raises:
        BudgetError: when called, if no number of slices meets the budget; ``.minimum_bytes`` is the least reached.
        TypeError, ValueError: an argument is wrong, or (when called) an equation does not keep the axis apart; the
            message names the equation, its line and what it reads.

    Example:
        >>> import jax, jax.numpy as jnp, remat_plan as rp
        >>> def loss(x, w, labels):  # float32[B, D], float32[D, V], int32[B]
        ...     logits = x @ w
        ...     picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
        ...     return jnp.mean(jax.nn.logsumexp(logits, axis=1) - picked)
        >>> x, w, labels = jnp.ones((64, 8)), jnp.ones((8, 128)), jnp.zeros(64, int)
        >>> gradient = jax.grad(rp.split(loss, axis=0, slices=8), 1)(x, w, labels)
        >>> bool(jnp.allclose(gradient, jax.grad(loss, 1)(x, w, labels), atol=1e-6))
        True
        >>> gradient = jax.grad(rp.split(loss, budget="70%"), 1)(x, w, labels)  # as few slices as that takes
        >>> bool(jnp.allclose(gradient, jax.grad(loss, 1)(x, w, labels), atol=1e-6))
        True
    """
    check_function(fn, "rp.split needs")
    emissions = Emissions(_asked(slices, budget, target), "keep")

    @_compat.api_boundary
    @functools.wraps(fn, updated=())
    def in_slices(*args: Any, **kwargs: Any) -> Any:
        refuse_bound_linen(jax.tree.leaves(args), "rp.split needs")
        dimensions = _dimensions(axis, args)

        @functools.wraps(fn, updated=())
        def named(*args: Any, **kwargs: Any) -> Any:
            leaves, tree = jax.tree.flatten(args)
            for n, d in dimensions.items():
                leaves[n] = checkpoint_name(leaves[n], f"{AXIS_PREFIX}{n}:{d}")
            return fn(*jax.tree.unflatten(tree, leaves), **kwargs)

        call = make_function_call(named, args, kwargs)
        moving = None if budget is None else _compat.perturbed(call.leaves)
        if moving is not None and any(moving):  # the gradients that are asked for are those that must fit
            call = replace(call, differentiated=moving)
        return emissions(traced_function(*call.trace()))

    return cast(Callable[P, R], in_slices)


def _asked(slices: Any, budget: Any, target: str | None) -> Callable[[Program], Schedule]:
    """What makes the schedule of a program; errors for what is no number of slices and no bytes."""
    if target is not None and budget is None:
        raise ValueError(f"target={short(target)} is what a budget is for: give a budget too, or leave it out.")
    if slices is not None and budget is not None:
        raise ValueError(
            f"slices={short(slices)} and budget={short(budget)}: give one of them; a budget finds the number of slices."
        )
    if budget is not None:
        if target is not None:
            resolve(target)
        return _Fitting(parse_budget(budget), target)
    if slices is None:
        raise ValueError("rp.split: give a number of slices, such as slices=8, or a budget, such as budget='2GB'.")
    return functools.partial(_schedule, slices=integer("slices", slices, 2, "; one slice is the function itself"))


def _dimensions(axis: Any, args: Sequence[Any]) -> dict[int, int]:
    """The dimension that each sliced leaf of the arguments is sliced along, by the number of the leaf."""
    leaves = jax.tree.leaves(args)
    if isinstance(axis, (tuple, list)):
        try:
            wanted = jax.tree.leaves(
                jax.tree.broadcast(tuple(axis), tuple(args), is_leaf=lambda x: x is None), is_leaf=lambda x: x is None
            )
        except ValueError:
            raise ValueError(
                f"axis={short(axis)} does not fit {len(args)} positional arguments: give one entry for each, a "
                "dimension, None, or a pytree of these that is a prefix of the argument."
            ) from None
        found = {n: d for n, d in enumerate(wanted) if d is not None}
    else:
        found = {n: axis for n, leaf in enumerate(leaves) if getattr(leaf, "ndim", 0)}
        found = dict([*found.items()][:1])
    if not found:
        raise ValueError(f"axis={short(axis)}: no positional argument is an array with dimensions that it names.")
    for n, d in found.items():
        if isinstance(d, bool) or not isinstance(d, int):
            raise TypeError(f"axis={short(axis)}: {short(d)} is no dimension; give integers or None.")
        rank = getattr(leaves[n], "ndim", 0)
        if not -rank <= d < rank:
            shape = getattr(leaves[n], "shape", ())
            raise ValueError(f"axis={short(axis)}: an array of shape {shape} has no dimension {d}.")
    return {n: d % leaves[n].ndim for n, d in found.items()}


@dataclass(frozen=True, slots=True)
class _WithoutGradient(Split):
    """In slices, where no derivative goes through what they make: nothing is kept of them anyway."""

    def emit(self, emitter: Any, segment: Segment, waits: tuple[int, ...], env: dict[int, Any], again: bool) -> None:
        graph, (reads, leaves, _) = emitter.graph, emitter.borders.interface(segment)
        apart = find_apart(emitter.borders, segment, self.value, self.dimension)
        assert apart is not None
        run = Slicer(graph, apart, self.value, self.slices).run(reads, leaves)
        env.update(zip(leaves, run(*[emitter.read(env, v) for v in reads]), strict=True))


@dataclass(frozen=True, slots=True)
class _Axis:
    """The axis of a program's named arguments: that of a ``dimension`` of a ``value``."""

    borders: Borders
    value: int
    dimension: int
    apart: Apart

    def in_slices(self, slices: int) -> Schedule:
        """The schedule for a number of slices."""
        graph = self.borders.graph
        whole, asked = Segment(0, len(graph.ops)), (self.value, self.dimension, slices)
        if (found := sliced(self.borders, whole, Split(*asked))) is not None:
            inside = Segment(0, len(found.region.ops), Plain(found.choices))
            return (replace(whole, way=Split(*asked, (inside,))),)
        if self.has_gradient:
            raise ValueError(
                "rp.split: inside shard_map, the gradient of a value that is equal on all devices would be added up "
                "over them in each slice. Use rp.split around shard_map, or jax.lax.pvary (pcast) on that value first."
            )
        return (replace(whole, way=_WithoutGradient(*asked, (as_is(0, 0),))),)

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient goes through what slices make."""
        return any(self.borders.graph.ops[i].differentiated for i, _ in self.apart.axes)


def _schedule(program: Program, slices: int) -> Schedule:
    """The schedule that runs a program in slices along the axis of its named arguments."""
    axis = _find_axis(program)
    if slices > axis.apart.units:
        text = program.graph.values[axis.value].text
        raise ValueError(
            f"slices={slices}: dimension {axis.dimension} of {text} has room for {axis.apart.units} at most."
        )
    return axis.in_slices(slices)


class _Fitting:
    """Makes schedules in slices that fit a budget; what was found for a program is remembered."""

    def __init__(self, budget: Budget, target: str | None):
        self.budget, self.target = budget, target
        self.known: Recent[str, int] = Recent(MOST_SHAPES)
        self.searching = threading.RLock()

    def __call__(self, program: Program) -> Schedule:
        axis, digest = _find_axis(program), program_digest(program)
        if not axis.has_gradient:
            raise ValueError(
                f"budget={self.budget.text}: no gradient goes through what is computed along the axis, so there is no "
                "gradient step to fit. Give a number of slices, such as slices=8."
            )
        with self.searching:
            if (count := self.known.use(digest)) is None:
                with Progress("remat_plan", None) as shown:
                    judge, counts = Judge(program, resolve(self.target), shown), numbers_of_slices(axis.apart.units)
                    (segment, *_) = fitting_slices(judge, self.budget, counts, axis.in_slices)
                way = segment.way
                self.known.keep(digest, count := way.slices if isinstance(way, Split) else 1)
        return axis.in_slices(count) if count > 1 else program.written


def _find_axis(program: Program) -> _Axis:
    """The axis of a program's named arguments; ``ValueError`` where the program does not keep it apart."""
    graph = program.graph
    named = [(v.index, int(v.name.rpartition(":")[2])) for v in graph.values if v.name.startswith(AXIS_PREFIX)]
    if not named:
        raise ValueError("rp.split: the function does not read the argument that axis names. Name another one.")
    if places := effect_places(graph) or [equation_text(op.eqn) for op in graph.ops if op.effectful]:
        raise ValueError(
            f"rp.split: an effect must happen once, but slices would repeat it: {', '.join(places)}. Take it out."
        )
    borders, (value, dimension) = Borders(graph), named[0]
    apart = find_apart(borders, Segment(0, len(graph.ops)), value, dimension)
    _check_apart(graph, apart, named)
    assert apart is not None
    return _Axis(borders, value, dimension, apart)


def _check_apart(graph: Graph, apart: Apart | None, named: Sequence[tuple[int, int]]) -> None:
    """Raise ``ValueError`` where something of the axis is read whole, or is not along the others."""
    value, dimension = named[0]
    text = graph.values[value].text
    if apart is None:
        readers = [equation_text(op.eqn) for op in graph.ops if value in op.reads]
        raise ValueError(
            f"rp.split: {text} cannot be sliced along dimension {dimension}, which is too short, or which no equation "
            f"keeps apart. It is read by {', '.join(readers[:3]) or 'nothing'}. Choose another axis."
        )
    stacked = {v for v, _ in apart.stacked}
    for index in apart.after:
        op = graph.ops[index]
        if whole := [v for v in op.reads if v in stacked]:
            raise ValueError(
                f"rp.split: {equation_text(op.eqn)} reads {_text(graph, whole[0])} whole, so it cannot run in slices "
                f"along dimension {dimension} of {text}: what it makes of one slice depends on others. Choose another "
                "axis, or give rp.split the part of the function before or behind it."
            )
    along = {v: d for i, axis in apart.axes for v, d in zip(graph.ops[i].outputs, axis.results, strict=True)}
    for v, d in named[1:]:
        if along.get(v) != d:
            raise ValueError(
                f"rp.split: dimension {d} of an argument {graph.values[v].text} is not the axis that dimension "
                f"{dimension} of {text} is: the function does not read both slice by slice. Leave it out (None)."
            )


def _text(graph: Graph, v: int) -> str:
    """A value as text; a named argument is told as one."""
    value = graph.values[v]
    return f"the argument {value.text}" if value.name.startswith(AXIS_PREFIX) else value_text(graph, v)
