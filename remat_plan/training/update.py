"""The optimizer's update at the end of a training step, apart from what stands before it.

In: the trace of a step with the paths of its arguments and results; which leaves of the arguments may stay in the
host's memory. Out: ``Update``: those of them that can, and the step as a function that leaves them there.

The update is what follows the last expensive equation that new state depends on: the backward pass ends with one. What
only the update reads, and what comes back in a new version, may stay on the host. A result is the new version of an
argument of its type whose path ends like its own: ``state[1].mu['w']`` of the arguments is ``[1][1].mu['w']`` of the
results.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from remat_plan import _compat
from remat_plan.graph.build import build
from remat_plan.graph.flatten import Flat, FlatEqn, flatten, live_eqns, run_equations
from remat_plan.graph.streamed import Streamed, streamed
from remat_plan.planning.stretches import is_expensive

_NAME = "remat_plan_state"
"""The name of what the update reads of an array that may stay on the host."""


@dataclass(frozen=True, slots=True)
class Update:
    """A training step, flat, whose update is told apart.

    Attributes:
        flat: the whole step.
        start: the equation that the update begins with.
        reads: the values that the update reads, or the step returns; inputs of ``streamed`` are these.
        streamed: the update.
    """

    flat: Flat
    start: int
    reads: tuple[int, ...]
    streamed: Streamed

    @staticmethod
    def of(closed: Any, arguments: Any, results: Any, wanted: Sequence[int]) -> Update:
        """Tell the update of a traced step apart.

        Args:
            closed: the step's jaxpr, on the leaves of its arguments.
            arguments, results: pytrees of their types, with shardings where arrays are spread over devices.
            wanted: leaves of the arguments that may stay on the host, in the order of preference.
        """
        flat = flatten(closed, keep_remat=True)
        versions = new_versions(arguments, results)
        needed = live_eqns(flat.eqns, tuple(flat.outputs[versions[n]] for n in wanted if n in versions))
        last = next((item for item in reversed(needed) if is_expensive(item.eqn)), None)
        start = 0 if last is None else 1 + next(n for n, item in enumerate(flat.eqns) if item is last)
        before = {v for item in flat.eqns[:start] for v in item.operands}
        update = flat.eqns[start:]
        made = {v for item in update for v in item.outputs}
        used = (v for v in (*(v for item in update for v in item.operands), *flat.outputs) if v >= 0 and v not in made)
        reads = tuple(dict.fromkeys(used))
        named = {flat.inputs[n] for n in wanted} - before

        def run(*values: Any) -> list[Any]:
            pairs = zip(reads, values, strict=True)
            return _run(flat, update, {v: checkpoint_name(x, _NAME) if v in named else x for v, x in pairs})

        closed = jax.make_jaxpr(run)(*[_compat.struct(flat.avals[v]) for v in reads])
        graph = build(closed, (False,) * len(reads), keep_remat=True, wanted=[False] * len(flat.outputs))
        place = {v: graph.inputs[n] for n, v in enumerate(reads)}
        leaves = jax.tree.leaves(arguments)
        homes = {
            graph.outputs[new]: place[flat.inputs[old]]
            for old, new in versions.items()
            if flat.inputs[old] in place and graph.outputs[new] >= 0
        }
        may_stay = {
            place[flat.inputs[n]]: [d for d in range(len(leaves[n].shape)) if not _is_spread(leaves[n], d)]
            for n in wanted
            if flat.inputs[n] in place and flat.inputs[n] in named
        }
        return Update(flat, start, reads, streamed(graph, homes, may_stay))

    @property
    def hosted(self) -> frozenset[int]:
        """The leaves of the arguments that stay on the host."""
        names = dict(zip(self.streamed.graph.inputs, self.reads, strict=True))
        return frozenset(self.flat.inputs.index(names[v]) for v in self.streamed.hosted)

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """Run the step on the leaves of its arguments; return those of its results."""
        flat = self.flat
        env = {**dict(flat.constants), **dict(zip(flat.inputs, leaves, strict=True))}
        _run(flat, flat.eqns[: self.start], env)
        return self.streamed.run([env[v] for v in self.reads])


def streaming(fn: Callable[..., Any], arguments: Any, hosted: Collection[int]) -> Callable[..., Any]:
    """A step, a function of pytrees like ``arguments`` (their types), that leaves leaves of these on the host."""

    @functools.wraps(fn, updated=())
    def run(*args: Any) -> Any:
        closed, results = jax.make_jaxpr(fn, return_shape=True)(*arguments)  # on the device; arrays say where they are
        update = Update.of(closed, arguments, results, sorted(hosted))
        whole = set(hosted) - update.hosted  # which is so only where another schedule ends in another equation
        leaves = [
            jax.device_put(x, jax.memory.Space.Device) if n in whole else x for n, x in enumerate(jax.tree.leaves(args))
        ]
        return jax.tree.unflatten(jax.tree.structure(results), update.run(leaves))

    return run


def new_versions(arguments: Any, results: Any) -> dict[int, int]:
    """Return which leaf of the results is the new version of which leaf of the arguments.

    Of several whose paths end alike, that with the shortest path; of as many such as there are arguments, each in turn.

    >>> w = jax.ShapeDtypeStruct((2,), "float32")
    >>> new_versions(({"w": w}, [{"w": w}], w), (w, [{"w": w}], {"w": w}))
    {0: 2, 1: 1, 2: 0}
    """
    asked: dict[Any, list[int]] = defaultdict(list)
    for n, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(arguments)[0]):
        asked[tuple(map(str, path[1:])), leaf.shape, leaf.dtype].append(n)
    given = [(tuple(map(str, path)), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(results)[0]]
    found: dict[int, int] = {}
    for (end, shape, dtype), numbers in asked.items():
        alike = [
            (len(path), n)
            for n, (path, leaf) in enumerate(given)
            if path[len(path) - len(end) :] == end and (leaf.shape, leaf.dtype) == (shape, dtype)
        ]
        found.update(zip(numbers, (n for _, n in sorted(alike)), strict=False))
    return found


def _run(flat: Flat, eqns: Sequence[FlatEqn], env: dict[int, Any]) -> list[Any]:
    """Run equations of a flat program; return what of its outputs is known then."""
    run_equations(eqns, flat.literals, env)
    return [flat.literals[-1 - v] if v < 0 else env[v] for v in flat.outputs if v < 0 or v in env]


def _is_spread(leaf: Any, dimension: int) -> bool:
    sharding = getattr(leaf, "sharding", None)
    return sharding is not None and sharding.num_devices > 1 and _compat.is_spread(sharding, dimension)
