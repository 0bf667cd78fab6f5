"""What is saved is saved under JAX's coming defaults too; ``make coming`` runs this and more with their flags set."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan import _compat
from tests.helpers import REMAT3, few

LAYERS, WIDTH = 12, 64
X = jax.ShapeDtypeStruct((4096, WIDTH), "float32")
SHAPES = ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
ONE = tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in SHAPES)
STACKED = tuple(jax.ShapeDtypeStruct((LAYERS, *shape), "float32") for shape in SHAPES)

pytestmark = pytest.mark.skipif(_compat.drops_checkpoint_barriers(), reason="XLA:CPU of this jaxlib drops all barriers")


def block(p, x, activation=jnp.tanh):
    return x + activation(x @ p[0]) @ p[1]


def unrolled(ps, x, block=block):
    for p in ps:
        x = block(p, x)
    return jnp.mean(x**2)


def scanned(ps, x, block=block):
    return jnp.mean(jax.lax.scan(lambda x, p: (block(p, x), None), x, ps)[0] ** 2)


ACTIVATIONS = [
    pytest.param(f, id=f.__name__, marks=() if REMAT3 or f is jnp.tanh else pytest.mark.slow)
    for f in (jnp.tanh, jax.nn.silu, jnp.exp)
]
"""All of them where the flags are set."""

CASES = {"unrolled": (unrolled, [ONE] * LAYERS), "scanned": (scanned, STACKED)}


def peak(fn, ps):
    return jax.jit(jax.value_and_grad(fn)).lower(ps, X).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", few(CASES, ["scanned"]))
def test_a_budget_is_used_and_the_compiler_agrees(case, activation):
    fn, ps = CASES[case]
    plan = rp.plan(lambda ps, x: fn(ps, x, lambda p, x: block(p, x, activation)), ps, X, budget="60%")
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    assert 0.5 * plan.plain_peak_bytes < plan.compiled_peak_bytes or plan.compiled_overhead < 0  # or less is faster
    assert plan.compiled_overhead < plan.overhead + 0.08


@pytest.mark.parametrize("case", few(CASES, ["scanned"]))
@pytest.mark.parametrize("strategy", few(["each_block", "memory"], ["each_block"]))
def test_strategies_come_out_as_predicted(case, strategy):
    fn, ps = CASES[case]
    plan = rp.plan(fn, ps, X, strategy=strategy)
    assert plan.compiled_peak_bytes == pytest.approx(plan.predicted_peak_bytes, rel=0.1)
    assert plan.compiled_peak_bytes < 0.6 * plan.plain_peak_bytes


def test_checkpoints_save_memory():
    fn, ps = CASES["unrolled"]
    plain = peak(fn, ps)
    saved = rp.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)
    assert peak(lambda ps, x: fn(ps, x, rp.checkpoint(block)), ps) < 0.5 * plain
    assert 0.5 * plain < peak(lambda ps, x: fn(ps, x, saved), ps) <= plain
    assert peak(lambda ps, x: fn(ps, x, rp.checkpoint(block, strategy="nothing", verify=False)), ps) < 0.5 * plain


def test_a_plan_that_the_compiler_does_not_bear_out_says_so(monkeypatch):
    """Here what is compiled is the plain step, whatever is planned."""
    fn, ps = CASES["unrolled"]
    plan = rp.plan(fn, ps, X, strategy="memory")
    assert not any("bear" in note for note in plan.notes)
    monkeypatch.setattr(_compat, "checkpoint", lambda run, **_: run)
    plan = rp.plan(fn, ps, X, strategy="memory")
    assert any(note.startswith("the compiled step needs ") for note in plan.notes)
