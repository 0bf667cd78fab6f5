"""More budget does not mean more overhead, but for what the evaluator sees otherwise than the dynamic program."""

from pathlib import Path

import pytest

from benchmarks.common import Options, Session
from remat_plan.small.budget import BudgetError

EVALUATORS_OWN = 0.005
"""The seconds of a whole schedule are not quite the sum of its segments'."""


@pytest.mark.parametrize("name", ["mlp", *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnet50", "unet"))])
def test_overhead_falls_with_the_budget(name, tmp_path):
    session = Session(Options((), True, 600.0, Path(tmp_path)).model(name))
    overheads = []
    for percent in range(30, 101, 10):
        try:
            overheads.append(session.plan(f"{percent}%", verify=False).plan.overhead)
        except BudgetError:
            assert not overheads, "a larger budget than one that was met"
    assert len(overheads) > 2
    assert overheads[-1] == 0.0
    for more, less in zip(overheads[:-1], overheads[1:], strict=True):
        assert less <= more + EVALUATORS_OWN
