"""The names in a program are those that users gave."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.planning.names import names_inside
from tests.helpers import traced


def test_what_slices_and_plans_name_is_not_told_to_users():
    sliced = rp.split(lambda x: jnp.tanh(jnp.sin(x)), slices=2)
    planned = rp.checkpoint(lambda x: jnp.tanh(jnp.sin(x)), strategy="dots")

    def loss(w, x):
        def layer(x, w):
            return x + planned(sliced(checkpoint_name(x @ w, "product"))), None

        return jnp.sum(jax.lax.scan(layer, x, w)[0] ** 2)

    assert names_inside(traced(loss, jnp.ones((3, 8, 8)), jnp.ones((4, 8))).graph) == ("product",)
