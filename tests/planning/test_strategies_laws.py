"""Memory laws and recompute counts of the strategies, on chains of equal blocks."""

import math

import numpy as np
import pytest

from remat_plan.solve.binomial import advances
from tests.strategies import CARRY_BYTES, carries, chain, chain_session, found, least, owned_bytes, runs

SIZES = (16, 64, 256, 1024)


@pytest.fixture(scope="module")
def sessions():
    return {n: chain_session(chain(n)) for n in SIZES}


def blocks(session):
    """How many blocks the planner sees."""
    return len(found(session, "each_block").schedules[0])


def test_a_layer_is_a_block(sessions):
    assert [blocks(sessions[n]) for n in SIZES] == list(SIZES)


def exponent(sizes, bytes_each):
    """Slope of log(bytes) against log(n)."""
    return np.polyfit(np.log(sizes), np.log(bytes_each), 1)[0]


def test_memory_needs_the_square_root(sessions):
    sizes = [carries(sessions[n], found(sessions[n], "memory").schedules[0]) for n in SIZES]
    assert 0.4 < exponent(SIZES, sizes) < 0.55, sizes
    assert all(a < b for a, b in zip(sizes, sizes[1:], strict=False))
    assert sizes[-1] < 6 * math.sqrt(SIZES[-1])


def test_memory_of_the_plain_step_is_linear(sessions):
    sizes = [carries(sessions[n], sessions[n].program.plain) for n in SIZES]
    assert 0.95 < exponent(SIZES, sizes) < 1.05, sizes


def test_log_needs_one_more_carry_for_each_doubling(sessions):
    sizes = [carries(sessions[n], found(sessions[n], "log").schedules[0]) for n in SIZES]
    steps = [(b - a) / 2 for a, b in zip(sizes, sizes[1:], strict=False)]  # sizes grow by four: two doublings
    assert all(0.5 <= step <= 1.6 for step in steps), sizes
    assert sizes[-1] < 3 * math.log2(SIZES[-1])


def test_budgeted_needs_the_square_root_too(sessions):
    sizes = [carries(sessions[n], least(sessions[n], "budgeted")) for n in SIZES[:2]]
    assert 0.35 < exponent(SIZES[:2], sizes) < 0.65, sizes


@pytest.mark.parametrize("n", SIZES[:2])
def test_counts(sessions, n):
    session = sessions[n]
    assert runs(session, session.program.plain) == n
    assert n < runs(session, least(session, "memory")) <= 2 * n
    assert n < runs(session, least(session, "budgeted")) <= 2 * n
    assert runs(session, found(session, "each_block").schedules[0]) == 2 * n - 1
    assert runs(session, found(session, "nothing").schedules[0]) == 2 * n
    assert runs(session, found(session, "everything").schedules[0]) == n
    log = runs(session, found(session, "log").schedules[0])
    assert n < log <= n * math.log2(n) / 2 + n


@pytest.mark.parametrize(("n", "slots"), [(16, 1), (16, 2), (16, 3), (16, 5), (16, 15), (64, 3), (64, 8), (256, 7)])
def test_binomial_runs_exactly_the_fewest_blocks(sessions, n, slots):
    session = sessions[n]
    schedule = found(session, "binomial", slots=slots).schedules[0]
    assert runs(session, schedule) == advances(n, slots) + n


def test_binomial_with_more_slots_runs_less_and_keeps_more(sessions):
    session = sessions[64]
    schedules = [found(session, "binomial", slots=slots).schedules[0] for slots in (3, 5, 9, 20, 40)]
    counts = [runs(session, s) for s in schedules]
    sizes = [carries(session, s) for s in schedules]
    assert counts == sorted(counts, reverse=True)
    assert sizes == sorted(sizes)
    assert len(set(counts)) == len(set(sizes)) == len(schedules)


def compiled_carries(session, schedule):
    return (session.compiled_bytes(schedule) - owned_bytes(session)) / CARRY_BYTES


def test_compiled_laws_on_short_chains(sessions):
    for name in ("memory", "log"):
        for n in (16, 64):
            schedule = least(sessions[n], name)
            assert compiled_carries(sessions[n], schedule) == pytest.approx(carries(sessions[n], schedule), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), [("memory", (64, 256, 1024)), ("log", (16, 64, 256))])
def test_compiled_laws_on_long_chains(name, sizes):
    sessions = [chain_session(chain(n)) for n in sizes]
    got = [compiled_carries(s, least(s, name)) for s in sessions]
    if name == "memory":
        assert 0.4 < exponent(sizes, got) < 0.55, got
    else:
        doublings = [math.log2(b / a) for a, b in zip(sizes, sizes[1:], strict=False)]
        rises = [b - a for a, b in zip(got, got[1:], strict=False)]
        assert all(0.5 * d <= rise <= 1.6 * d for d, rise in zip(doublings, rises, strict=True)), got
