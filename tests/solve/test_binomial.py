"""The binomial schedule against a dynamic program over all schedules, and against the formulas of the paper."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_plan.solve import binomial
from remat_plan.solve.binomial import advances, beta, make_splits, repetitions, slots_for, useful_slots
from tests.solve.reference import actions


@functools.cache
def fewest(length, slots, tape):
    """Brute force: the best place of the next stored carry, every time."""
    if length <= tape:
        return 0
    if slots == 1:
        return length - tape + fewest(length - tape, 1, tape)
    parts = ((j, fewest(length - j, slots - 1, tape), fewest(j, slots, tape)) for j in range(1, length))
    return min(sum(part) for part in parts)


def executed(length, slots, tape=1):
    """Carry a schedule out on paper; return how many steps advanced, and check every action."""
    held, at, advanced, taped, reversed_steps = {}, 0, 0, [], []
    for action in actions(length, slots, tape):
        if action.kind in ("store", "restore"):
            assert 0 <= action.slot < slots
        if action.kind == "store":
            assert action.start == at
            held[action.slot] = at
        elif action.kind == "restore":
            assert held[action.slot] == action.start
            at = action.start
        elif action.kind == "advance":
            assert action.start == at < action.end
            advanced, at = advanced + action.end - action.start, action.end
        elif action.kind == "tape":
            assert action.start == at
            assert action.end - action.start <= tape
            taped = list(range(action.start, action.end))
        else:
            assert [*range(action.start, action.end)] == taped
            reversed_steps += taped[::-1]
    assert reversed_steps == [*range(length)][::-1]
    return advanced


@pytest.mark.parametrize("tape", [1, 2, 5])
@pytest.mark.parametrize("slots", [1, 2, 3, 6])
def test_no_schedule_needs_fewer_steps(slots, tape):
    for length in range(41):
        assert executed(length, slots, tape) == advances(length, slots, tape) == fewest(length, slots, tape)


@given(st.integers(0, 2000), st.integers(1, 40), st.integers(1, 9))
def test_the_schedule_has_the_count_of_the_formula(length, slots, tape):
    assert executed(length, slots, tape) == advances(length, slots, tape)
    assert advances(length, useful_slots(length, slots, tape), tape) == advances(length, slots, tape)


def test_figures_of_the_paper():
    # With 3 slots, 10 = beta(3, 2) steps need no step advanced more than twice, 20 = beta(3, 3) thrice.
    assert [beta(3, r) for r in range(4)] == [1, 4, 10, 20]
    assert repetitions(10, 3) == 2
    assert repetitions(11, 3) == 3
    assert advances(10, 3) == 2 * 10 - beta(4, 1) == 15
    # One slot: from the start again for every step.
    assert advances(10, 1) == 45
    # Slots for all: every step advances once, but for the last.
    assert advances(10, 10) == 9


def test_splits_of_the_paper():
    splits = make_splits(10, 3)
    # Ten steps: store at 0, at beta(3, 1) = 4, at 4 + beta(2, 1) = 7; the rest is beta(1, 1) + 1.
    assert splits.descend(0, 10, 3) == ((0, 4, 7), 9)


def test_the_table_is_small_whatever_the_length():
    assert make_splits(1_000_000, 40).table.size == 41 * 6
    assert make_splits(binomial.INT32_MAX, 40).table.size < 41 * 12
    assert make_splits(1_000_000, 2).table.shape == (3, 1414)
    table = make_splits(1_000_000, 40).table
    assert table.dtype == np.int32
    assert table[40, 5] == beta(40, 5)


def test_the_table_is_exact_in_doubles_and_cut_at_the_largest_integer():
    table = make_splits(binomial.INT32_MAX, 7, 3).table
    for s in range(8):
        for r in range(table.shape[1]):
            assert table[s, r] == min(3 * beta(s, r), binomial.INT32_MAX)


def test_slots_for_is_the_least():
    for length in (1, 2, 10, 1024, 99_999):
        for most in (1, 2, 3):
            slots = slots_for(length, most)
            assert repetitions(length, slots) <= most
            assert slots == 1 or repetitions(length, slots - 1) > most


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="slots=0: at least 1 slot"):
        make_splits(5, 0)
    with pytest.raises(ValueError, match="tape=0"):
        make_splits(5, 1, 0)
    with pytest.raises(ValueError, match="length=-1"):
        advances(-1, 2)
