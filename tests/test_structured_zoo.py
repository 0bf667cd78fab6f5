"""The structured zoo is what it says: every member runs, differentiates, and has the structure it is named after."""

import jax
import numpy as np
import pytest

from remat_plan._compat import open_jaxpr, sub_jaxprs
from tests.structured_zoo import STRUCTURED

STEP = 1e-2  # along the gradient; the difference over it is compared with the slope

# Primitives that are in each member, from the outermost to the innermost of those that matter.
HOLDS = {
    "unrolled": (),
    "scanned": ("scan",),
    "scanned_with_outputs": ("scan",),
    "nested_scan": ("scan", "scan"),
    "scans_between_layers": ("scan",),
    "scan_in_cond": ("cond", "scan"),
    "cond_in_scan": ("scan", "cond"),
    "switch_in_scan": ("scan", "cond"),
    "conds_of_layers": ("cond",),
    "while_forward_only": ("while",),
    "while_in_scan": ("scan", "while"),
    "shard_map_of_layers": ("shard_map",),
    "shard_map_in_scan": ("scan", "shard_map"),
    "jit_with_shardings": ("jit",),
    "custom_vjp_in_scan": ("scan", "custom_vjp_call"),
    "checkpoint_in_scan": ("scan", "checkpoint"),
}


def paths(jaxpr, above=()):
    """Every chain of primitives that lie within each other."""
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        here = (*above, eqn.primitive.name)
        yield here
        for inner in sub_jaxprs(eqn.params):
            yield from paths(inner, here)


def lies_within(wanted, path):
    """Whether the wanted primitives occur in a path, in order."""
    rest = iter(path)
    return all(any(name.startswith(w) or (w == "checkpoint" and "remat" in name) for name in rest) for w in wanted)


def test_every_member_is_described():
    assert set(HOLDS) == set(STRUCTURED)


QUICK = ("scanned", "cond_in_scan", "while_forward_only", "shard_map_in_scan", "custom_vjp_in_scan")


@pytest.mark.parametrize("name", STRUCTURED)
def test_it_has_its_structure(name):
    loss, args = STRUCTURED[name]
    found = list(paths(jax.make_jaxpr(loss)(*args)))
    assert any(lies_within(HOLDS[name], path) for path in found), found


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in STRUCTURED])
def test_it_runs_and_differentiates(name):
    loss, args = STRUCTURED[name]
    step = jax.jit(jax.value_and_grad(loss))
    value, gradients = jax.device_get(step(*args))  # what is moved has no sharding, so nothing is compiled again
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) and np.max(np.abs(g)) > 0 for g in jax.tree.leaves(gradients))
    slope = float(np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(gradients))))

    def moved(distance):
        return float(
            step(
                jax.tree.map(lambda p, g: np.asarray(p) + np.float32(distance / slope) * g, args[0], gradients),
                *args[1:],
            )[0]
        )

    assert (moved(STEP) - moved(-STEP)) / (2 * STEP) == pytest.approx(slope, rel=0.02)
