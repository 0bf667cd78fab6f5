"""The local search of small programs: its steps lead to schedules that can run, and it ends with better ones."""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from remat_plan.cost.builder import Rules
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import Segment, around, as_is, saving
from remat_plan.graph.valid import check_schedule
from remat_plan.planning.constraints import Constraints
from remat_plan.planning.cuts import find_cuts
from remat_plan.planning.honours import honours
from remat_plan.planning.improve import improved
from remat_plan.planning.limits import NO_LIMITS, resolve
from remat_plan.planning.moves import Moves, can_move
from tests.helpers import CPU, assert_trees_close, traced, under

W, X = jnp.ones((16, 16)), jnp.ones((64, 16))


def loss(w, x):
    for _ in range(3):
        x = checkpoint_name(jnp.tanh(x @ w), "hidden")
    return jnp.sum(x * x)


@functools.cache
def program():
    return traced(loss, W, X)


def moves(constraints=None):
    graph = program().graph
    limits = NO_LIMITS if constraints is None else resolve(graph, constraints)
    return Moves(graph, find_cuts(graph, limits=limits))


def starts():
    """A schedule of each shape: as it is, one segment, several, segments inside segments."""
    n = len(program().graph.ops)
    value = program().graph.ops[1].outputs[0]
    return [
        (as_is(0, n),),
        (saving(0, n, [value]),),
        (saving(0, 3, [value]), as_is(3, 5), saving(5, n)),
        (around(0, 6, (saving(0, 3), as_is(3, 5), saving(5, 6))), as_is(6, n)),
    ]


def near(schedule, constraints=None):
    """All neighbours of a schedule."""
    return [made for made in (edit() for edit in moves(constraints).neighbours(schedule)) if made is not None]


@pytest.mark.parametrize("number", range(4))
def test_every_neighbour_can_run(number):
    start = starts()[number]
    found = near(start)
    assert len(found) >= 8
    for schedule in found:
        check_schedule(program().graph, schedule)


def test_steps_lead_from_one_shape_to_each_other_one():
    """A value more, another border, a segment around two, and back to the program as it is."""
    plain, one, several, nested = starts()
    n, value = plain[-1].end, one[0].saved[0]
    assert (saving(0, n),) in near(plain)
    assert one in near((saving(0, n),))
    assert (saving(0, 2, [value]), as_is(2, 5), saving(5, n)) in near(several)
    assert (*nested[0].children, nested[1]) in near(nested)
    assert nested in near((*nested[0].children, nested[1]))
    assert plain in near(one)


@pytest.mark.parametrize("constraints", [Constraints(("hidden",)), Constraints((), ("hidden",))], ids="kr")
def test_neighbours_do_what_the_user_asks_for(constraints):
    graph = program().graph
    limits = resolve(graph, constraints)
    n = len(graph.ops)
    hidden = [v for op in graph.ops[:n] for v in op.outputs if op.primitive == "tanh"]
    start = (saving(0, n, hidden if constraints.must_save else ()),)
    found = near(start, constraints)
    assert found
    assert all(honours(graph, limits, schedule) for schedule in found)
    assert not all(honours(graph, limits, schedule) for schedule in near(start))


def test_structures_are_left_to_the_chain():
    def scanned(w, x):
        return jnp.sum(jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0])

    assert can_move(program().graph)
    assert not can_move(traced(scanned, W, X).graph)


def test_gradients_of_what_is_found():
    found = improved([starts()[0]], moves().neighbours, cost, 60)
    assert len(found) >= 2
    w, x = jnp.sin(jnp.arange(256.0)).reshape(16, 16) / 4, jnp.cos(jnp.arange(1024.0)).reshape(64, 16)
    want = jax.grad(loss)(w, x)
    for schedule in found:
        assert_trees_close(jax.jit(jax.grad(under(program(), schedule)))(w, x), want, 1e-4, 1e-5)


def cost(schedule):
    timeline = StepProgram(Rules(program().graph, CPU)).loss_timeline(schedule)
    return timeline.peak_bytes, timeline.seconds


def test_what_is_found_beats_what_it_began_with():
    begin = [starts()[0], starts()[2]]
    costs = [cost(s) for s in improved(begin, moves().neighbours, cost, 200)]
    assert costs == sorted(costs)
    assert all(a[1] > b[1] for a, b in itertools.pairwise(costs))
    for peak, seconds in map(cost, begin):
        assert any(p <= peak and s <= seconds * (1 + 1e-6) for p, s in costs)
    assert costs[0][0] < min(cost(s)[0] for s in begin)


def place(number):
    return (Segment(number, number + 1),)


def line(heights):
    """A toy: schedules are places on a line, neighbours are beside each other; all need the same bytes."""

    def neighbours(schedule):
        here = schedule[0].start
        return [lambda n=n: place(n) for n in (here - 1, here + 1) if 0 <= n < len(heights)]

    asked = []

    def judged(schedule):
        asked.append(schedule[0].start)
        return 1, float(heights[schedule[0].start])

    return neighbours, judged, asked


def test_a_worse_schedule_may_be_on_the_way():
    neighbours, judged, _ = line([5, 6, 3, 4, 1])
    assert improved([place(0)], neighbours, judged, 10) == (place(4),)


def test_no_more_are_judged_than_allowed_and_none_twice():
    neighbours, judged, asked = line(range(100, 0, -1))
    assert improved([place(0), place(0)], neighbours, judged, 7) == (place(7),)
    assert asked == list(range(8))
