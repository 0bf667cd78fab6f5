"""Loops whose steps speak of the axes of a map around them are planned like others."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import remat_plan as rp
from tests.helpers import assert_trees_close, searching_quickly

W = jax.random.normal(jax.random.key(0), (8, 32, 32)) / 8
X = jax.random.normal(jax.random.key(1), (2048, 32))


def gathered(w, x):
    """Layers whose weights are gathered in each step."""

    def step(x, w):
        whole = lax.all_gather(w, "i", axis=0, tiled=True)
        return x + jnp.tanh(jnp.tanh(x @ whole) @ whole), None

    return lax.pmean(jnp.sum(lax.scan(step, x, w)[0] ** 2), "i")


@pytest.mark.parametrize("checked", [True, False])
def test_in_a_shard_map(checked):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    loss = jax.shard_map(gathered, mesh=mesh, in_specs=(P(None, "i"), P("i")), out_specs=P(), check_vma=checked)
    deep = jnp.concatenate([W, W])  # so that what a step keeps is less than a tenth of the budget
    with searching_quickly():
        plan = rp.plan(loss, deep, X, budget="45%", never_recompute=())
    assert 0.9 * plan.budget_bytes < plan.compiled_peak_bytes <= plan.budget_bytes
    assert_trees_close(jax.grad(plan.apply(loss))(deep, X), jax.grad(loss)(deep, X))


def test_in_a_map_with_a_name():
    planned = rp.remat(gathered, strategy="each_block")
    args = W.reshape(8, 2, 16, 32).swapaxes(0, 1), X.reshape(2, -1, 32)
    gradients = [jax.vmap(jax.grad(loss), axis_name="i") for loss in (planned, gathered)]
    assert_trees_close(*(gradient(*args) for gradient in gradients))
    twice, once = (str(jax.make_jaxpr(gradient)(*args)).count("= tanh") for gradient in gradients)
    assert twice == 2 * once


def test_what_is_mapped_in_a_loop_runs_in_slices_in_a_fitted_step():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    rows = P("i")

    def layer(w, x):
        return x + jnp.sin(jnp.tanh(x @ w)) @ w.T

    def loss(ws, x):
        mapped = jax.shard_map(layer, mesh=mesh, in_specs=(P(), rows), out_specs=rows)
        return jnp.sum(lax.scan(lambda x, w: (mapped(w, x), None), x, ws)[0] ** 2)

    def step(mark, ws, x):
        return ws - jax.grad(mark(loss))(ws, x)

    ws, x = jax.random.normal(jax.random.key(0), (4, 8, 1024)) / 8, jax.random.normal(jax.random.key(1), (4096, 8))
    with searching_quickly():
        fitted = rp.fit(functools.partial(step, rp.mark), ws, x, budget="8%")
    assert "slices" in str(fitted.plan)
    assert_trees_close(fitted(ws, x), jax.jit(functools.partial(step, lambda f: f))(ws, x), rtol=1e-3, atol=1e-3)


def test_a_layer_that_maps_a_part_of_it_is_one_segment():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(lambda h: jnp.tanh(h @ h.T) @ h, mesh=mesh, in_specs=P("i"), out_specs=P("i"))

    def loss(ws, x):
        return jnp.sum(lax.scan(lambda x, w: (x + jnp.sin(mapped(x @ w) @ w), None), x, ws)[0] ** 2)

    plan = rp.plan(loss, jnp.ones((8, 32, 32)), jnp.ones((64, 32)), strategy="each_block", verify=False)
    parts = [part for s in plan.schedule for _, choice in s.way.choices for part in choice.parts]
    ((step,),) = (part.schedule for part in parts)
    assert (step.start, type(step.way).__name__, step.way.choices) == (0, "Keep", ())
