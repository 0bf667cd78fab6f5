"""Marked functions that run inside a ``shard_map`` are planned there."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, PartitionSpec

import remat_plan as rp
from tests.helpers import assert_trees_close, few

WIDTH, BATCH, LAYERS = 32, 512, 6
MESH, WHOLE, ROWS = Mesh(np.array(jax.devices()[:1]), ("d",)), PartitionSpec(), PartitionSpec("d")
TX = optax.adam(1e-2)


def layer(x, w):
    return x + jnp.tanh(jnp.sin(x @ w["in"])) @ w["out"], None


def scanned(w, x):
    return jnp.mean(jax.lax.scan(layer, x, w)[0] ** 2)


def unrolled(w, x):
    for i in range(LAYERS):
        x, _ = layer(x, jax.tree.map(lambda leaf, i=i: leaf[i], w))
    return jnp.mean(x**2)


def summed(w, x):
    """Speaks of the axis in each layer, as where layers are split over devices."""

    def step(x, w):
        y, _ = layer(x, w)
        return x + jax.lax.psum(y, "d") / 8, None

    return jnp.mean(jax.lax.scan(step, x, w)[0] ** 2)


def gradient_outside(local, checks):
    """The map is inside what is differentiated."""
    one = lambda w, x: jax.lax.pmean(local(w, x), "d")  # noqa: E731
    loss = jax.shard_map(one, mesh=MESH, in_specs=(WHOLE, ROWS), out_specs=WHOLE, check_vma=checks)

    def step(w, state, x):
        value, grads = jax.value_and_grad(loss)(w, x)
        updates, state = TX.update(grads, state, w)
        return optax.apply_updates(w, updates), state, value

    return step


def gradient_inside(local, checks):
    """The map is around the whole step, as for ``pmap``."""

    def step(w, state, x):
        value, grads = jax.value_and_grad(local)(w, x)
        if not checks:  # otherwise gradients of what is the same on all devices are summed already
            grads = jax.lax.pmean(grads, "d")
        updates, state = TX.update(grads, state, w)
        return optax.apply_updates(w, updates), state, jax.lax.pmean(value, "d")

    specs = (WHOLE, WHOLE, ROWS), (WHOLE, WHOLE, WHOLE)
    return jax.shard_map(step, mesh=MESH, in_specs=specs[0], out_specs=specs[1], check_vma=checks)


CASES = list(itertools.product([scanned, unrolled, summed], [gradient_outside, gradient_inside], [True, False]))


@pytest.mark.parametrize(("local", "make", "checks"), few(CASES, CASES[::3]))
def test_a_mark_inside_a_map_is_planned(local, make, checks):
    keys = jax.random.split(jax.random.key(0), 3)
    w = {
        name: jax.random.normal(key, (LAYERS, WIDTH, WIDTH)) / 6 for name, key in zip(("in", "out"), keys, strict=False)
    }
    args = w, TX.init(w), jax.random.normal(keys[2], (BATCH, WIDTH))
    fitted = rp.fit(make(rp.mark(local), checks), *args, budget="70%")
    report = fitted.report
    assert report.planned.peak_bytes <= 0.7 * report.plain.peak_bytes
    assert_trees_close(fitted(*args), jax.jit(make(local, checks))(*args))


def test_a_mark_inside_a_vmap_that_names_its_axis_is_planned():
    def centred(w, x):
        def step(x, w):
            x = jnp.tanh(jnp.sin(x @ w))
            return x - jax.lax.pmean(x, "batch"), None

        return jnp.mean(jax.lax.scan(step, x, w)[0] ** 2)

    def make(one):
        loss = lambda w, x: jnp.mean(jax.vmap(one, (None, 0), axis_name="batch")(w, x))  # noqa: E731
        return lambda w, x: jax.tree.map(jnp.subtract, w, jax.grad(loss)(w, x))

    w, x = (jax.random.normal(jax.random.key(i), shape) / 6 for i, shape in enumerate([(6, 32, 32), (4, 256, 32)]))
    fitted = rp.fit(make(rp.mark(centred)), w, x, budget="80%")
    assert fitted.report.planned.peak_bytes <= 0.8 * fitted.report.plain.peak_bytes
    assert_trees_close(fitted(w, x), jax.jit(make(centred))(w, x))
