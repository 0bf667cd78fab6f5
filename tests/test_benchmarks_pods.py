"""Pods: the decoder trains, the table is kept, and what must hold is checked by pass."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.authors.record import identity
from benchmarks.common import Options
from benchmarks.pods import table
from benchmarks.pods.configs import PODS, QUICK
from benchmarks.pods.decoder import build, by_hand
from benchmarks.pods.table import DEVICE, HAND, SAME, Row, facts_of
from tests.helpers import assert_trees_close

ROOT = Path(__file__).resolve().parents[1]


def test_a_step_by_hand_computes_what_the_step_does():
    training = build(QUICK["tiny"])
    keys = iter(jax.random.split(jax.random.key(0), 20))
    params = {n: 0.1 * jax.random.normal(next(keys), s.shape, s.dtype) for n, s in training.state[0].items()}
    opt = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), training.state[1])
    tokens = jax.random.randint(next(keys), training.batch.shape, 0, 256)
    args = jax.device_put(((params, opt), tokens), jax.tree.map(lambda s: s.sharding, (training.state, training.batch)))
    (state, loss), (other, theirs) = (jax.jit(training.step(wrap, identity))(*args) for wrap in (identity, by_hand))
    assert np.isfinite(loss)
    assert_trees_close((state[0], loss), (other[0], theirs), rtol=1e-2, atol=1e-3)
    assert all((state[0][name] != old).any() for name, old in params.items())


def test_pods_are_spread_over_all_of_their_chips():
    for pod in PODS.values():
        assert pod.fsdp * pod.tensor == pod.chips
        assert pod.sizes.kv_heads % pod.tensor == pod.sizes.width % pod.fsdp == pod.sizes.vocab % pod.tensor == 0
        assert pod.with_layers(2).sizes == replace(pod.sizes, layers=2)


def facts(**ours):
    sent = {"again": {"all-gather": [4, 1000]}, "backward": {"reduce-scatter": [2, 5000]}}
    hand = Row("a", HAND, 0, 90, 0, 1000.0, 1.0, sent)
    return facts_of([hand, replace(hand, step=DEVICE, budget_bytes=100, **{"peak_bytes": 98} | ours)], ["a"])


def test_what_must_hold_is_told():
    found = facts()
    assert found[0] == "over the budget: none (1 fitted steps)"
    assert {line.partition(": ")[2] for line in found[1:7]} == {"none"}
    assert found[7] == f"not made yet: a ({SAME})"
    for n, ours in enumerate((
        {"peak_bytes": 101},
        {"peak_bytes": 90},
        {"flops": 1001.0},
        {"collectives": {"again": {"all-gather": [4, 1010]}, "backward": {"all-reduce": [2, 5000]}}},
        {"collectives": {"backward": {"reduce-scatter": [2, 6000]}}},
        {"cpu_minutes": 31.0},
        {"problem": "refused"},
    )):  # fmt: skip
        assert f"a ({DEVICE}" in facts(**ours)[n]


def test_cells_are_beside_the_step_by_hand():
    pod = PODS["llama3_70b_v5p_64"]
    hand = Row("a", HAND, 0, 50 * 10**9, 0, 100.0, 1.0, {"again": {"all-gather": [4, 10**9]}})
    ours = Row("a", SAME, 50 * 10**9, 49 * 10**9, 90, 90.0, 0.98, {}, 3, 5.0, 4.0)
    assert hand.cells(pod, hand)[4:6] == ("", "50.0")
    assert ours.cells(pod, hand)[4:] == (
        *("50.0", "49.0", "2.0", "-10.0", "-2.0", "0.0", "0.0", "0.0"),
        *("3", "5.0", "4.0"),
    )
    assert replace(ours, problem="refused").cells(pod, hand)[4] == "refused"


@pytest.mark.slow
def test_the_table_is_made_and_goes_on_where_it_stopped(tmp_path, capsys):
    options = Options(quick=True, results=tmp_path)
    made = table.run(options)
    assert len(made.rows) == 3
    assert "without a figure: none" in made.facts
    capsys.readouterr()
    assert table.run(options).rows == made.rows


@pytest.mark.slow
def test_eight_devices_send_what_the_step_by_hand_does():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    env = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _ON_EIGHT], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


_ON_EIGHT = """
from dataclasses import replace
from benchmarks.pods.configs import QUICK
from benchmarks.pods.table import SAME, make_fitted, make_hand

pod = replace(QUICK["tiny"], chips=8, tensor=2, batch=1, sequence=512)
hand = make_hand("tiny", pod, target=pod.target)
ours = make_fitted("tiny", SAME, pod, hand, target=pod.target)
assert ours.peak_bytes <= ours.budget_bytes == hand.peak_bytes, ours
assert hand.sent("forward") and hand.sent("again") and hand.sent("backward"), hand
assert ours.sent("again") <= 1.01 * hand.sent("again"), (ours, hand)
assert ours.summed == hand.summed, (ours, hand)
"""
