"""Memory laws and recompute counts of the strategies, on chains of equal blocks."""

import functools
import math

import numpy as np
import pytest

from remat_plan.solve.binomial import advances
from tests.helpers import few
from tests.strategies import CARRY_BYTES, carries, chain, chain_judge, found, least, runs

SIZES = (16, 64, 256)
SHORT = SIZES[:2]
LONG = pytest.param((*SIZES, 1024), marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def judges():
    """Of a chain of so many layers."""
    return functools.cache(lambda n: chain_judge(chain(n)))


def blocks(judge):
    """How many blocks the planner sees."""
    return len(found(judge, "each_block").schedules[0])


@pytest.mark.parametrize("counts", [SIZES, LONG], ids=len)
def test_a_layer_is_a_block(judges, counts):
    assert [blocks(judges(n)) for n in counts] == list(counts)


def exponent(sizes, bytes_each):
    """Slope of log(bytes) against log(n)."""
    return np.polyfit(np.log(sizes), np.log(bytes_each), 1)[0]


@pytest.mark.parametrize("counts", [SIZES, LONG], ids=len)
def test_memory_needs_the_square_root(judges, counts):
    sizes = [carries(judges(n), found(judges(n), "memory").schedules[0]) for n in counts]
    assert 0.4 < exponent(counts, sizes) < 0.55, sizes
    assert all(a < b for a, b in zip(sizes, sizes[1:], strict=False))
    assert sizes[-1] < 6 * math.sqrt(counts[-1])


@pytest.mark.parametrize("counts", [SIZES, LONG], ids=len)
def test_memory_of_the_plain_step_is_linear(judges, counts):
    sizes = [carries(judges(n), judges(n).program.plain) for n in counts]
    assert 0.95 < exponent(counts, sizes) < 1.05, sizes


@pytest.mark.parametrize("counts", [SIZES, LONG], ids=len)
def test_log_needs_one_more_carry_for_each_doubling(judges, counts):
    sizes = [carries(judges(n), found(judges(n), "log").schedules[0]) for n in counts]
    steps = [(b - a) / 2 for a, b in zip(sizes, sizes[1:], strict=False)]  # sizes grow by four: two doublings
    assert all(0.5 <= step <= 1.6 for step in steps), sizes
    assert sizes[-1] < 3 * math.log2(counts[-1])


def test_budgeted_needs_the_square_root_too(judges):
    sizes = [carries(judges(n), least(judges(n), "budgeted")) for n in SHORT]
    assert 0.35 < exponent(SHORT, sizes) < 0.65, sizes


@pytest.mark.parametrize("n", few(SHORT, SHORT[:1]))
def test_counts(judges, n):
    judge = judges(n)
    assert runs(judge, judge.program.plain) == n
    assert n < runs(judge, least(judge, "memory")) <= 2 * n
    assert n < runs(judge, least(judge, "budgeted")) <= 2 * n
    assert runs(judge, found(judge, "each_block").schedules[0]) == 2 * n - 1
    assert runs(judge, found(judge, "nothing").schedules[0]) == 2 * n
    assert runs(judge, found(judge, "everything").schedules[0]) == n
    log = runs(judge, found(judge, "log").schedules[0])
    assert n < log <= n * math.log2(n) / 2 + n


@pytest.mark.parametrize(
    ("n", "slots"),
    [(16, 1), (16, 2), (16, 3), (16, 5), (16, 15), (64, 3), (64, 8), pytest.param(256, 7, marks=pytest.mark.slow)],
)
def test_binomial_runs_exactly_the_fewest_blocks(judges, n, slots):
    judge = judges(n)
    schedule = found(judge, "binomial", slots=slots).schedules[0]
    assert runs(judge, schedule) == advances(n, slots) + n


@pytest.mark.slow
def test_binomial_with_more_slots_runs_less_and_keeps_more(judges):
    judge = judges(64)
    schedules = [found(judge, "binomial", slots=slots).schedules[0] for slots in (3, 5, 9, 20, 40)]
    counts = [runs(judge, s) for s in schedules]
    sizes = [carries(judge, s) for s in schedules]
    assert counts == sorted(counts, reverse=True)
    assert sizes == sorted(sizes)
    assert len(set(counts)) == len(set(sizes)) == len(schedules)


def compiled_carries(judge, schedule):
    return (judge.compiled_bytes(schedule) - judge.owned_bytes) / CARRY_BYTES


@pytest.mark.slow
def test_compiled_laws_on_short_chains(judges):
    for name in ("memory", "log"):
        for n in (16, 64):
            schedule = least(judges(n), name)
            assert compiled_carries(judges(n), schedule) == pytest.approx(carries(judges(n), schedule), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), [("memory", (64, 256, 1024)), ("log", (16, 64, 256))])
def test_compiled_laws_on_long_chains(name, sizes):
    judges = [chain_judge(chain(n)) for n in sizes]
    got = [compiled_carries(s, least(s, name)) for s in judges]
    if name == "memory":
        assert 0.4 < exponent(sizes, got) < 0.55, got
    else:
        doublings = [math.log2(b / a) for a, b in zip(sizes, sizes[1:], strict=False)]
        rises = [b - a for a, b in zip(got, got[1:], strict=False)]
        assert all(0.5 * d <= rise <= 1.6 * d for d, rise in zip(doublings, rises, strict=True)), got
