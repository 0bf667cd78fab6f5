"""Training steps on eight devices of the host; run in a process of its own by ``test_sharded_steps.py``."""

import contextlib
import logging
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import remat_plan as rp
from tests.compiles import counting_compiles
from tests.helpers import assert_trees_close, searching_quickly

WIDTH, LAYERS, ROWS = 128, 8, 16384
ADAM = optax.adam(1e-3)


def loss_with(constrain):
    def loss(params, x):
        for up, down in params:
            x = x + constrain(jnp.tanh(x @ up)) @ down
        return jnp.mean(x**2)

    return loss


def step_with(wrap, loss):
    def train_step(state, x):
        params, opt = state
        value, grads = jax.value_and_grad(wrap(loss))(params, x)
        updates, opt = ADAM.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    return train_step


def start(layers=LAYERS):
    keys = jax.random.split(jax.random.key(0), 2 * layers)
    weights = [jax.random.normal(k, (WIDTH, WIDTH)) / WIDTH for k in keys]
    return list(zip(weights[::2], weights[1::2], strict=True)), jax.random.normal(jax.random.key(1), (ROWS, WIDTH))


# Shardings of a layer's two weights and of the batch: copies everywhere, FSDP, tensor parallel.
LAYOUTS = {
    "replicated": ((P(), P()), P("data")),
    "fsdp": ((P("data"), P("data")), P("data")),
    "tensor": ((P(None, "model"), P("model", None)), P("data")),
}


def run(layout, explicit, mesh_set):
    shape = (4, 2) if layout == "tensor" else (8, 1)
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Explicit if explicit else AxisType.Auto,) * 2)
    specs, batch = LAYOUTS[layout]
    params, x = start()
    want = jax.jit(step_with(lambda f: f, loss_with(lambda h: h)))((params, ADAM.init(params)), x)
    hidden = NamedSharding(mesh, P("data", "model")) if layout == "tensor" and not explicit else None
    loss = loss_with(lambda h: h if hidden is None else jax.lax.with_sharding_constraint(h, hidden))
    with jax.set_mesh(mesh) if mesh_set else contextlib.nullcontext():
        put = [
            tuple(jax.device_put(w, NamedSharding(mesh, s)) for w, s in zip(ws, specs, strict=True)) for ws in params
        ]
        args = (put, ADAM.init(put)), jax.device_put(x, NamedSharding(mesh, batch))
        step = rp.fit(step_with(rp.remat, loss), *args, budget="70%")
        got = step(*args)
        text = step.lower(*args).as_text()
    report = step.report
    assert report.planned.peak_bytes <= report.budget_bytes < report.plain.peak_bytes, report
    # Of one device: an eighth of the batch, and of the weights what the layout says.
    assert report.plain.argument_bytes < (3 * 2 * LAYERS * WIDTH**2 + ROWS * WIDTH / shape[0]) * 4 + 1000
    assert hidden is None or text.count("sharding_constraint") >= LAYERS or text.count("@Sharding") >= LAYERS
    assert_trees_close(*(jax.tree.map(np.asarray, tree) for tree in (got, want)), 1e-3, 1e-5)
    print(layout, explicit, mesh_set, report.plain.peak_bytes, report.planned.peak_bytes, report.compiles)


def notes():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    params, x = start()
    x = jax.device_put(x, NamedSharding(mesh, P("data")))
    loss = loss_with(lambda h: h)
    assert any("along automatic axes" in n for n in rp.plan(loss, params, x, budget="70%").notes)
    with jax.set_mesh(mesh):
        planned = rp.remat(loss, strategy="memory", verify=False)
        jax.jit(jax.grad(planned)).lower(params, x)
    (plan,) = planned.plans.values()
    assert any("rp.fit" in n and "does not show" in n for n in plan.notes)
    with pytest.raises(rp.BudgetError, match=r"Try .*rp\.fit for the whole step .* are totals of all devices"):
        jax.jit(jax.grad(rp.remat(loss, budget=1000, verify=False))).lower(params, x)


