"""A new action, made here and nowhere else: keep a value in half precision."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.cost.builder import Rules
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.action import action_of, register_action
from remat_plan.graph.schedule import as_is, saving
from remat_plan.rewrite.emit import Emitter
from tests.helpers import CPU, traced


class Half:
    """Keep a value in bfloat16."""

    name = "half"
    on_host = offered = False

    def takes(self, aval):
        return True

    def device_bytes(self, size_bytes):
        return size_bytes // 2

    def seconds(self, size_bytes, rates):
        return 0.0

    def tag(self, value, name):
        return checkpoint_name(value.astype(jnp.bfloat16), name).astype(value.dtype)


def loss(w, x):
    for _ in range(8):
        x = jnp.tanh(jnp.sin(x) @ w)
    return jnp.sum(x**2)


def test_a_value_may_be_kept_in_half_precision():
    register_action(Half())
    w, x = jnp.eye(64) / 2, jnp.linspace(0, 1, 512 * 64).reshape(512, 64)
    program = traced(loss, w, x)
    dots = [op.outputs[0] for op in program.graph.ops if op.primitive == "dot_general"]
    end = program.graph.ops[-1].index

    def run(action):
        borders = [0, *(program.graph.values[v].producer + 2 for v in dots)]
        pairs = zip(itertools.pairwise(borders), dots, strict=True)
        schedule = (*(saving(s, e, {v: action}) for (s, e), v in pairs), as_is(borders[-1], end + 1))
        made = StepProgram(Rules(program.graph, CPU)).loss_timeline(schedule)
        emitter = Emitter(program.graph, schedule)
        step = jax.jit(jax.value_and_grad(lambda w: emitter((w, x))[0]))
        return made.peak_bytes, step(w), str(jax.make_jaxpr(jax.grad(lambda w: emitter((w, x))[0]))(w))

    full_bytes, full, _ = run("save")
    half_bytes, half, text = run("half")
    assert half_bytes < full_bytes
    assert "bf16[512,64]" in text
    assert float(half[0]) == pytest.approx(float(full[0]), rel=1e-2)
    assert jnp.allclose(half[1], full[1], rtol=2e-2, atol=1e-2)
    assert not jnp.array_equal(half[1], full[1])


def test_an_unknown_action_is_told():
    with pytest.raises(ValueError, match=r"action 'third' is not known to this program; it knows 'save', 'offload'"):
        action_of("third")
    assert rp.__version__
