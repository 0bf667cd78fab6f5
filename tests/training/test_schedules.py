"""How often a step may be compiled: one as written that a TPU's compiler refuses takes seconds, and does not count."""

from types import SimpleNamespace
from typing import Any

import pytest

from remat_plan.search.driver import MOST_COMPILES
from remat_plan.training import schedules


@pytest.mark.parametrize(
    ("slow", "over", "left"),
    [
        (False, False, MOST_COMPILES - 1),
        (False, True, MOST_COMPILES - 1),
        (True, False, MOST_COMPILES // 2 - 1),
        (True, True, MOST_COMPILES // 2),
    ],
)
def test_a_refused_step_is_no_compile(monkeypatch: pytest.MonkeyPatch, slow: bool, over: bool, left: int) -> None:
    class Told(SimpleNamespace):
        def search(self, budget_bytes: int) -> Any:
            return self

    def driver(*args: Any, left: int) -> Told:
        return Told(left=left, tried=args[4])

    written = SimpleNamespace(over_device_memory=over)
    measuring: Any = SimpleNamespace(
        marks=(), compile=None, known=SimpleNamespace(now=dict), has_own_remat=True, as_written=written,
        target=SimpleNamespace(compiles_slowly=slow),
    )  # fmt: skip
    monkeypatch.setattr(schedules, "Driver", driver)
    found: Any = schedules.search_choices(measuring, 1, 1.0, 0)[0]
    assert found.left == left
