"""What a program makes at its start is predicted: random bits, kernels and weights made of parameters, plain and planned."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.cost.memory import evaluate
from tests.helpers import CPU, few

WIDTH, BATCH, LAYERS = 128, 512, 4
X = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
SQUARE = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
ROW = jax.ShapeDtypeStruct((WIDTH,), jnp.float32)


def dropout(key, w, fixed, x):
    return x + jnp.where(jax.random.bernoulli(key, 0.9, x.shape), jnp.tanh(x @ w), 0)


def noise(key, w, fixed, x):
    return x + jnp.tanh(x @ w + jax.random.normal(key, x.shape))


def kernels(key, w, fixed, x):
    atoms = 1 / (1j * jnp.arange(64) - w[:, :, None])
    return x + jnp.tanh(x @ atoms.sum(-1).real)


def dequantised(key, w, fixed, x):
    return x + jnp.tanh(x @ (fixed.astype(jnp.float32) * w))


INT8 = jax.ShapeDtypeStruct(SQUARE.shape, jnp.int8)
CASES = {
    "dropout": (dropout, SQUARE, ROW, None),
    "dropout_rbg": (dropout, SQUARE, ROW, "rbg"),
    "noise": (noise, SQUARE, ROW, None),
    "kernels": (kernels, SQUARE, ROW, None),
    "dequantised": (dequantised, ROW, INT8, None),
}


def unrolled(layer):
    def loss(ws, fixed, x, key):
        for i, (w, f) in enumerate(zip(ws, fixed, strict=True)):
            x = layer(jax.random.fold_in(key, i), w, f, x)
        return jnp.mean(x**2)

    return loss


def scanned(layer):
    def loss(ws, fixed, x, key):
        def step(x, given):
            i, w, f = given
            return layer(jax.random.fold_in(key, i), w, f, x), None

        return jnp.mean(jax.lax.scan(step, x, (jnp.arange(LAYERS), jnp.stack(ws), jnp.stack(fixed)))[0] ** 2)

    return loss


def program(name, form):
    layer, w, fixed, kind = CASES[name]
    key = jax.eval_shape(lambda: jax.random.key(0, impl=kind))
    return form(layer), ([w] * LAYERS, [fixed] * LAYERS, X, key)


FORMS = [*((name, unrolled) for name in CASES), ("dropout", scanned)]


@pytest.mark.parametrize(("name", "form"), few(FORMS, [("dequantised", unrolled), ("dropout", scanned)]))
def test_plain_and_planned_peaks_are_those_of_the_compiler(name, form):
    loss, args = program(name, form)
    step = jax.value_and_grad(loss)
    memory = jax.jit(step, compiler_options=rp.compiler_options() or None).lower(*args).compile().memory_analysis()
    compiled = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    assert evaluate(jax.make_jaxpr(step)(*args), CPU).peak_bytes == pytest.approx(compiled, rel=0.08)
    plan = rp.plan(loss, *args, strategy="each_block")
    assert plan.predicted_peak_bytes == pytest.approx(plan.compiled_peak_bytes, rel=0.08)
    assert plan.compiled_peak_bytes < 0.9 * compiled


def test_every_layer_draws_at_the_start_of_a_plain_program():
    loss, args = program("dropout", unrolled)
    timeline = evaluate(jax.make_jaxpr(jax.value_and_grad(loss))(*args), CPU)
    names = [eqn.primitive.name for eqn in timeline.equations]
    drawn = [i for i, name in enumerate(names) if name == "random_bits"]
    assert len(drawn) == 2 * LAYERS  # a key is taken apart, then the loop runs
    assert drawn[-1] < [i for i, name in enumerate(names) if name == "dot_general"][2]
