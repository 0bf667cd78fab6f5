"""Training steps on several devices: bytes of one device, the values of one device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("quick_search")

ROOT = Path(__file__).resolve().parents[1]


def run(*cases):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    env = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "tests.sharded_steps", *cases], cwd=ROOT, env=env, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_data_parallel_and_tensor_parallel():
    assert len(run("fsdp,auto,unset", "tensor,auto,unset", "replicated,explicit,unset").splitlines()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["replicated", "fsdp", "tensor"])
def test_every_mesh(layout):
    kinds = ["auto", "explicit"] if layout != "tensor" else ["auto"]
    cases = [f"{layout},{kind},{known}" for kind in kinds for known in ("set", "unset")]
    assert len(run(*cases).splitlines()) == len(cases)


@pytest.mark.slow
def test_plans_say_where_bytes_are_of_all_devices():
    run("notes")


@pytest.mark.slow
def test_gradients_outside_of_jit_see_where_arrays_lie():
    run("gradients")


def test_a_plan_of_sharded_arrays_holds_inside_jit():
    run("where")


@pytest.mark.slow
def test_calls_compile_what_jit_would_at_most():
    run("calls")


def test_state_that_lies_nowhere_counts_as_the_compiler_lays_it():
    run("unplaced")
