"""Wherever a person could write ``jax.checkpoint``, the plan at that peak has at most its FLOPs."""

import pytest

from benchmarks.hands import HANDS, STRUCTURES, compare

QUICK = ("branch in scan",)


KINDS = ("gelu alone", "mixed precision", "group norm, convolutions")


def behind(structure, hands, size="small"):
    return {(row.policy, row.behind) for row in compare(structure, size, hands) if row.behind}


@pytest.mark.parametrize("structure", QUICK)
@pytest.mark.slow
def test_plans_are_not_behind_hands(structure):
    assert not behind(structure, ("block", "dots"))


@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS[1:])])
def test_plans_of_other_blocks_are_not_behind(kind):
    assert not behind(kind, ("block",), "tiny")


@pytest.mark.slow
@pytest.mark.parametrize("structure", STRUCTURES)
def test_plans_are_not_behind_any_hand(structure):
    assert not behind(structure, tuple(HANDS))
