"""How often a step may be compiled: one as written that a TPU's compiler refuses takes seconds, and does not count."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
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
        return Told(left=left, tried=args[4], fits=True)

    written = SimpleNamespace(over_device_memory=over)
    measuring: Any = SimpleNamespace(
        marks=(), compile=None, known=SimpleNamespace(now=dict), has_own_remat=True, as_written=written,
        target=SimpleNamespace(compiles_slowly=slow),
    )  # fmt: skip
    monkeypatch.setattr(schedules, "Driver", driver)
    found: Any = schedules.search_choices(measuring, 1, 1.0, 0)[0]
    assert found.left == left


def test_the_least_of_a_step_is_not_that_of_another_of_its_name() -> None:
    """As where a cell of a notebook is changed and run again."""
    w, x = [jnp.full((64, 64), 0.01 + i / 99) for i in range(5)], jnp.ones((1024, 64))

    def loss(w: Any, x: Any) -> Any:
        for k in w:
            x = x + jax.nn.gelu(x @ k)
        return jnp.mean((x - 1) ** 2)

    def least(step: Any) -> int:
        with pytest.raises(rp.BudgetError) as error:
            rp.fit(step, w, x, budget="10%")
        return error.value.minimum_bytes

    def step(w: Any, x: Any) -> Any:
        return jax.grad(rp.mark(loss))(w, x)

    first = least(step)

    def step(w: Any, x: Any) -> Any:  # type: ignore[no-redef]
        return jax.grad(rp.mark(loss))(w, x), jnp.cumsum(jnp.sort(jnp.tile(x, (8, 1)), axis=0), 0).max()

    second = least(step)
    assert first < second
    assert rp.fit(step, w, x, budget=second).report.planned.peak_bytes <= second
