"""A new habit of a compiler, made here and nowhere else: sums of two arrays are written, whoever reads them."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import pytest

from remat_plan.cost.backend import Backend, Rule
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import Timeline, evaluate
from remat_plan.cost.platforms import register_backend
from remat_plan.cost.steps import Step

X = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)


def writes_sums(steps: Sequence[Step], users: Sequence[Sequence[int]]) -> list[int]:
    return [index for index, step in enumerate(steps) if step.primitive == "add"]


@pytest.fixture
def predicted() -> Timeline:
    register_backend("toy", Backend((Rule("written", "sums", "the toy's fusion", writes_sums),)))
    jaxpr = jax.make_jaxpr(lambda x, y: jnp.sin(x + y) @ x)(X, X)
    return evaluate(jaxpr, Hardware("toy", 1e12, 1e12, 1e9))


def test_it_shows_in_a_prediction(predicted: Timeline):
    assert [eqn.primitive.name for eqn in predicted.equations] == ["add", "sin", "dot_general"]
