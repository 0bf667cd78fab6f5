"""The optimizer's update with its state on the host: which arrays stay there, and that values are those of the step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from remat_plan.graph.needs import SLICES
from remat_plan.training.update import Update, new_versions, streaming

SHAPES = ((37, 12), (1, 40), (32,), (3, 5, 7), ())
"""Uneven, of one row (which is cut along the other dimension), of one dimension, of fewer rows than slices, a scalar."""


def parameters(dtype="float32"):
    keys = jax.random.split(jax.random.key(0), len(SHAPES))
    return {
        f"p{n}": jax.random.normal(key, shape, dtype) for n, (key, shape) in enumerate(zip(keys, SHAPES, strict=True))
    }


def step_of(optimizer, metrics=lambda p, s: ()):
    def loss(p, x):
        return jnp.mean((x @ p["p0"]) ** 2) + sum(jnp.sum(jnp.sin(w) * (n + 1)) for n, w in enumerate(p.values()))

    def step(p, state, x):
        grads = jax.grad(loss)(p, x)
        updates, state = optimizer.update(grads, state, p)
        p = optax.apply_updates(p, updates)
        return p, state, metrics(p, state)

    return step


def update_of(step, *args):
    """The update of a step with all of its state wanted on the host, if it has rows."""
    closed, results = jax.make_jaxpr(step, return_shape=True)(*args)
    first, leaves = len(jax.tree.leaves(args[0])), jax.tree.leaves(args[:2])
    return Update.of(closed, args, results, [n for n in range(first, len(leaves)) if leaves[n].ndim])


def close(found, wanted, **tolerance):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one, "float32"), np.asarray(other, "float32"), **tolerance)


def squares(tree):
    return sum(jnp.sum(x**2) for x in jax.tree.leaves(tree))


def kinds(tree):
    return [x.sharding.memory_kind for x in jax.tree.leaves(tree)]


X = jnp.ones((3, 37))
OPTIMIZERS = {
    "adam": (lambda: optax.adam(1e-2), 8),
    "adamw": (lambda: optax.adamw(1e-2, weight_decay=0.1), 8),
    "momentum": (lambda: optax.sgd(1e-2, momentum=0.9, nesterov=True), 4),
    "lion": (lambda: optax.lion(1e-2), 4),
    "clipped before": (lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)), 8),
    "clipped behind": (
        lambda: optax.chain(optax.scale_by_adam(), optax.clip_by_global_norm(1.0), optax.scale(-0.1)),
        8,
    ),
    "by layer": (lambda: optax.lamb(1e-2), 8),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in OPTIMIZERS), ("clipped before", "bfloat16")]
)
def test_state_that_is_updated_element_by_element_stays_on_the_host(name, dtype):
    make, count = OPTIMIZERS[name]
    optimizer, p = make(), parameters(dtype)
    step = step_of(optimizer)
    args = p, optimizer.init(p), X.astype(dtype)
    update = update_of(step, *args)
    assert len(update.hosted) == count  # all but scalars
    moving, plain = jax.jit(streaming(step, args, update.hosted)), jax.jit(step)
    moved = kept = args[:2]
    for _ in range(2):
        *kept, _ = plain(*kept, args[2])
        *moved, _ = moving(*moved, args[2])
        tolerance = {"rtol": 2e-5, "atol": 2e-5} if dtype == "float32" else {"rtol": 2e-2, "atol": 2e-2}
        close(moved, kept, **tolerance)
    assert kinds(moved).count("pinned_host") == count
    assert set(kinds(moved[0])) == {"device"}


@pytest.mark.parametrize(
    ("make", "moved"),
    [
        # sums over rows, those of others, and what has no factors
        (lambda: optax.adafactor(1e-2, min_dim_size_to_factor=4), {(37,), (3, 5), (3, 7), (1, 40), (32,)}),
        # its products read no state, but what is computed from it
        (lambda: optax.contrib.muon(1e-2), {(37, 12), (1, 40), (32,), (3, 5, 7)}),
        (lambda: optax.MultiSteps(optax.adam(1e-2), 2), set()),  # in a branch
    ],
)
def test_only_what_is_updated_element_by_element_moves(make, moved):
    optimizer, p = make(), parameters()
    step = step_of(optimizer)
    args = p, optimizer.init(p), X
    update = update_of(step, *args)
    assert {leaf.shape for n, leaf in enumerate(jax.tree.leaves(args)) if n in update.hosted} == moved
    close(jax.jit(streaming(step, args, update.hosted))(*args), jax.jit(step)(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "metrics",
    [
        lambda p, s: jnp.linalg.qr(s[0].mu["p0"])[1],  # reads the new state whole
        lambda p, s: [jax.tree.leaves(s[0].mu)[0]],  # returns it twice
    ],
)
def test_state_that_is_read_elsewhere_stays_on_the_device(metrics):
    optimizer, p = optax.adam(1e-2), parameters()
    step = step_of(optimizer, metrics)
    args = p, optimizer.init(p), X
    update = update_of(step, *args)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(args)[0]]
    assert "[1][0].mu['p0']" not in {paths[n] for n in update.hosted}
    assert "[1][0].nu['p0']" in {paths[n] for n in update.hosted}
    close(jax.jit(streaming(step, args, update.hosted))(*args), jax.jit(step)(*args), rtol=2e-5, atol=2e-5)


def test_norms_of_parameters_are_summed_over_the_slices():
    optimizer, p = optax.adam(1e-2), parameters()
    step = step_of(optimizer, lambda p, s: squares(p))
    args = p, optimizer.init(p), X
    update = update_of(step, *args)
    assert len(update.hosted) == 8
    close(jax.jit(streaming(step, args, update.hosted))(*args), jax.jit(step)(*args), rtol=2e-5, atol=2e-5)


def test_one_loop_updates_what_is_read_together():
    optimizer, p = optax.adam(1e-2), {"w": jnp.ones((37, 12))}

    def step(p, state, x):
        grads = jax.grad(lambda p: jnp.mean((x @ p["w"]) ** 2))(p)
        updates, state = optimizer.update(grads, state, p)
        return optax.apply_updates(p, updates), state, ()

    args = p, optimizer.init(p), X
    update = update_of(jax.jit(step), *args)  # jitted or not
    assert [type(unit).__name__ for unit in update.streamed.order].count("Slicer") == 1
    text = str(jax.make_jaxpr(streaming(step, args, update.hosted))(*args).pretty_print(name_stack=True))
    assert text.count("scan[") == 1
    assert SLICES in text


def test_a_state_that_was_wanted_and_cannot_stay_is_fetched_whole():
    optimizer, p = optax.contrib.muon(1e-2), parameters()
    step = step_of(optimizer)
    args = p, optimizer.init(p), X
    first, leaves = len(jax.tree.leaves(p)), jax.tree.leaves(args[:2])
    everything = [n for n in range(first, len(leaves)) if leaves[n].ndim]
    close(jax.jit(streaming(step, args, everything))(*args), jax.jit(step)(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "results", "found"),
    [
        (lambda w: ({"w": w}, [{"w": w}], w), lambda w: (w, [{"w": w}], {"w": w}), {0: 2, 1: 1, 2: 0}),
        (lambda w: (w, w, w), lambda w: (w[0], (w, w)), {0: 1, 1: 2}),
        (lambda w: ({"state": {"mu": w, "nu": w}},), lambda w: {"state": {"mu": w, "nu": w}}, {0: 0, 1: 1}),
        (lambda w: ({"mu": w},), lambda w: {"mu": w[0]}, {}),
    ],
)
def test_new_versions_are_told_by_their_paths(arguments, results, found):
    w = jnp.ones((4, 4))
    assert new_versions(arguments(w), results(w)) == found