def gradients():
    """Outside of ``jit`` arrays are seen through the gradient that is taken; each layout has a plan of its own."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    params, x = start()
    planned = rp.remat(loss_with(lambda h: h), budget="60MB")
    lies = [
        x,
        jax.device_put(x, NamedSharding(mesh, P("data"))),
        jax.device_put(x, NamedSharding(mesh, P("data", None))),
    ]
    got = [jax.grad(lambda x, params: planned(params, x))(x, params) for x in lies]
    for other in got[1:]:
        assert_trees_close(np.asarray(other), np.asarray(got[0]), 1e-3, 1e-5)
    one, several = planned.plans.values()
    assert several.written_peak_bytes < 0.3 * one.written_peak_bytes
    assert several.overhead == 0 < one.overhead


def where():
    """A plan of arrays along automatic axes holds inside ``jit``, also of what writes their mesh into equations."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    params, x = start(5)
    x = jax.device_put(x, NamedSharding(mesh, P("data")))
    loss = loss_with(lambda h: jnp.where(h > 0, h, 0.0))
    plan = rp.plan(loss, params, x, budget="70%")
    want = jax.jit(jax.value_and_grad(loss))(params, x)
    got = jax.jit(jax.value_and_grad(plan.apply(loss)))(params, x)
    assert_trees_close(*(jax.tree.map(np.asarray, tree) for tree in (got, want)), 1e-3, 1e-5)
    assert plan.compiled_peak_bytes <= plan.budget_bytes < plan.written_peak_bytes


def calls():
    """Calls compile what jit would at most, inside another trace too, and say once what changed."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    params, x = start()
    loss = loss_with(lambda h: jax.lax.with_sharding_constraint(h, NamedSharding(mesh, P("data", "model"))))
    plain = jax.jit(step_with(lambda f: f, loss))
    specs, batch = LAYOUTS["tensor"]
    put = [tuple(jax.device_put(w, NamedSharding(mesh, s)) for w, s in zip(ws, specs, strict=True)) for ws in params]
    state, x = (put, ADAM.init(put)), jax.device_put(x, NamedSharding(mesh, batch))
    first = want = state
    step, log = rp.fit(step_with(rp.remat, loss), state, x, budget="60%"), heard()
    with counting_compiles() as compiles:
        for most in (0, 1, 1):
            state, _ = step(state, x)
            assert compiles() <= most, compiles()
    for _ in range(3):
        want, _ = plain(want, x)
    assert_trees_close(*(jax.tree.map(np.asarray, tree) for tree in (state, want)), 1e-3, 1e-5)
    assert len(log) <= 1, log
    del log[:]
    with counting_compiles() as compiles:
        moved = jax.device_put(x, NamedSharding(mesh, P("data", "model")))
        assert compiles() == 0
        step(first, moved)
        step(first, moved)
        assert compiles() == 1
    (message,) = log
    assert "fitting again: x changed from" in message, message
    assert "'model'" in message, message
    with counting_compiles() as compiles:
        options = rp.compiler_options() or None  # below, bytes of all devices are above the budget
        twice = jax.jit(lambda state, x: step(step(state, x)[0], x), compiler_options=options)
        got = twice(first, x)[0]
        assert compiles() == 1
    assert_trees_close(got, plain(plain(first, x)[0], x)[0], 1e-3, 1e-5)
    got = jax.jit(lambda state, xs: jax.lax.scan(step, state, xs), compiler_options=options)(
        first, jnp.stack([x, x, x])
    )[0]
    assert_trees_close(*(jax.tree.map(np.asarray, tree) for tree in (got, want)), 1e-3, 1e-5)


def unplaced():
    """State that no device was named for, as ``jax.jit(optimizer.init)`` makes it, counts as the compiler lays it."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    params, x = jax.device_put(start(2), NamedSharding(mesh, P("data", "model")))
    state = params, jax.jit(ADAM.init)(params)
    assert not state[1][0].mu[0][0].committed
    report = rp.fit(step_with(rp.mark, loss_with(lambda h: h)), state, x, budget="100%", donate_argnums=0).report
    parts = report.parameter_bytes + report.optimizer_bytes + report.batch_bytes
    assert parts == report.plain.argument_bytes, report


def heard():
    """Messages of the library from now on."""
    log = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: log.append(record.getMessage())
    logger = logging.getLogger("remat_plan")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return log


CASES = {"notes": notes, "gradients": gradients, "where": where, "calls": calls, "unplaced": unplaced}

if __name__ == "__main__":
    if sys.argv[1] in CASES:
        with searching_quickly():
            CASES[sys.argv[1]]()
    else:
        for case in sys.argv[1:]:
            layout, kind, mesh_set = case.split(",")
            run(layout, kind == "explicit", mesh_set == "set")
