"""The examples run as a user runs them: as programs, whose output is all that is looked at."""

import re
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.run_example import EXAMPLES, run_example

TINY = "--width 32 --heads 2 --seq 64 --batch 4 --steps 8 --lr 0.01".split()
QUICK = ("--dropout", "0")
"""Random masks double the time to compile the unrolled layers, which is most of the time of a run; the scan has them."""


def mega(text: str) -> float:
    """Return a size as it is written in a plan, in MB."""
    figure, unit = text.split()
    return float(figure) * {"kB": 1e-3, "MB": 1.0, "GB": 1e3}[unit]


def fact(name: str, output: str) -> float:
    """Return a size of the plan that is printed, in MB."""
    (found,) = re.findall(rf"^  {name} +([\d.]+ [kMG]B) ", output, re.MULTILINE)
    return mega(found)


@pytest.mark.texts
@pytest.mark.slow
def test_train_gpt_trains_within_its_budget(tmp_path: Path) -> None:
    picture = tmp_path / "memory.png"
    done = run_example("train_gpt.py", *TINY, *QUICK, "--layers", "3", "--budget", "50%", "--out", str(picture))
    assert done.returncode == 0, done.stderr
    assert "Peak against overhead" in done.stdout.partition("planning for")[0], (
        "a prediction before anything is compiled"
    )

    assert (
        0 < fact("compiled peak", done.stdout) <= fact("budget", done.stdout) <= 0.505 * fact("plain peak", done.stdout)
    )

    *_, peak, trained, how, where = done.stdout.splitlines()
    before, after, change = re.findall(r"^Peak of the training step ([\d.]+) MB -> ([\d.]+) MB: (\S+)%\.$", peak)[0]
    assert float(after) < 0.8 * float(before)
    assert abs(float(after) / float(before) - 1 - float(change) / 100) < 0.03
    assert re.match(r"Seconds per step \d+\.\d\d -> \d+\.\d\d: [+-][\d.]+%\. ", trained)
    first, last, steps, difference = re.findall(
        r"Loss ([\d.]+) -> ([\d.]+) in (\d+) planned steps; loss and norm of the gradient differ by (\S+) at most",
        trained,
    )[0]
    assert float(difference) < 1e-3
    assert float(last) < float(first) - 0.5
    assert int(steps) == 8
    assert how.startswith('In your code: loss_fn = rp.remat(loss_fn, budget="50%")')
    assert where == f"Memory over time: {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_train_gpt_is_never_silent_for_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(EXAMPLES / "train_gpt.py"))
    stage = example["stage"]
    assert example["PATIENCE_SECONDS"] < 10
    monkeypatch.setitem(stage.__wrapped__.__globals__, "PATIENCE_SECONDS", 0.02)
    with stage("compiling"):
        time.sleep(0.3)
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\[ *\d+ s\] compiling", lines[0])
    assert len(lines) > 3
    assert all(re.fullmatch(r"\[ *\d+ s\] still compiling", line) for line in lines[1:])


@pytest.mark.slow
@pytest.mark.texts
def test_train_gpt_says_why_a_budget_is_impossible(tmp_path: Path) -> None:
    picture = tmp_path / "memory.png"
    done = run_example(
        "train_gpt.py", *TINY, *QUICK, "--scan", "--layers", "1", "--budget", "1KB", "--out", str(picture)
    )
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
    done = run_example("train_gpt.py", *TINY, "--scan", "--layers", "3", "--budget", "60%", "--out", str(picture))
    assert done.returncode == 0, done.stderr
    assert "scan of 3 steps" in done.stdout
    assert fact("compiled peak", done.stdout) <= 0.605 * fact("plain peak", done.stdout)
    assert picture.exists()
