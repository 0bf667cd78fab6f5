"""``benchmarks devices_absent``: steps for eight devices that are not here."""

import dataclasses

import pytest

from benchmarks import devices_absent
from benchmarks.common import Options
from tests.helpers import CUDA, has_module

ROW = devices_absent.Row("gpu:h100:8", "fsdp", 1000, 1500, 990, 0.02, 3, 9.0, "now")


def test_rows_that_are_kept_are_not_made_again(tmp_path, monkeypatch):
    made = []

    def fit_row(target, layout, sizes):
        made.append((target, layout))
        return dataclasses.replace(ROW, target=target, layout=layout)

    monkeypatch.setattr(devices_absent, "fit_row", fit_row)
    options = Options(targets=("gpu:h100:8",), results=tmp_path)
    first = devices_absent.run(options)
    assert made == [("gpu:h100:8", layout) for layout in devices_absent.LAYOUTS]
    assert devices_absent.run(options).text() == first.text()
    assert len(made) == 3


def test_what_must_hold_is_checked():
    over = dataclasses.replace(ROW, planned_bytes=1001, compiles=6)
    assert devices_absent.facts([ROW, over])[:2] == [
        "over the budget: gpu:h100:8 fsdp (2 fitted steps)",
        "more than five compiles: gpu:h100:8 fsdp (6)",
    ]
    assert len(ROW.cells()) == len(devices_absent._COLUMNS)


@pytest.mark.slow
@pytest.mark.skipif(not has_module(CUDA), reason="the CUDA plugin is not installed")
def test_a_step_fits_on_each_of_eight_gpus_that_are_not_here():
    row = devices_absent.fit_row("gpu:h100:8", "fsdp", devices_absent.QUICK | {"layers": 3, "batch": 64})
    assert row.planned_bytes <= row.budget_bytes < row.plain_bytes
    assert row.compiles <= 5
