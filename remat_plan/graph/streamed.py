"""A program some of whose inputs stay in the host's memory: slices of them come to the device one after the other.

In: ``Graph``, which output takes the place of which input, inputs that may stay on the host. Out: ``Streamed``: those
of them that can, and the program as a function; or no input, where none can.

The program is the update of an optimizer: what replaces an input is computed from it element by element, so it runs
slice by slice (``graph.apart`` says what belongs to it, and what of gradients and parameters is read with it). A loop
carries the arrays that are replaced, and writes the new slices over the old ones. XLA:TPU makes transfers of the slices
that are read and written; whole arrays it would fetch all at once, whatever order they are asked for in.

Limits: an input on the host is read by one equation, which only names it: the axis spreads from there. No equation
outside of its loop reads what replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import lax

from remat_plan import _compat
from remat_plan.graph.apart import Apart, find_apart
from remat_plan.graph.flatten import run_equations
from remat_plan.graph.needs import SLICES
from remat_plan.graph.records import Graph
from remat_plan.graph.schedule import Segment
from remat_plan.graph.slice_equation import Slice, cut
from remat_plan.graph.slicer import Slicer
from remat_plan.graph.uses import Borders

_SLICES = range(16, 65)
"""Into so many slices arrays are cut, the fewest that are of one length, so that nothing is left over behind the loop;
more would be too short to be worth a transfer. Where none are, the last is shorter."""

_LANES = 128
"""XLA:TPU lays arrays out such that the fastest dimension is a multiple of this if one is. An array that is cut along
its fastest dimension it would copy, on the host (f32[1024,50257])."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A program with loops over slices of what is on the host.

    Attributes:
        homes: by output (a value), the input whose place it takes.
        hosted: the inputs on the host.
        order: operations, and the loops in their places, each behind what it reads.
    """

    graph: Graph
    homes: Mapping[int, int]
    hosted: frozenset[int]
    order: tuple[int | Slicer, ...]

    def run(self, args: Sequence[Any]) -> list[Any]:
        """Run it on the values of its inputs; those on the host stay there, as what replaces them does."""
        graph = self.graph
        env = {**dict(graph.constants), **dict(zip(graph.inputs, args, strict=True))}
        env.update((v, jax.device_put(env[v], jax.memory.Space.Host)) for v in self.hosted)
        for unit in self.order:
            if isinstance(unit, Slicer):
                self._loop(unit, env)
            else:
                run_equations([graph.ops[unit]], graph.literals, env)
        return [graph.literals[-1 - v] if v < 0 else env[v] for v in graph.outputs]

    def _loop(self, slicer: Slicer, env: dict[int, Any]) -> None:
        """Run the slices of one loop; add what they make to the values."""
        apart, values = slicer.apart, self.graph.values
        homes = [_home(self.graph, self.homes, apart, v, d) for v, d in apart.stacked]
        whole = [env[v] for v in apart.whole]

        def step(piece: Slice, carry: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
            sums, filled = carry
            now = {**env, **{h: x for h, x in zip(homes, filled, strict=True) if h is not None}}
            rows = [self._moved(cut(now[v], d, piece), v, jax.memory.Space.Device) for v, d in apart.rows]
            made = slicer.piece(piece, whole, rows)
            return slicer.added(apart.sums, sums, made), [
                lax.dynamic_update_slice_in_dim(
                    x, self._moved(made[v], h, jax.memory.Space.Host), piece.first(x.shape[d]), d
                )
                for x, h, (v, d) in zip(filled, homes, apart.stacked, strict=True)
            ]

        stacked = [
            _compat.zeros(values[v].aval) if h is None else env[h]
            for h, (v, _) in zip(homes, apart.stacked, strict=True)
        ]
        carry = [_compat.zeros(_compat.wide(values[v].aval)) for v in apart.sums], stacked
        with jax.named_scope(SLICES):
            carry = lax.fori_loop(0, slicer.count, lambda n, carry: step(slicer.slice(n), carry), carry)
        sums, stacked = step(slicer.last, carry) if slicer.rest else carry
        env.update((v, s.astype(values[v].aval.dtype)) for v, s in zip(apart.sums, sums, strict=True))
        env.update((v, x) for (v, _), x in zip(apart.stacked, stacked, strict=True))

    def _moved(self, x: Any, home: int | None, space: Any) -> Any:
        """A slice, moved to the other memory if its array is on the host."""
        return jax.device_put(x, space) if home in self.hosted else x


def streamed(graph: Graph, homes: Mapping[int, int], wanted: Mapping[int, Sequence[int]]) -> Streamed:
    """Find which inputs can stay on the host.

    Args:
        graph: the program; nothing of it is differentiated.
        homes: by output (a value), the input of its type whose place it takes.
        wanted: inputs that may stay on the host, in the order of preference, each with the dimensions along which it
            may be cut.

    Returns:
        The program with loops; its ``hosted`` is empty where there is none.
    """
    borders, whole = Borders(graph), Segment(0, len(graph.ops))
    outputs = {home: v for v, home in homes.items()}
    named = {op.reads[0]: op.outputs[0] for op in graph.ops if op.reads and op.reads[0] in wanted}
    plain = Streamed(graph, homes, frozenset(), tuple(range(len(graph.ops))))
    found, loops = plain, list[Slicer]()
    for i, dimensions in wanted.items():
        if i in found.hosted or i not in outputs or i not in named:
            continue
        for d in sorted(dimensions, key=lambda d: graph.values[i].aval.shape[d] % _LANES == 0):
            apart = find_apart(borders, whole, named[i], d)
            hosted = set() if apart is None else {j for j in wanted if _stays(graph, homes, outputs, apart, j)}
            if apart is None or apart.units < 2 or i not in hosted:
                continue
            slicer = Slicer(graph, apart, named[i], _slices(apart.units))
            order = _in_order(graph, [*loops, slicer])
            if order is not None:
                loops.append(slicer)
                found = replace(found, hosted=found.hosted | hosted, order=order)
                break
    return found


def _slices(units: int) -> int:
    return next((n for n in _SLICES if units % n == 0), min(_SLICES[0], units))


def _home(graph: Graph, homes: Mapping[int, int], apart: Apart, v: int, d: int) -> int | None:
    """The input whose place a result of a loop takes, where the same slices of it are read."""
    home = homes.get(v)
    return home if home is not None and (home, d) in apart.rows else None


def _stays(graph: Graph, homes: Mapping[int, int], outputs: Mapping[int, int], apart: Apart, i: int) -> bool:
    """Whether a loop reads an input slice by slice, and replaces it so, and nothing else needs it or the new one."""
    rows = [d for v, d in apart.rows if v == i]
    new = outputs.get(i)
    if len(rows) != 1 or i in apart.whole or new is None or (new, rows[0]) not in apart.stacked:
        return False
    inside = {index for index, _ in apart.axes}
    apart_from_it = {v for op in graph.ops if op.index not in inside for v in op.reads}
    once = graph.outputs.count(new) == 1 and i not in graph.outputs
    return once and i not in apart_from_it and new not in apart_from_it


def _in_order(graph: Graph, loops: Sequence[Slicer]) -> tuple[int | Slicer, ...] | None:
    """The operations outside of loops, and the loops, each behind what it reads; None where there is no such order."""
    place = {index: slicer for slicer in loops for index, _ in slicer.apart.axes}
    if len(place) < sum(len(slicer.apart.axes) for slicer in loops):
        return None  # something would be in two loops
    units = list(dict.fromkeys(place.get(op.index, op.index) for op in graph.ops))
    known = {*graph.inputs, *(v for v, _ in graph.constants)}
    order: list[int | Slicer] = []
    while units:
        left: list[int | Slicer] = []
        for unit in units:
            if isinstance(unit, Slicer):
                reads = {*unit.apart.whole, *(v for v, _ in unit.apart.rows)}
                makes = {*unit.apart.sums, *(v for v, _ in unit.apart.stacked)}
            else:
                reads, makes = {*graph.ops[unit].reads}, {*graph.ops[unit].outputs}
            if reads <= known:
                known |= makes
                order.append(unit)
            else:
                left.append(unit)
        if len(left) == len(units):
            return None
        units = left
    return tuple(order)
