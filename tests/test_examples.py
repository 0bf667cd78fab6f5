"""The examples run as a user runs them: as programs, whose output is all that is looked at."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TINY = "--width 32 --heads 2 --seq 64 --batch 4 --steps 8 --lr 0.01".split()
QUICK = ("--dropout", "0")
"""Random masks double the time to compile the unrolled layers, which is most of the time of a run; the scan has them."""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / script), *arguments],
        env=os.environ | {"COLUMNS": "200", "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        timeout=600,
    )


def row(name: str, output: str) -> list[float]:
    """Return the numbers of one row of the table."""
    (found,) = re.findall(rf"^{name} +(.*)$", output, re.MULTILINE)
    return [float(number.replace(",", "")) for number in re.findall(r"[\d,.]+", found)]


def test_train_gpt_trains_within_its_budget(tmp_path: Path) -> None:
    picture = tmp_path / "memory.png"
    done = run("train_gpt.py", *TINY, *QUICK, "--layers", "3", "--budget", "50%", "--out", str(picture))
    assert done.returncode == 0, done.stderr

    plain, planned = row("peak of loss and gradients", done.stdout)
    (budget,) = row("budget for the first row", done.stdout)
    assert 0 < planned <= budget <= 0.5 * plain + 0.1  # MiB, to one decimal
    plain, planned = row("peak of the whole step", done.stdout)
    assert planned < 0.8 * plain
    assert all(speed > 0 for speed in row("whole steps per second", done.stdout))

    (difference,) = re.findall(r"differ by ([\d.e+-]+) at most", done.stdout)
    assert float(difference) < 1e-3
    first, last, steps = re.findall(r"Loss ([\d.]+) -> ([\d.]+) in (\d+) planned steps", done.stdout)[0]
    assert float(last) < float(first) - 0.5
    assert int(steps) == 8
    assert done.stdout.endswith(f"Memory over time: {picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_train_gpt_says_why_a_budget_is_impossible(tmp_path: Path) -> None:
    picture = tmp_path / "memory.png"
    done = run("train_gpt.py", *TINY, *QUICK, "--scan", "--layers", "1", "--budget", "1KB", "--out", str(picture))
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "minimum" in done.stderr.lower()
    assert not picture.exists()


def code_of(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str) -> Any:
    """Run a script that only reads its arguments in this process, where JAX is imported; return its exit code."""
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    return left.value.code


def test_train_gpt_explains_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert not code_of(monkeypatch, "train_gpt.py", "--help")
    said = capsys.readouterr().out
    for flag in "layers width heads seq batch budget target steps lr seed dropout out".split():
        assert f"--{flag} " in said
    assert "(default: 40%)" in said
    assert "%%" not in said


def test_train_gpt_refuses_heads_that_do_not_divide_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(monkeypatch, "train_gpt.py", "--width", "32", "--heads", "5") == 2
    assert "--heads 5 does not divide --width 32" in capsys.readouterr().err


@pytest.mark.slow
def test_train_gpt_scans_its_layers(tmp_path: Path) -> None:
    picture = tmp_path / "memory.png"
    done = run("train_gpt.py", *TINY, "--scan", "--layers", "3", "--budget", "60%", "--out", str(picture))
    assert done.returncode == 0, done.stderr
    assert "scan of 3 steps" in done.stdout
    plain, planned = row("peak of loss and gradients", done.stdout)
    assert planned <= 0.6 * plain + 0.1
    assert picture.exists()
