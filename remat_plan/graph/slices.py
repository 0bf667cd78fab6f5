"""A segment as a region of its own whose equations run slice by slice: what a split segment is run as.

In: ``Graph``, a segment, a value in it, a dimension, a number of slices. Out: ``Sliced``: a ``Graph`` from what the
segment reads to what leaves it, with one ``lax.scan`` over slices among its equations. It is planned, evaluated and run
as any region is. What is kept of a slice is a ``Choice`` for this scan: nothing but its operands; or nothing at all,
where the segment ends in a loss that slices add up (see ``graph.slice_loss``), whose gradient is made with it.

Equal segments share one region.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from remat_plan import _compat
from remat_plan.graph.apart import Apart, find_apart
from remat_plan.graph.build import build
from remat_plan.graph.equal import Source, same_program
from remat_plan.graph.merge import identity
from remat_plan.graph.needs import SLICES
from remat_plan.graph.records import Graph, Op
from remat_plan.graph.schedule import Choice, Part, Schedule, Segment, as_is, saving
from remat_plan.graph.slice_loss import summed
from remat_plan.graph.slicer import Slicer
from remat_plan.graph.structure import adds_up, is_loop, structure_of
from remat_plan.graph.uses import Borders
from remat_plan.graph.ways import Split


@dataclass(frozen=True, slots=True)
class Sliced:
    """A split segment.

    Attributes:
        apart: what runs slice by slice, and what around it.
        region: the segment, sliced.
        body: one slice.
        choices: (operation, choice) of the loop over slices.
    """

    apart: Apart
    region: Graph
    body: Graph
    choices: tuple[tuple[int, Choice]]


def sliced(borders: Borders, segment: Segment, way: Split) -> Sliced | None:
    """Return the equations of a segment in slices; None where they are not apart, or no gradient goes through them."""
    known = borders.graph.bodies
    place = Sliced, segment.start, segment.end, way.value, way.dimension, way.slices
    if place not in known:
        key = _key(borders, segment, way)
        if key not in known:
            known[key] = _make(borders, segment, way)
        known[place] = known[key]
    return known[place]


def region_of(borders: Borders, segment: Segment) -> tuple[Graph, Schedule]:
    """Return what a split segment is run as: its region, and the schedule of it.

    Raises:
        ValueError: it cannot be split so.
    """
    way = segment.way
    assert isinstance(way, Split)
    found = sliced(borders, segment, way)
    if found is None:
        raise ValueError(
            f"segment {segment.start}..{segment.end} cannot run in {way.slices} slices along dimension "
            f"{way.dimension} of value {way.value}"
        )
    return found.region, way.sliced


def _make(borders: Borders, segment: Segment, way: Split) -> Sliced | None:
    graph = borders.graph
    (reads, leaves, _), given = borders.interface(segment), borders.given(segment)
    apart = find_apart(borders, segment, way.value, way.dimension)
    if apart is None or not 2 <= way.slices <= apart.units or _sums_in_each_slice(graph, apart):
        return None
    slicer = Slicer(graph, apart, way.value, way.slices)
    run = summed(slicer, reads, leaves, given) or slicer.run(reads, leaves)

    def make() -> Graph:
        closed = jax.make_jaxpr(run)(*[_compat.struct(graph.values[v].aval) for v in reads])
        moving = tuple([graph.moving[v] for v in reads])
        return build(closed, moving, graph.keep_remat, wanted=[v in given for v in leaves])

    made = make() if graph.in_place is None else graph.in_place(make)
    region = replace(made, is_region=True, in_place=graph.in_place)
    loops = [op.index for op in region.ops if is_loop(op) and _compat.in_scope(op.eqn, SLICES)]
    if len(loops) != 1:
        return None  # nothing that the loop makes is read
    op = region.ops[loops[0]]
    structure = structure_of(op)
    loop = structure.loop(region, op) if structure else None
    assert loop is not None
    first, n = adds_up(loop), len(loop.body.ops)
    step = as_is(0, n) if first else saving(0, n)  # of other slices all runs again
    choice = Choice((Part(loop.count, (step,)),), gradient_first=first)
    return Sliced(apart, region, loop.body, ((op.index, choice),))


def _sums_in_each_slice(graph: Graph, apart: Apart) -> bool:
    """Whether devices would add up gradients in each slice: those of a value that is the same on all of them."""
    made = [v for i, _ in apart.axes for v in graph.ops[i].outputs]
    axes = {axis for v in made for axis in _compat.varying_axes(graph.values[v].aval)}
    whole = [set(_compat.varying_axes(graph.values[v].aval)) for v in apart.whole if graph.moving[v]]
    return any(own != axes for own in whole)


def _key(borders: Borders, segment: Segment, way: Split) -> Any:
    """Equal for segments that are the same function, split in the same way."""
    graph = borders.graph
    (reads, leaves, _), given = borders.interface(segment), borders.given(segment)
    contents = borders.contents(segment, reads, partial(_name, graph))
    assert contents is not None
    rows, number = contents
    moving = tuple([graph.moving[v] for v in reads])
    wanted = tuple([(number[v], v in given) for v in leaves])
    return rows, moving, wanted, number[way.value], way.dimension, way.slices


def _name(graph: Graph, op: Op) -> Any:
    """Equal for equations of a kind that compute the same, derivatives included: their rules are no part of a kind."""
    if (name := identity(op.eqn)) is not None:
        return name
    key: Any = "like", op.kind
    alike: list[tuple[Any, Source]] = graph.bodies.setdefault(key, [])
    for number, (eqn, _) in enumerate(alike):
        if eqn is op.eqn:
            return number
    structs = [_compat.struct(a.aval) for a in op.eqn.invars]

    def make() -> Source:
        return Source(jax.make_jaxpr(lambda *args: _compat.bind(op.eqn, args))(*structs))

    source = make() if graph.in_place is None else graph.in_place(make)
    same = next((n for n, (_, other) in enumerate(alike) if same_program(other, source)), len(alike))
    if same == len(alike):
        alike.append((op.eqn, source))
    return same
