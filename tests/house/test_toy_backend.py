"""A new backend, made here and nowhere else: slow units, and a compiler that copies operands and repeats nothing."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost.backend import GENERIC, Backend, Rule
from remat_plan.cost.backends.cpu import dot_copies
from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import Hardware
from remat_plan.cost.memory import evaluate
from remat_plan.cost.platforms import backend_for, register_backend
from remat_plan.cost.whole_step import StepProgram
from remat_plan.planning.planner import Planner
from tests.helpers import traced

X, W = jax.ShapeDtypeStruct((2048, 256), jnp.float32), jax.ShapeDtypeStruct((256, 256), jnp.float32)
ARRAY_BYTES = 4 * 2048 * 256
TOY, OTHER = Hardware("toy:one", 1e9, 1e9, 1e12), Hardware("nobody", 1e9, 1e9, 1e12)
RULES = (
    Rule("operands", "copies", "the toy's layouts", dot_copies, frozenset({"dot_general"})),
    Rule("repeats", "repeats_nothing", "the toy's fusion", lambda step, kernels, copies: len(kernels) == 1),
)


@pytest.fixture
def toy():
    register_backend("toy", Backend(RULES))


def rows_first(x, y):
    return lax.dot_general(x, y, (((0,), (0,)), ((), ())))


def test_predictions_follow_its_rules(toy):
    assert backend_for(OTHER) == GENERIC
    jaxpr = jax.make_jaxpr(rows_first)(jax.ShapeDtypeStruct((2048, 16, 16), X.dtype), X)
    ours, generic = evaluate(jaxpr, TOY), evaluate(jaxpr, OTHER)
    assert ours.flops == generic.flops
    assert ours.peak_bytes - generic.peak_bytes == ARRAY_BYTES  # the left operand is copied


def test_programs_are_planned_for_it(toy):
    def loss(w, x):
        for _ in range(6):
            x = jnp.tanh(jnp.sin(x @ w)) * x
        return jnp.sum(x**2)

    program = traced(loss, W, X)
    rules = Rules(program.graph, TOY)
    plain = StepProgram(rules).loss_timeline(program.plain)
    least = StepProgram(rules).loss_timeline(Planner(program.graph, rules).curves[0][0])
    assert least.peak_bytes < 0.7 * plain.peak_bytes
    assert least.seconds > plain.seconds > least.matrix_flops / TOY.matrix_flops / 2


def test_a_platform_has_one_set_of_rules(toy):
    for name in ("toy", "cpu", "gpu", "a:b"):
        with pytest.raises(ValueError, match=f"platform '{name}': give a new name"):
            register_backend(name, GENERIC)
