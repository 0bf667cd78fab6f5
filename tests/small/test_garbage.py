"""The collector while plans are made: seldom, for as long as anybody plans, and then as it was."""

import gc
import threading

import pytest

from remat_plan.small import garbage


@pytest.fixture
def thresholds():
    """Python's own thresholds, whatever the tests run with."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield lambda: gc.get_threshold()[0]
    gc.set_threshold(*before)


def test_it_runs_seldom_and_is_never_off(thresholds):
    with garbage.seldom():
        assert thresholds() > 100_000
        assert gc.isenabled()
        with garbage.seldom():
            assert thresholds() > 100_000
        assert thresholds() > 100_000
    assert thresholds() == 700


def test_errors_and_interrupts_leave_it_as_it_was(thresholds):
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), garbage.seldom():
            raise error
        assert thresholds() == 700


def test_an_interrupt_right_after_the_change_undoes_it(thresholds, monkeypatch):
    enter = garbage._enter

    def interrupted(one):
        enter(one)
        raise KeyboardInterrupt

    monkeypatch.setattr(garbage, "_enter", interrupted)
    with pytest.raises(KeyboardInterrupt), garbage.seldom():
        pass
    assert thresholds() == 700
    monkeypatch.undo()
    with garbage.seldom():
        assert thresholds() > 100_000
    assert thresholds() == 700


def test_the_last_thread_undoes_it(thresholds):
    inside, leave = threading.Barrier(3), [threading.Event(), threading.Event()]

    def plan(number):
        with garbage.seldom():
            inside.wait(10)
            leave[number].wait(10)

    threads = [threading.Thread(target=plan, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    leave[0].set()
    threads[0].join(10)
    assert thresholds() > 100_000
    leave[1].set()
    threads[1].join(10)
    assert thresholds() == 700


@pytest.mark.parametrize("own", [0, 10**6])
def test_thresholds_that_are_off_or_higher_stay(thresholds, own):
    gc.set_threshold(own, 10, 10)
    with garbage.seldom():
        assert thresholds() == own
    assert thresholds() == own


def test_what_somebody_sets_meanwhile_stays(thresholds):
    with garbage.seldom():
        gc.set_threshold(5000, 10, 10)
    assert thresholds() == 5000
