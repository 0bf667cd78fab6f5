"""``examples/resume_training.py`` runs as a user runs it: stopped and started again, it goes on as if it had not been."""

import json

import pytest

from tests.run_example import run_example

TINY = "--layers 2 --width 16 --seq 32 --batch 4 --every 2 --budget 60%".split()


def train(folder, steps, *more):
    done = run_example("resume_training.py", *TINY, "--folder", str(folder), "--steps", str(steps), *more)
    return done.returncode, done.stdout, done.stderr


def losses(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    return [row["loss"] for row in rows]


@pytest.mark.texts
@pytest.mark.slow
def test_a_restart_reads_the_plan_and_goes_on_as_if_it_had_not_been_one(tmp_path):
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    code, first, error = train(broken, 3)
    assert code == 0, error
    assert f"plan stored in {broken / 'plan.json'}" in first
    whole.mkdir()
    (whole / "plan.json").write_text((broken / "plan.json").read_text())
    for folder in (broken, whole):
        code, said, error = train(folder, 5)
        assert code == 0, error
        assert "plan read from" in said
        assert ("restored step 3" in said) == (folder == broken)
    assert losses(broken) == pytest.approx(losses(whole), rel=1e-5)
    assert len(losses(broken)) == 5

    code, _, error = train(whole, 6, "--batch", "2")
    assert code == 1
    assert "error: this plan was made for another program" in error
    assert "Traceback" not in error


def test_it_explains_bad_input():
    done = run_example("resume_training.py", "--width", "30")
    assert done.returncode == 2
    assert "--width 30: give a multiple of 4" in done.stderr
