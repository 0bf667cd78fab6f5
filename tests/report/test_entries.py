"""Folding of equal groups: nothing is lost, and what repeats is one run."""

import random

import pytest

from remat_plan.report.entries import Run, fold


def unfold(ids, runs):
    return [i for run in runs for i in ids[run.start : run.start + run.period] * run.count]


@pytest.mark.parametrize("seed", range(20))
def test_the_runs_stand_for_all_rows(seed):
    rng = random.Random(seed)
    ids = [i for _ in range(20) for i in [rng.randrange(3)] * rng.randrange(4)]
    assert unfold(ids, fold(ids)) == ids


def test_nothing_gives_nothing():
    assert fold([]) == ()


def test_a_long_chain_is_one_run():
    assert fold([7] * 100_000) == (Run(0, 1, 100_000),)


@pytest.mark.parametrize("period", [2, 3, 4, 24])
def test_a_repeated_group_is_one_run(period):
    assert fold(list(range(period)) * 500) == (Run(0, period, 500),)


def test_the_first_and_last_may_differ():
    assert fold([9, *[1, 2] * 10, 8]) == (Run(0, 1, 1), Run(1, 2, 10), Run(21, 1, 1))


def test_a_row_like_the_first_of_a_group_stays_outside():
    """A, then three times (A, B), rather than two A, B, and two times (A, B)."""
    assert fold([1, 1, 2, 1, 2, 1, 2]) == (Run(0, 1, 1), Run(1, 2, 3))


def test_the_shortest_period_is_taken():
    assert fold([1, 2] * 8) == (Run(0, 2, 8),)


def test_repeats_within_a_group_do_not_hide_it():
    assert fold([1, 1, 1, 2] * 6) == (Run(0, 4, 6),)
