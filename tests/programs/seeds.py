"""Many seeds, here or in a process with eight devices.

In: seeds. Out: nothing, or ``AssertionError`` with every seed that failed. As a program it takes numbers of seeds:
``XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.programs.seeds 704 708``.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax

from tests.programs.properties import check

ROOT = Path(__file__).resolve().parents[2]
DEVICES = 8
FULL, SMALL = {}, {"longest": 4, "depth": 1}
"""Sizes of programs: what a seed is by default, and what is quick."""

KNOWN_WARNINGS = (
    "remat_plan. a while loop has no known trip count",
    "remat_plan. the cost of primitive .* is not known",
    "XLA.CPU of jaxlib .* undoes jax.checkpoint",  # only old versions
)
"""What random programs may be told; every other warning is an error."""


def check_all(seeds, **sizes):
    """Every seed, so that one that fails does not hide the others."""
    failed = {}
    for seed in seeds:
        try:
            check(seed, **sizes)
        except Exception as error:
            failed[seed] = f"{type(error).__name__}: {error}"
    assert not failed, failed


def check_on_devices(seeds, small=False):
    """The same as ``check_all`` in a process with eight devices: the meshes of programs take all there are."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    command = [sys.executable, "-m", "tests.programs.seeds", *["--small"] * small, *map(str, seeds)]
    env = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def main(words):
    warnings.simplefilter("error")
    for message in KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message, UserWarning)
    assert jax.device_count() == DEVICES, jax.devices()
    check_all([int(word) for word in words if word.isdigit()], **(SMALL if "--small" in words else FULL))


if __name__ == "__main__":
    main(sys.argv[1:])
