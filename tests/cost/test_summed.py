"""A loop whose gradient is made with its sum, as the evaluator puts it together, against the program that JAX traces."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost.builder import Rules
from remat_plan.cost.memory import evaluate
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import Choice, Part, as_is, saving, structured
from remat_plan.graph.structure import structure_of
from tests.helpers import CPU, flat_gradient, traced

STEPS, LAYERS = 6, 3


def accumulated(ws, xs):
    def part(x):
        for w in ws:
            x = jax.nn.gelu(jnp.sin(x @ w.astype(x.dtype)))
        return jnp.mean(jnp.square(x)).astype(jnp.float32)

    return lax.scan(lambda total, x: (total + part(x), None), 0.0, xs)[0] / STEPS


@pytest.mark.parametrize("argnums", [0, (0, 1)], ids=["weights", "rows too"])
@pytest.mark.parametrize("rows", [2, 256])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lean", [False, True], ids=["kept", "recomputed"])
def test_it_is_the_program_that_is_traced(argnums, rows, dtype, lean):
    """Of few rows the sums of gradients are most of the work and of the bytes; of many they are next to nothing."""
    ws = [jax.ShapeDtypeStruct((128, 128), dtype)] * LAYERS
    args = ws, jax.ShapeDtypeStruct((STEPS, rows, 128), dtype)
    program = traced(accumulated, *args, argnums=argnums)
    graph = program.graph
    (op,) = [op for op in graph.ops if op.primitive == "scan"]
    n = len(structure_of(op).regions(graph, op)[0].ops)
    inside = (saving(0, n // 2), as_is(n // 2, n)) if lean else (as_is(0, n),)
    choice = Choice((Part(STEPS, inside),), gradient_first=True)
    schedule = as_is(0, op.index), structured(op.index, choice), as_is(op.index + 1, len(graph.ops))
    made = StepProgram(Rules(graph, CPU)).loss_timeline(schedule)
    leaves = jax.tree.leaves(args)
    wanted = evaluate(jax.make_jaxpr(flat_gradient(program, schedule))(*leaves), CPU)
    # in 16 bits JAX spreads the cotangent in 32 bits before it converts it
    flops, seconds = (2e-3, 5e-3) if dtype == "float32" else (0.015, 0.03)
    assert made.flops == pytest.approx(wanted.flops, rel=flops)
    assert made.seconds == pytest.approx(wanted.seconds, rel=seconds)
    assert made.peak_bytes == pytest.approx(wanted.peak_bytes, rel=0.01)


def test_a_scalar_constant_has_a_sum_too():
    """Of a temperature, which starts as a number that no equation makes."""

    def loss(p, xs):
        def step(total, x):
            return total + jnp.mean(jnp.square(jnp.sin(x @ p["w"] * p["temperature"]))), None

        return lax.scan(step, 0.0, xs)[0] / STEPS

    params = {"w": jax.ShapeDtypeStruct((128, 128), "float32"), "temperature": jax.ShapeDtypeStruct((), "float32")}
    args = params, jax.ShapeDtypeStruct((STEPS, 256, 128), "float32")
    program = traced(loss, *args)
    graph = program.graph
    (op,) = [op for op in graph.ops if op.primitive == "scan"]
    n = len(structure_of(op).regions(graph, op)[0].ops)
    choice = Choice((Part(STEPS, (as_is(0, n),)),), gradient_first=True)
    schedule = as_is(0, op.index), structured(op.index, choice), as_is(op.index + 1, len(graph.ops))
    made = StepProgram(Rules(graph, CPU)).loss_timeline(schedule)
    wanted = evaluate(jax.make_jaxpr(flat_gradient(program, schedule))(*jax.tree.leaves(args)), CPU)
    assert made.flops == pytest.approx(wanted.flops, rel=2e-3)
    assert made.peak_bytes == pytest.approx(wanted.peak_bytes, rel=0.01)
