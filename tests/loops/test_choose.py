"""The choice of a schedule: fits, is the cheapest, depends on nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_plan.loops import choose as module
from remat_plan.loops.choose import Schedule, Sizes, choose
from remat_plan.small.budget import BudgetError
from remat_plan.solve.binomial import advances

SIZES = Sizes(1000, 100, 300, 10)


def described(sizes, schedule):
    known = {c.schedule: c for c in module.checkpoint_candidates(sizes)}
    return known.get(schedule) or module.binomial_candidate(sizes, schedule.slots, schedule.tape)


def test_from_plain_to_one_slot():
    plain = SIZES.plain_bytes
    assert choose(SIZES, plain, "scan").kind == "plain"
    assert described(SIZES, choose(SIZES, plain - 1, "scan")).evaluations < 0.6 * SIZES.length
    small = choose(SIZES, 3000, "scan")
    assert small.kind == "binomial"
    assert small.slots > 1
    least = module.binomial_candidate(SIZES, 1, 1).size_bytes
    assert choose(SIZES, least, "scan") == Schedule("binomial", (), 1, 1)
    with pytest.raises(BudgetError) as raised:
        choose(SIZES, least - 1, "scan")
    assert raised.value.minimum_bytes == least


@given(st.integers(2, 3000), st.integers(1, 500), st.integers(0, 2000), st.integers(1, 300_000))
def test_fits_and_more_memory_is_never_dearer(length, carry, residual, budget):
    sizes = Sizes(length, carry, residual, 0)
    cost = []
    for limit in (budget, 2 * budget, 8 * budget):
        try:
            chosen = described(sizes, choose(sizes, limit, "scan"))
        except BudgetError:
            cost.append(float("inf"))
            continue
        assert chosen.size_bytes <= limit
        extra = 0.06 * length if chosen.schedule.kind == "binomial" else 0
        cost.append(chosen.evaluations + extra)
    assert cost == sorted(cost, reverse=True)


def test_slots_are_traded_for_a_tape():
    """Small residuals: a longer tape and fewer slots run fewer steps than slots alone."""
    sizes = Sizes(1000, 100, 20, 0)
    chosen = choose(sizes, 3000, "scan", tabled=True)
    slots = (3000 - sizes.working_bytes - 20) // 100
    assert chosen.tape > 1
    assert advances(1000, chosen.slots, chosen.tape) < advances(1000, slots, 1)
