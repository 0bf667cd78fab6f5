"""Compiles of a search whose fast compiles need more memory than those that count."""

from types import SimpleNamespace

from remat_plan.training.levels import Levels
from remat_plan.training.search import confirmed
from tests.training.test_levels import Stepped, memory


def search(schedules, budget_bytes, total, excess=1.15, held_bytes=0):
    """What a search comes to, and what was compiled, fast or not, in order."""
    mark, compiled = Stepped(*schedules), []
    mark.judge.hardware = SimpleNamespace(measured=False)

    def quick(choice):
        compiled.append(("fast", *choice))
        return memory(int(excess * total(*choice)), None)

    def final(choice):
        compiled.append(("final", *choice))
        return memory(total(*choice), None)

    measuring = SimpleNamespace(fast=True, compile=final)
    return confirmed(measuring, Levels((mark,), quick, held_bytes), budget_bytes), compiled


def test_what_is_fast_a_little_above_the_budget_is_compiled_with_default_options():
    found, compiled = search(range(10, 2000), 1000, lambda level: level)
    assert found.fits
    assert 970 <= found.choice[0] <= 1000
    assert compiled == [("fast", 1000), ("final", 1000)]


def test_what_is_far_off_says_where_to_look():
    for excess, total in ((1.0, lambda level: 40 + level), (1.1, lambda level: level // 2)):
        found, compiled = search(range(10, 400), 100, total, excess)
        assert found.fits
        assert found.memory.total_bytes >= 90
        assert [kind for kind, _ in compiled].count("fast") == 1
        assert len(compiled) <= 4


def test_the_least_is_found_as_the_least_and_met_as_a_budget():
    peaks = {10: 400, 30: 300, 60: 350, 1000: 2000}
    found, _ = search(peaks, 1, peaks.get)
    assert not found.fits
    assert found.memory.total_bytes == 300
    found, _ = search(peaks, 300, peaks.get)
    assert found.fits
    assert found.choice == (30,)
