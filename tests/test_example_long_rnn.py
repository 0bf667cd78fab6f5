"""``examples/long_rnn.py`` runs as a user runs it: as a program, whose output is all that is looked at."""

import re
import runpy
import sys

import pytest

from tests.run_example import EXAMPLES, run_example

TINY = "--length 120 --width 16 --batch 2 --steps 8 --slots 12".split()


def row(name, output):
    """Return the numbers of one row of the table."""
    (found,) = re.findall(rf"^{name} +(.*)$", output, re.MULTILINE)
    return [float(number.replace(",", "")) for number in re.findall(r"[\d,.]+", found)]


@pytest.mark.texts
@pytest.mark.slow
def test_it_trains_and_compares(tmp_path):
    picture = tmp_path / "memory.png"
    done = run_example("long_rnn.py", *TINY, "--out", str(picture))
    assert done.returncode == 0, done.stderr
    plain, binomial, log = row("temporaries", done.stdout)
    assert 0 < binomial < 0.5 * plain
    assert 0 < log < 0.5 * plain
    assert all(seconds >= 0 for seconds in row("seconds per step", done.stdout))
    (difference,) = re.findall(r"differ by ([\d.e+-]+) at most", done.stdout)
    assert float(difference) < 1e-4
    first, last, steps = re.findall(r"Loss ([\d.]+) -> ([\d.]+) in (\d+) steps", done.stdout)[0]
    assert float(last) < float(first) - 0.2
    assert int(steps) == 8
    assert done.stdout.endswith(f"Memory and time: {picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_it_explains_itself_and_bad_input(monkeypatch, capsys):
    """In this process, where JAX is imported already; the code is what a shell would see."""

    def leaves(*arguments):
        monkeypatch.setattr(sys, "argv", ["long_rnn.py", *arguments])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(EXAMPLES / "long_rnn.py"), run_name="__main__")
        return left.value.code

    assert not leaves("--help")
    said = capsys.readouterr().out
    for flag in "length batch width slots steps lr seed out".split():
        assert f"--{flag} " in said
    assert leaves("--slots", "0") == 2
    assert "--slots must be 1 or more" in capsys.readouterr().err
    assert "the text has" in leaves("--length", "100000000"), "a message is printed, and the code is 1"
