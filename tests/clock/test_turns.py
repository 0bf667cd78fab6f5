"""Programs timed in turns: their order, what the clock leaves out, and the interval around a ratio."""

import random
import time

import jax
import jax.numpy as jnp
import pytest

from remat_plan.clock.steps import attached, check_arrays, with_values
from remat_plan.clock.turns import Ratio, Run, Samples, time_in_turns


def logged(name, log, arguments=tuple):
    return Run(lambda *args: log.append(name), arguments)


def test_every_round_runs_each_in_turn_and_orders_are_balanced():
    log = []
    runs = [logged("a", log), logged("b", log)]
    runs = [Run(run.call, run.arguments) for run in runs]
    samples = time_in_turns(runs, 8)
    calls = [s.calls for s in samples]
    timed = log[2 + 2 :]  # after one call to compile and one to find out how long it takes
    rounds, rest = [], list(timed)
    while rest:
        first = rest[0]
        order = [first, "b" if first == "a" else "a"]
        rounds.append(order)
        for name in order:
            count = 1 + calls["ab".index(name)]  # each turn begins with a call that is not timed
            assert rest[:count] == [name] * count
            rest = rest[count:]
    assert len(rounds) == 8
    assert rounds.count(["a", "b"]) == rounds.count(["b", "a"]) == 4
    assert all(len(s.seconds) == len(s.processor_seconds) == 8 for s in samples)


def test_arguments_are_made_anew_for_each_call_so_that_they_may_be_donated():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.zeros(1000)
    (samples,) = time_in_turns([Run(step, lambda: (jnp.copy(x),))], 3)
    assert samples.median_seconds > 0
    assert float(x.sum()) == 0  # the original is still there
    with pytest.raises((RuntimeError, ValueError), match=r"[Dd]onated|deleted"):
        time_in_turns([Run(step, lambda: (x,))], 3)


def test_the_interval_holds_the_true_median_nineteen_times_of_twenty():
    draw = random.Random(0)
    held = 0
    for _ in range(400):
        before = [1.0] * 15
        after = [1.1 * draw.lognormvariate(0, 0.2) for _ in before]
        ratio = Ratio.of(before, after)
        assert ratio.low <= ratio.value <= ratio.high
        held += ratio.low <= 1.1 <= ratio.high
    assert 0.93 <= held / 400 <= 0.995


def test_what_another_program_left_behind_is_not_timed():
    """The first call after another program is slow, as where its memory was handed back to the host meanwhile."""
    last = []

    def call(name):
        if last[-1:] != [name]:
            time.sleep(0.05)
        last.append(name)

    samples = time_in_turns([Run(lambda: call("a"), tuple), Run(lambda: call("b"), tuple)], 4)
    assert all(s.median_seconds < 0.02 for s in samples)


def test_slow_rounds_fall_on_both_and_do_not_change_the_ratio():
    before = [1.0, 5.0, 1.0, 3.0, 1.0, 9.0, 1.0]
    ratio = Ratio.of(before, [1.5 * x for x in before])
    assert ratio.value == ratio.low == ratio.high == 1.5


def test_few_rounds_give_the_whole_range():
    assert Ratio.of([1.0] * 4, [4.0, 1.0, 3.0, 2.0]) == Ratio(2.5, 1.0, 4.0)
    assert Samples((7.0,), (7.0,), 1).spread_seconds == 0.0
    assert Samples((2.0, 1.0, 5.0, 3.0, 4.0), (), 1).spread_seconds == 2.0


@pytest.mark.parametrize("name", ["gpu:h100", "tpu:v5e:1x1", "tpu"])
def test_nothing_runs_on_a_device_that_is_not_attached(name):
    with pytest.raises(ValueError, match=r"not attached.*compiled_overhead"):
        attached(name, "this plan")


def test_shapes_without_values_are_refused_and_can_be_filled():
    shapes = {"w": jax.ShapeDtypeStruct((2, 3), "float32"), "n": jax.ShapeDtypeStruct((4,), "int32"), "k": 2.0}
    with pytest.raises(TypeError, match=r"2 of its arguments.*int32\[4\]"):
        check_arrays(jax.tree.leaves(shapes), "plan.measure")
    filled = with_values(shapes)
    check_arrays(jax.tree.leaves(filled), "plan.measure")
    assert filled["w"].shape == (2, 3)
    assert float(jnp.abs(filled["w"]).max()) > 0
    assert filled["n"].tolist() == [0] * 4
    assert filled["k"] == 2.0
