"""Schedules checked against the graph that they are to run."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from remat_plan.graph.schedule import WRITTEN, Choice, Part, Segment, as_is, saving, structured
from remat_plan.graph.slices import sliced
from remat_plan.graph.uses import Borders
from remat_plan.graph.valid import check_schedule
from remat_plan.graph.ways import Around, Plain, Split
from remat_plan.traced.programs import trace_program


def loss(w, x):
    x = jnp.tanh(x @ w)
    x, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=6)
    return jnp.sum(x * 2.0)


GRAPH = trace_program(loss, (jnp.ones((4, 4)), jnp.ones((8, 4))), {}, 0, False, (), "replan").graph
COUNT = len(GRAPH.ops)
SCAN = next(op.index for op in GRAPH.ops if op.primitive == "scan")
TANH = GRAPH.ops[1].outputs[0]
STEP = (saving(0, 2),)


def with_choice(choice):
    return (as_is(0, SCAN), structured(SCAN, choice), as_is(SCAN + 1, COUNT))


@pytest.mark.parametrize(
    "schedule",
    [
        WRITTEN,
        (as_is(0, COUNT),),
        (saving(0, COUNT, (TANH,)),),
        with_choice(Choice((Part(6, STEP),))),
        with_choice(Choice((Part(4, STEP, (2,)), Part(2, STEP)))),
        with_choice(Choice((Part(6, STEP),), slots=3)),
    ],
)
def test_what_can_run(schedule):
    check_schedule(GRAPH, schedule)


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        ((as_is(0, COUNT - 1),), "segments end at equation"),
        ((saving(0, COUNT, (10**9,)),), "saves value 1000000000, which it does not compute"),
        ((saving(0, COUNT, (0,)),), "saves value 0, which it does not compute"),
        ((as_is(0, 2), saving(2, COUNT, (TANH,))), f"saves value {TANH}, which it does not compute"),
        ((Segment(0, COUNT, Plain(((0, Choice((Part(1, STEP),))),))),), r"equation 0 \(dot_general\) is not a loop"),
        (with_choice(Choice((Part(5, STEP),))), r"runs 6 steps, but its parts have \[5\]"),
        (with_choice(Choice((Part(7, STEP), Part(-1, STEP)))), r"its parts have \[7, -1\]"),
        (with_choice(Choice((Part(6, ()),))), "a part without a schedule"),
        (with_choice(Choice((Part(6, WRITTEN),))), "as written, which only a whole program can be"),
        ((Segment(0, COUNT, Around()),), "segments end at equation 0"),
        (with_choice(Choice((Part(6, (saving(0, 3),)),))), "segments end at equation 3 instead of 2"),
        (with_choice(Choice((Part(6, STEP, (7,)),))), "6 steps, which cannot be divided into 7 groups"),
        (with_choice(Choice((Part(6, STEP, (3, 3)),))), "2 steps, which cannot be divided into 3 groups"),
        (with_choice(Choice((Part(3, STEP), Part(3, STEP)), slots=2)), "cannot run 2 parts in 2 slots"),
    ],
)
def test_what_cannot(schedule, told):
    with pytest.raises(ValueError, match=told):
        check_schedule(GRAPH, schedule)


def test_branches_have_one_part_each():
    def branching(w, x):
        return jnp.sum(jax.lax.cond(x[0, 0] > 0, lambda y: jnp.tanh(y @ w), lambda y: y, x))

    graph = trace_program(branching, (jnp.ones((4, 4)), jnp.ones((8, 4))), {}, 0, False, (), "replan").graph
    index = next(op.index for op in graph.ops if op.primitive == "cond")
    around = as_is(0, index), as_is(index + 1, len(graph.ops))
    for parts in ((Part(1, STEP),), (Part(1, STEP), Part(1, STEP, (1,)))):
        with pytest.raises(ValueError, match="has 2 regions and no steps"):
            check_schedule(graph, (around[0], structured(index, Choice(parts)), around[1]))


@pytest.mark.parametrize(
    ("way", "told"),
    [
        (Split(10**9, 0, 2), "split by value 1000000000, which it does not compute"),
        (Split(-1, 0, 2), "split by value -1, which it does not compute"),
        (Split(0, 0, 2), "split by value 0, which it does not compute"),
        (Split(TANH, 2, 2), f"along dimension 2 of value {TANH}, which is"),
        (Split(TANH, -1, 2), f"along dimension -1 of value {TANH}, which is"),
        (Split(TANH, 0, 1), "cannot run in 1 slices .* room for 2 to 8"),
        (Split(TANH, 0, 9), "cannot run in 9 slices .* room for 2 to 8"),
        (Split(TANH, 0, 2), "run in slices: segments end at equation 0"),
        (Split(TANH, 0, 2, (saving(0, 1, (9,)),)), "run in slices: segments end at equation 1"),
        (Split(TANH, 0, 2, WRITTEN), "run in slices: segment 0..0 is as written"),
    ],
)
def test_what_cannot_run_in_slices(way, told):
    with pytest.raises(ValueError, match=told):
        check_schedule(GRAPH, (Segment(0, COUNT, way),))


def test_an_axis_that_is_not_apart():
    graph = trace_program(lambda x: jnp.sum(jnp.sort(x)), (jnp.ones(8),), {}, 0, False, (), "replan").graph
    way = Split(graph.ops[0].outputs[0], 0, 2, (as_is(0, 1),))
    with pytest.raises(ValueError, match=r"0 of value \d+ \(float32\[8\]\): its equations do not keep that axis apart"):
        check_schedule(graph, (Segment(0, len(graph.ops), way),))


def test_a_gradient_in_the_forward_pass_needs_a_scalar():
    found = sliced(Borders(GRAPH), Segment(0, 2), Split(TANH, 0, 2))
    ((loop, choice),) = found.choices
    inside = Segment(0, len(found.region.ops), Plain(((loop, dataclasses.replace(choice, gradient_first=True)),)))
    with pytest.raises(ValueError, match="cannot make its gradient in the forward pass: it does more than add up one"):
        check_schedule(GRAPH, (Segment(0, 2, Split(TANH, 0, 2, (inside,))), as_is(2, COUNT)))


def test_what_is_said_of_the_loop_over_slices_has_to_fit():
    found = sliced(Borders(GRAPH), Segment(0, COUNT), Split(TANH, 0, 4))
    n = len(found.region.ops)
    check_schedule(GRAPH, (Segment(0, COUNT, Split(TANH, 0, 4, (Segment(0, n, Plain(found.choices)),))),))
    other = Choice((Part(3, found.choices[0][1].parts[0].schedule),))
    way = Split(TANH, 0, 4, (Segment(0, n, Plain(((found.choices[0][0], other),))),))
    with pytest.raises(
        ValueError, match=r"run in slices: equation \d+ \(scan\) runs 4 steps, but its parts have \[3\]"
    ):
        check_schedule(GRAPH, (Segment(0, COUNT, way),))
