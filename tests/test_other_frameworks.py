"""Equinox and Haiku models are planned as the pure functions that they are; Flax is imported only when asked for."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_plan as rp
from tests.helpers import assert_trees_close

pytestmark = pytest.mark.usefixtures("quick_search")

X = jnp.asarray(np.random.default_rng(0).normal(size=(256, 16)), jnp.float32)


def check(planned, plain, *args):
    """Compare gradients under jit, and see that the plan recomputes and fits."""
    got, want = jax.jit(jax.grad(planned))(*args), jax.grad(plain)(*args)
    assert_trees_close(jax.tree.leaves(got), jax.tree.leaves(want), 2e-4, 1e-5)
    (plan,) = planned.plans.values()
    assert not plan.is_identity
    assert plan.compiled_peak_bytes <= plan.budget_bytes < plan.written_peak_bytes


@pytest.mark.slow
def test_equinox():
    eqx = pytest.importorskip("equinox")

    def loss(model, x):
        return jnp.mean((jax.vmap(model)(x) - x) ** 2)

    model = eqx.nn.MLP(16, 16, width_size=64, depth=4, key=jax.random.key(0))
    planned = rp.remat(loss, budget="75%")
    got = eqx.filter_jit(eqx.filter_value_and_grad(planned))(model, X)
    want = eqx.filter_value_and_grad(loss)(model, X)
    assert_trees_close(jax.tree.leaves(got), jax.tree.leaves(want), 2e-4, 1e-5)
    (plan,) = planned.plans.values()
    assert plan.compiled_peak_bytes <= plan.budget_bytes < plan.written_peak_bytes


@pytest.mark.slow
def test_equinox_layers_with_state_and_dropout():
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        up: eqx.nn.Linear
        norm: eqx.nn.LayerNorm
        drop: eqx.nn.Dropout
        down: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key)
            self.up, self.down = eqx.nn.Linear(16, 64, key=keys[0]), eqx.nn.Linear(64, 16, key=keys[1])
            self.norm, self.drop = eqx.nn.LayerNorm(16), eqx.nn.Dropout(0.3)

        def __call__(self, x, key):
            return x + self.down(self.drop(jax.nn.gelu(self.up(self.norm(x))), key=key))

    def run(block, x, key):
        return jax.vmap(lambda x, k: block(x, k))(x, jax.random.split(key, x.shape[0]))

    planned = rp.checkpoint(run, strategy="each_block", verify=False)
    blocks = [Block(jax.random.key(n)) for n in range(3)]

    def loss(blocks, layer):
        x = X
        for n, block in enumerate(blocks):
            x = layer(block, x, jax.random.key(n))
        return jnp.mean(x**2)

    got, want = (eqx.filter_grad(lambda b, f=f: loss(b, f))(blocks) for f in (planned, run))
    assert_trees_close(jax.tree.leaves(got), jax.tree.leaves(want), 2e-4, 1e-5)
    assert len(planned.plans) == 1


def test_haiku():
    try:
        import haiku as hk
    except (ImportError, AttributeError) as error:  # a Haiku that is too old for the installed JAX
        pytest.skip(f"Haiku cannot be imported with jax {jax.__version__}: {error}")

    def forward(x):
        for _ in range(3):
            x = x + hk.Linear(16)(jnp.tanh(hk.Linear(64)(hk.LayerNorm(-1, True, True)(x))))
        return hk.dropout(hk.next_rng_key(), 0.2, x)

    model = hk.transform(forward)
    params = model.init(jax.random.key(0), X)

    def loss(params, x):
        return jnp.mean(model.apply(params, jax.random.key(1), x) ** 2)

    check(rp.remat(loss, budget="75%", strategy="log"), loss, params, X)


@pytest.mark.slow
def test_haiku_with_state():
    hk = pytest.importorskip("haiku")

    def forward(x):
        for _ in range(3):
            x = x + hk.Linear(16)(jnp.tanh(hk.BatchNorm(True, True, 0.9)(hk.Linear(64)(x), is_training=True)))
        return x

    model = hk.transform_with_state(forward)
    params, state = model.init(jax.random.key(0), X)

    def loss(params, state):
        out, state = model.apply(params, state, None, X)
        return jnp.mean(out**2), state

    planned = rp.remat(loss, budget="80%", has_aux=True, verify=False)
    got = jax.value_and_grad(planned, has_aux=True)(params, state)
    assert_trees_close(got, jax.value_and_grad(loss, has_aux=True)(params, state), 2e-4, 1e-5)


@pytest.mark.slow
def test_flax_is_imported_only_when_asked_for():
    code = """
import sys
import remat_plan as rp
assert "flax" not in sys.modules
sys.modules["flax"] = None
for name in ("linen", "nnx"):
    try:
        getattr(rp, name)
    except ImportError as error:
        assert 'pip install "remat_plan[flax]"' in str(error), error
    else:
        raise AssertionError(name)
try:
    rp.torch
except AttributeError as error:
    assert "'torch'" in str(error)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
