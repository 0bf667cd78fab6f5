"""The optimizer's state in the host's memory, in ``rp.fit(..., offload=True)``."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import remat_plan as rp
from remat_plan.search import judge
from remat_plan.training.step import TrainingStep
from tests.helpers import CUDA, has_module

pytestmark = pytest.mark.usefixtures("quick_search")

STRUCT = jax.ShapeDtypeStruct
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
TPU = pytest.mark.skipif(not has_module("libtpu"), reason="libtpu is not installed")
GPU = pytest.mark.skipif(not has_module(CUDA), reason="the CUDA plugin is not installed")


def loss(params, x):
    for w in params:
        x = jax.nn.gelu(x @ w)
    return jnp.mean((x - 1.0) ** 2)


def train_step(params, state, x):
    value, grads = jax.value_and_grad(rp.mark(loss))(params, x)
    updates, state = OPTIMIZER.update(grads, state, params)
    return optax.apply_updates(params, updates), state, value


def fit(params, x, **asked):
    state = OPTIMIZER.init(params) if isinstance(x, jax.Array) else jax.eval_shape(OPTIMIZER.init, params)
    return rp.fit(train_step, params, state, x, **{"donate_argnums": (0, 1), "offload": True, **asked})


def structs(width=4096, rows=256):
    return [STRUCT((width, width), jnp.float32)] * 4, STRUCT((rows, width), jnp.float32)


def kinds(tree):
    return {x.sharding.memory_kind for x in jax.tree.leaves(tree) if x.ndim}


def note_of(step):
    (note,) = [note for note in step.report.notes if "optimizer's state" in note]
    return note


@pytest.fixture
def linked(monkeypatch):
    """A CPU whose memory is not its host's: JAX gives it two, but XLA counts them as one."""
    known = judge.hardware_of
    monkeypatch.setattr(judge, "hardware_of", lambda *a: dataclasses.replace(known(*a), link_bytes_per_second=1e10))


def small():
    keys = jax.random.split(jax.random.key(0), 4)
    params = [jax.random.normal(key, (510, 510)) / 22 for key in keys]
    return params, OPTIMIZER.init(params), jnp.ones((16, 510))


def copied(tree):
    return jax.tree.map(jnp.copy, tree)


def same(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)


def test_state_stays_on_the_host_between_calls(linked, caplog):
    params, state, x = small()
    step = fit(params, x, budget="95%")
    assert "8.32 MB of the optimizer's state stay in the host's memory" in note_of(step)
    caplog.set_level("INFO", "remat_plan")
    plain, moved = (copied(params), copied(state)), (copied(params), copied(state))
    for _ in range(2):
        *plain, value = jax.jit(train_step)(*plain, x)
        *moved, found = step(*moved, x)
        same((moved, found), (plain, value))
        assert (kinds(moved[0]), kinds(moved[1])) == ({"device"}, {"pinned_host"})
    assert not caplog.records  # nothing was fitted again
    *_, shorter = step(*moved, x[:8])  # donated
    assert np.isfinite(shorter)
    assert "fitting again: x changed" in caplog.text
    placed = step.put(*small())
    assert kinds(placed[1]) == {"pinned_host"}
    assert jax.jit(lambda *args: step(*args)[2])(*placed) == pytest.approx(float(step(*small())[2]), rel=1e-4)
    assert step.measure(*placed, rounds=2).planned.seconds > 0


def test_a_report_tells_what_is_on_the_host(linked):
    step = fit(small()[0], small()[2], budget="95%")
    stored = json.loads(step.report.to_json())
    assert stored["hosted_bytes"] == step.report.hosted_bytes == 8 * 510 * 510 * 4
    (line,) = [line for line in str(step.report).splitlines() if "optimizer state" in line]
    assert line.split()[2:] == ["8.32", "MB", "4", "B"]


def test_what_was_compiled_in_vain_is_counted(linked, monkeypatch):
    compiled, original = [], TrainingStep.compile
    monkeypatch.setattr(TrainingStep, "compile", lambda self, *a: compiled.append(self.hosted) or original(self, *a))
    step = fit([jnp.eye(64)] * 4, jnp.ones((512, 64)), budget="90%")
    assert "the compiled step needs 1.9 MB with it on the host, 1.9 MB without" in note_of(step)
    assert {bool(hosted) for hosted in compiled} == {True, False}
    assert step.report.compiles == len(compiled)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"budget": "100%"}, "the budget is met without"),
        ({"budget": "99%"}, "the memory of cpu is its host's"),
    ],
)
def test_what_keeps_state_on_the_device_is_told(asked, told):
    params, x = [jnp.eye(16)] * 4, jnp.ones((4096, 16))
    step = fit(params, x, **asked)
    assert note_of(step) == f"the optimizer's state stays on the device: {told}"
    assert step.report.hosted_bytes == 0


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"donate_argnums": 0}, "none of it is donated, read by nothing but the update"),
        ({"offload": False}, None),
        (
            {"out_shardings": jax.sharding.SingleDeviceSharding(jax.devices()[0])},
            "out_shardings says where results lie",
        ),
    ],
)
def test_what_is_not_asked_for_is_not_moved(linked, asked, told):
    params, x = [jnp.eye(16)] * 4, jnp.ones((4096, 16))
    step = fit(params, x, budget="90%", **asked)
    assert step.report.hosted_bytes == 0
    assert told is None or told in note_of(step)
    assert told is not None or "optimizer's state" not in str(step.report.notes)


@GPU
def test_nothing_is_proven_for_a_gpu_that_is_not_attached():
    params, x = structs(256, 65536)
    step = fit(params, x, budget="90%", target="gpu:h100")
    assert "drops the memory kinds of arguments where no GPU is attached" in note_of(step)


@TPU
def test_a_tpu_needs_as_much_less_as_its_host_has():
    params, x = structs()
    state_bytes = 8 * 4096 * 4096 * 4
    step = fit(params, x, budget="60%", target="tpu:v5e:1x1")
    plain, planned = step.report.plain, step.report.planned
    assert step.report.hosted_bytes == planned.host_bytes == state_bytes
    assert planned.argument_bytes == plain.argument_bytes - state_bytes
    assert planned.peak_bytes <= plain.peak_bytes - 0.85 * state_bytes
    assert "on the host" in repr(step.report)
    module = step.lower(params, jax.eval_shape(OPTIMIZER.init, params), x).as_text()
    assert module.count('mhlo.memory_kind = "pinned_host"') == 16  # arguments and results


@TPU
@pytest.mark.slow
def test_a_host_budget_is_kept_on_a_tpu():
    params, x = structs()
    limit = 5 * 4096 * 4096 * 4
    step = fit(params, x, budget="85%", host_budget=limit, target="tpu:v5e:1x1")
    assert 0 < step.report.planned.host_bytes <= limit
    with pytest.raises(rp.BudgetError, match="of its state in the host's memory"):
        fit(params, x, budget="10%", target="tpu:v5e:1x1")
