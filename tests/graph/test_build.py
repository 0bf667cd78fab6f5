"""From a function to its graph."""

import jax
import jax.numpy as jnp
import pytest

from remat_plan.graph.build import build


@pytest.mark.parametrize("layers", [1, 3])
def test_results_that_nothing_is_made_of_are_left_out(layers):
    """What a model returns beside its loss, such as the intermediates of all its layers, is stacked for nothing."""

    def layer(x, w):
        out = {"half": jnp.tanh(x @ w)}
        out["whole"] = x + out["half"]
        return out["whole"], out

    def loss(ws, x):
        x, _ = jax.lax.scan(layer, x, ws)
        return jnp.sum(x**2)

    shapes = jax.ShapeDtypeStruct((layers, 4, 4), "float32"), jax.ShapeDtypeStruct((5, 4), "float32")
    graph = build(jax.make_jaxpr(loss)(*shapes), (True, False))
    (scan,) = [op for op in graph.ops if op.primitive == "scan"]
    assert len(scan.outputs) == 1
    assert graph.output_avals[0].shape == ()
