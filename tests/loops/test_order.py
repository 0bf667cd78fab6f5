"""The order in which steps really run: printed from the body, compared with the schedule and with its figures."""

import functools

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.solve.binomial import advances, make_splits
from tests.helpers import few
from tests.solve.reference import actions, advances_online, stored_after


def run_order(loop, length):
    """Run the gradient of a loop whose body tells which step it is; return the steps in order."""
    seen = []

    def body(h, step):
        jax.debug.callback(lambda s: seen.append(int(s)), step, ordered=False)
        return jnp.sin(h) * step

    jax.block_until_ready(jax.jit(jax.grad(functools.partial(loop, body)))(0.5))
    jax.effects_barrier()
    return seen


def scanned(options, length, body, h):
    def step(h, i):
        return body(h, i), None

    return rp.scan(step, h, jnp.arange(length), **options)[0]


def scheduled(length, slots, tape=1):
    """The steps that a schedule runs, in its order."""
    order = []
    for action in actions(length, slots, tape):
        if action.kind in ("advance", "tape"):
            order += range(action.start, action.end)
    return order


@pytest.mark.parametrize(("length", "slots"), few([(10, 3), (11, 3), (6, 1), (5, 9)], [(10, 3), (5, 9)]))
def test_binomial_runs_the_schedule(length, slots):
    order = run_order(functools.partial(scanned, {"slots": slots}, length), length)
    assert order == scheduled(length, min(slots, length))
    assert len(order) == advances(length, slots) + length


def test_ten_steps_with_three_slots_by_hand():
    """Stored at 0, 4, 7 on the way; then back from the end, each part from its own stored carry."""
    order = run_order(functools.partial(scanned, {"slots": 3}, 10), 10)
    assert order[:10] == list(range(10)), "the forward pass runs every step once"
    assert order[10:] == [7, 8, 7, 4, 5, 6, 5, 4, 0, 1, 2, 3, 2, 1, 0]
    assert len(order) == 15 + 10


def test_a_tape_of_several_steps_saves_runs():
    budget = 4 * 4 + 3 * 4 + 4 * 4 + 4 * 20
    order = run_order(functools.partial(scanned, {"schedule": "binomial", "budget": budget}, 24), 24)
    assert sorted(set(order)) == list(range(24))
    assert len(order) < advances(24, 4) + 24


@pytest.mark.parametrize(
    ("schedule", "passes"),
    few([("plain", 1), ("each", 2), ("sqrt", 2), (("nested", (4, 4, 4)), 3), ("log", 3)], [("plain", 1), ("log", 3)]),
)
def test_nested_schedules_run_so_many_forward_passes(schedule, passes):
    order = run_order(functools.partial(scanned, {"schedule": schedule}, 61), 61)
    assert order[:61] == list(range(61))
    assert len(order) <= passes * 61
    assert len(order) >= passes * 61 - (passes - 1) * 16, "tails of a level are in fewer levels"


@pytest.mark.parametrize(("length", "slots"), few([(12, 3), (7, 1), (4, 8)], [(12, 3)]))
def test_the_online_schedule_runs_as_on_paper(length, slots):
    def loop(body, h):
        carry = rp.while_loop(lambda c: c[1] < length, lambda c: (body(c[0], c[1]), c[1] + 1), (h, 0), 100, slots=slots)
        return carry[0]

    order = run_order(loop, length)
    assert order[:length] == list(range(length))
    expected = list(range(length))
    stack, end = list(stored_after(length, slots)), length
    splits = make_splits(100, slots)
    while stack:
        start = stack.pop()
        held, last = splits.descend(start, end, slots - len(stack))
        expected += range(start, end)
        stack, end = [*stack, *held], last
    assert order == expected
    assert len(order) == 2 * length + advances_online(length, slots)
