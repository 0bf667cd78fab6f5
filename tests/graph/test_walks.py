"""Equal equations are traced once, in whatever program they stand; what only looks equal is not taken as equal."""

import jax
import jax.numpy as jnp
import pytest

from remat_plan.graph import walks
from tests.helpers import sine_by_rule, traced


@pytest.fixture
def asked(monkeypatch):
    """The primitives whose derivatives were traced; nothing is known from other tests."""
    found = []
    noted = walks._shared(lambda eqn, *rest: found.append(eqn.primitive.name) or walks.find_need(eqn, *rest))
    monkeypatch.setattr(walks, "_need", noted)
    return found


def of(fn, *shape):
    return traced(lambda x: jnp.sum(fn(x)), jnp.ones(shape)).graph


def double(x):
    return jnp.sin(x) * 2.0


def test_another_program_with_equal_equations_traces_nothing(asked):
    of(double, 3, 41)
    assert "sin" in asked
    asked.clear()
    graph = of(lambda x: double(double(x)), 3, 41)
    assert asked == []
    assert [op.primitive for op in graph.ops] == ["sin", "mul", "sin", "mul", "reduce_sum"]
    of(double, 3, 43)
    assert "sin" in asked, "of another shape"


def test_what_stands_elsewhere_is_told_of_itself(asked):
    of(double, 3, 45)
    asked.clear()
    of(lambda x: jnp.sin(x) * 2.0, 3, 45)
    assert "sin" in asked, "errors and tables name its own line"


def test_literals_and_settings_tell_equations_apart(asked):
    def times(number):
        of(lambda x: x * number, 5, 47)

    times(3.0)
    asked.clear()
    times(4.0)
    assert "mul" in asked
    asked.clear()
    times(4.0)
    assert asked == []
    with jax.default_matmul_precision("highest"):
        times(4.0)
    assert "mul" in asked


def test_rules_of_derivatives_are_never_taken_from_another_function():
    for keeps_operand in (True, False, True):
        graph = of(sine_by_rule(keeps_operand), 7, 53)
        (need,) = [graph.needs[op.kind] for op in graph.ops if op.primitive == "custom_jvp_call"]
        assert (need.operands, need.outputs) == (((0,), ()) if keeps_operand else ((), (0,)))
