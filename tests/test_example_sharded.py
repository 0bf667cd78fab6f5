"""``examples/sharded_training.py`` runs as a user runs it: as a program, whose output is all that is looked at."""

import re

import pytest

from tests.run_example import run_example

TINY = "--layers 2 --width 16 --batch 8 --seq 32 --steps 2".split()


def train(*layouts):
    """Train in some layouts within a budget; return what each device holds of weights and optimizer, MiB."""
    done = run_example("sharded_training.py", *TINY, "--budget", "90%", "--layouts", *layouts, JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\w+): mesh of", done.stdout, re.MULTILINE) == list(layouts)
    peaks = [float(number) for number in re.findall(r"(?:as written|fitted|budget) +([\d.]+) MiB", done.stdout)]
    assert all(fitted <= budget <= plain for plain, fitted, budget in zip(*[iter(peaks)] * 3, strict=True))
    assert len(re.findall(r"at most [\d.e+-]+ from as written", done.stdout)) == len(layouts)
    return [float(number) for number in re.findall(r"as written.* ([\d.]+) MiB$", done.stdout, re.MULTILINE)]


@pytest.mark.texts
@pytest.mark.slow
def test_it_trains_within_the_budget():
    assert len(train("fsdp")) == 1


@pytest.mark.slow
def test_it_trains_within_the_budget_in_every_layout():
    copies, fsdp, tensor = train("copies", "fsdp", "tensor")
    assert fsdp <= copies > tensor


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "12"], "--batch and --width must be multiples of 8"),
        pytest.param(["--layers", "0"], "--layers 0: give a positive number", marks=pytest.mark.slow),
        pytest.param(
            [*TINY, "--layouts", "copies", "--budget", "1KB"], "error: budget 1 kB", marks=pytest.mark.slow, id="1KB"
        ),
    ],
)
def test_it_explains_bad_input(arguments, message):
    done = run_example("sharded_training.py", *arguments, JAX_PLATFORMS="cpu")
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
