"""Schedules between two schedules: pieces are taken one after another, from either end."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from remat_plan.graph.schedule import Choice, Part, as_is, check_cover, saving, structured
from remat_plan.graph.slices import sliced
from remat_plan.graph.structure import structure_of
from remat_plan.graph.uses import Borders
from remat_plan.graph.valid import check_schedule
from remat_plan.graph.ways import Segment, Split
from remat_plan.planning.blend import joined, paths, shortened
from remat_plan.structures.scan_choices import alike, grouped
from tests.helpers import traced

S = jax.ShapeDtypeStruct
STEPS = 6


def looped(w, x):
    x = jnp.tanh(x @ w)
    x, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=STEPS)
    return jnp.sum(jnp.tanh(x @ w))


@pytest.fixture(scope="module")
def graph():
    return traced(looped, S((8, 8), "float32"), S((16, 8), "float32")).graph


@pytest.fixture(scope="module")
def ends(graph):
    """The program in three pieces, of which the middle one is the loop: plain, and all run again."""
    place = next(op.index for op in graph.ops if op.eqn.primitive.name == "scan")
    last = len(graph.ops)
    body = len(graph.ops[place].eqn.params["jaxpr"].jaxpr.eqns)
    low = saving(0, place), structured(place, grouped(STEPS, 2, (saving(0, body),))), saving(place + 1, last)
    high = as_is(0, place), structured(place, alike(STEPS, (as_is(0, body),))), as_is(place + 1, last)
    return low, high


def pieces(schedule, low, high):
    """Per piece which end it is of; of the loop how many of its last steps are of the second."""
    loop = schedule[1]
    (_, choice), *_ = loop.choices
    steps = choice.parts[-1].count if loop not in (low[1], high[1]) else STEPS * (loop == high[1])
    return int(schedule[0] == high[0]), steps, int(schedule[2] == high[2])


def test_last_pieces_first_and_first_pieces_first(graph, ends):
    last_first, first_first = paths(graph, *ends)
    mixed = range(1, STEPS)
    assert [pieces(s, *ends) for s in last_first] == [(0, 0, 1), *((0, n, 1) for n in mixed), (0, STEPS, 1)]
    assert [pieces(s, *ends) for s in first_first] == [(1, 0, 0), *((1, n, 0) for n in mixed), (1, STEPS, 0)]
    for schedule in (*last_first, *first_first):
        check_cover(schedule, 0, len(graph.ops))


def test_in_a_call_there_is_what_lies_between_two_ways_to_run_what_it_holds():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    specs = {"mesh": mesh, "in_specs": (P(), P("i")), "out_specs": P(), "check_vma": False}
    loss = jax.shard_map(lambda w, x: jax.lax.psum(looped(w, x), "i"), **specs)
    program = traced(loss, S((8, 8), "float32"), S((16, 8), "float32")).graph
    (op,) = program.ops
    structure = structure_of(op)
    assert structure is not None
    (region,) = structure.regions(program, op)
    n = len(region.ops)
    low, high = ((structured(0, Choice((Part(1, (made(0, n),)),))),) for made in (saving, as_is))
    assert paths(program, low, high) == ([], [])  # of one piece
    split = (
        Choice((Part(1, (as_is(0, n - 2), saving(n - 2, n))),)),
        Choice((Part(1, (saving(0, n - 2), as_is(n - 2, n))),)),
    )
    found, _ = paths(program, *((structured(0, choice),) for choice in split))
    assert found == [(structured(0, Choice((Part(1, (as_is(0, n),)),))),)]


def test_between_equal_schedules_there_is_nothing(graph, ends):
    assert paths(graph, ends[0], ends[0]) == ([], [])


def test_groups_of_fewer_steps_are_no_larger(ends):
    (_, choice), *_ = ends[0][1].choices
    assert shortened(choice.parts[0], 5).groups == (3,)


def nested(w, x):
    def inner(x, rows):
        return jax.lax.scan(lambda c, row: (jnp.tanh(c @ row), None), x, rows)[0]

    return jnp.sum(jax.lax.scan(lambda c, rows: (inner(c, rows), None), x, w)[0])


def test_where_a_loop_has_few_steps_one_of_them_is_run_partly_one_way():
    """From every inner loop run again as a whole to none: at each outer step there are schedules between."""
    graph = traced(nested, S((3, 20, 8, 8), "float32"), S((16, 8), "float32")).graph
    place = next(op.index for op in graph.ops if op.eqn.primitive.name == "scan")
    rest = as_is(place + 1, len(graph.ops))
    low = structured(place, alike(3, (saving(0, 1),))), rest
    high = structured(place, alike(3, (as_is(0, 1),))), rest
    path, _ = paths(graph, low, high)
    kept = []
    for schedule in path:
        check_schedule(graph, schedule)
        (_, choice), *_ = schedule[0].choices
        steps = 0
        for part in choice.parts:
            (step,) = part.schedule
            inner = step.choices[0][1].parts if step.choices else ()
            own = sum(p.count for p in inner if not p.groups) if inner else 20 * (not step.checkpointed)
            steps += part.count * own
        kept.append(steps)
    assert kept == sorted(kept)
    assert len(set(kept)) > 12, "several for each outer step"


def test_between_two_ways_to_run_slices_lies_what_is_between_those_to_run_one():
    """Both of a loop of the user's and of slices of a whole program, in as many slices."""

    def loss(w, x):
        return jax.lax.scan(lambda total, x: (total + whole(w, x), None), 0.0, x.reshape(4, 4, 8))[0] / 4

    def whole(w, x):
        for _ in range(3):
            x = jnp.tanh(x @ w)
        return jnp.mean(x)

    args = S((8, 8), "float32"), S((16, 8), "float32")
    graph = traced(loss, *args).graph
    (op,) = [op for op in graph.ops if op.primitive == "scan"]
    n = len(structure_of(op).regions(graph, op)[0].ops)
    cut = n // 2

    def by(step):
        choice = Choice((Part(4, step),), gradient_first=True)
        return as_is(0, op.index), structured(op.index, choice), as_is(op.index + 1, len(graph.ops))

    ends = (saving(0, cut), saving(cut, n)), (as_is(0, cut), as_is(cut, n))
    between, _ = paths(graph, by(ends[0]), by(ends[1]))
    assert between == [joined(by((saving(0, cut), as_is(cut, n))))]
    for schedule in between:
        check_schedule(graph, schedule)
    other = Choice((Part(4, ends[1]),))
    assert paths(graph, by(ends[0]), (by(ends[1])[0], structured(op.index, other), by(ends[1])[2]))[0] == []

    graph = traced(whole, *args).graph
    product = next(op.outputs[0] for op in graph.ops if op.primitive == "dot_general")
    way = Split(product, 0, 4)
    found = sliced(Borders(graph), Segment(0, len(graph.ops)), way)
    ((loop, choice),), n = found.choices, len(found.body.ops)
    cut = n // 2

    def in_slices(way, step):
        by = structured(loop, replace(choice, parts=(Part(4, step),)))
        assert len(found.region.ops) == loop + 1
        return (Segment(0, len(graph.ops), replace(way, sliced=(as_is(0, loop), by))),)

    ends = (saving(0, cut), saving(cut, n)), (as_is(0, cut), as_is(cut, n))
    between, _ = paths(graph, *[in_slices(way, step) for step in ends])
    assert between == [in_slices(way, (saving(0, cut), as_is(cut, n)))]
    check_schedule(graph, between[0])
    assert paths(graph, in_slices(way, ends[0]), in_slices(replace(way, slices=2), ends[1]))[0] == []
