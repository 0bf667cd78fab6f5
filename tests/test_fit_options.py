"""Options of XLA for a whole step: ``rp.fit(..., compiler_options=...)``."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import remat_plan as rp
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.targets import resolve
from tests.helpers import CUDA, assert_trees_close, has_module

pytestmark = pytest.mark.usefixtures("quick_search")

OPTION = {"xla_backend_optimization_level": 0}
HIDES = "xla_gpu_enable_latency_hiding_scheduler"


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def train_step(ws, x):
    grads = jax.grad(rp.remat(loss))(ws, x)
    return jax.tree.map(lambda w, g: w - g, ws, grads)


def small(rows):
    return [jnp.eye(32)] * 6, jnp.ones((rows, 32))


@pytest.mark.parametrize(
    "options",
    [pytest.param(OPTION, marks=pytest.mark.slow), {"xla_disable_hlo_passes": "cse_barrier_expander,algsimp"}],
)
def test_options_are_those_of_the_search_and_of_the_step(monkeypatch, options):
    """One that plans need too is as the user says."""
    jitted, jit, wanted = [], jax.jit, {**rp.compiler_options(), **options}

    def watched(fn, **told):
        jitted.append(told.get("compiler_options"))
        return jit(fn, **told)

    monkeypatch.setattr(jax, "jit", watched)
    ws, x = small(2048)
    step = rp.fit(train_step, ws, x, budget="70%", compiler_options=options)
    assert len(jitted) > 2
    assert all(given == wanted for given in jitted if given is not None)
    assert jitted[-1] == wanted
    assert step(ws, x)[0].shape == (32, 32)


def test_a_step_that_donates_by_itself_is_told_that_this_is_lost():
    """Inside another ``jit`` nothing is donated."""
    ws, x = small(256)
    notes = [
        rp.fit(jax.jit(train_step, donate_argnums=0), ws, x, budget="100%", **options).report.notes
        for options in ({}, {"donate_argnums": 0})
    ]
    assert [any("give rp.fit donate_argnums too" in note for note in found) for found in notes] == [True, False]


def test_an_option_that_xla_lacks_is_named():
    with pytest.raises((ValueError, RuntimeError), match="xla_no_such_option"):
        rp.fit(train_step, *small(256), budget="70%", compiler_options={"xla_no_such_option": 1})


@pytest.mark.parametrize("options", ["xla_option", [("xla_option", 1)], {1: 2}])
def test_options_come_by_name(options):
    with pytest.raises(TypeError, match="give XLA's options as a dict"):
        rp.fit(train_step, *small(256), budget="70%", compiler_options=options)


@pytest.mark.slow
def test_a_batch_is_searched_with_options():
    def make_args(batch):
        return [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 6, jax.ShapeDtypeStruct((batch, 32), jnp.float32)

    found = rp.max_batch(train_step, make_args, budget="1MB", compiler_options=OPTION)
    assert found.largest >= found.plain > 0
    with pytest.raises(TypeError, match="give XLA's options as a dict"):
        rp.max_batch(train_step, make_args, budget="1MB", compiler_options=1)


@pytest.mark.slow
@pytest.mark.skipif(not has_module(CUDA), reason="the CUDA plugin is not installed")
@pytest.mark.skipif(rp._compat.drops_checkpoint_barriers(), reason="segments wait from jaxlib 0.11.1 on")
def test_gradients_of_weights_are_made_in_time_on_eight_gpus():
    """XLA sums them late, to hide collectives, and keeps what they are made of; between segments of ours it cannot."""
    mesh = Mesh(np.array(resolve("gpu:h100:8").devices), ("data",))

    def laid(shape, *axes):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    def in_segments(length):
        def run(ws, x):
            for w in ws:
                x = jnp.tanh(x @ w)
            return x

        def by_hand(ws, x):
            for i in range(0, len(ws), length):
                x = jax.checkpoint(run)(ws[i : i + length], x)
            return jnp.mean(x**2)

        return by_hand

    args = [laid((512, 512)) for _ in range(8)], laid((65536, 512), "data")
    target = resolve("gpu:h100:8")
    plain = compile_memory(jax.grad(loss), args, target).total_bytes
    by_hand = {n: compile_memory(jax.grad(in_segments(n)), args, target).total_bytes for n in (1, 2, 4)}
    assert by_hand[1] > plain
    with pytest.raises(rp.BudgetError) as error:
        rp.fit(train_step, *args, budget=1, target="gpu:h100:8")
    assert error.value.minimum_bytes < 0.7 * min(by_hand.values())
    step = rp.fit(train_step, *args, budget=min(by_hand.values()), target="gpu:h100:8")
    assert step.report.overhead < 0.2
    without = rp.fit(train_step, *args, budget="75%", target="gpu:h100:8", compiler_options={HIDES: False})
    assert without.report.planned.peak_bytes <= without.report.budget_bytes


@dataclasses.dataclass(slots=True)
class Config:
    width: int = 16
    scales: list = dataclasses.field(default_factory=lambda: [1.0])


@pytest.mark.slow
def test_static_attributes_need_not_be_hashable():
    """Nor static arguments; what is changed in one afterwards counts."""

    class Net(nnx.Module):
        def __init__(self, config, rngs):
            self.config = config
            self.layers = nnx.List([nnx.Linear(config.width, config.width, rngs=rngs) for _ in range(4)])

        def __call__(self, x):
            for layer in self.layers:
                x = jnp.tanh(layer(x)) * self.config.scales[0]
            return x

    def step(net, x, settings):
        value, grads = nnx.value_and_grad(rp.remat(lambda net, x: jnp.mean(net(x) ** 2)))(net, x)
        return value * settings["factor"], grads["layers"][0]["kernel"][...]

    net, x, settings = Net(Config(), nnx.Rngs(0)), jnp.ones((64, 16)), {"factor": 1.0}
    fitted = rp.fit(step, net, x, settings, budget="200%", static_argnums=2)
    for scale, factor in ((1.0, 1.0), (1.0, 3.0), (2.0, 3.0), (1.0, 1.0)):
        net.config.scales[0], settings["factor"] = scale, factor
        assert_trees_close(fitted(net, x, settings), step(net, x, settings), 2e-4, 1e-6)


def test_static_values_of_different_types_are_different():
    def step(w, n):
        return jax.grad(rp.remat(lambda w: jnp.sum(jnp.tanh(w)) * n))(w), n

    w = jnp.ones((4, 4))
    fitted = rp.fit(step, w, 1, budget="200%", static_argnums=1)
    for n in (1, 1.0, True, 0.0, -0.0, float("nan")):
        assert repr(jnp.asarray(fitted(w, n)[1])) == repr(jax.jit(lambda n=n: n)())


def test_a_counter_that_is_a_number_is_no_new_step_each_time(caplog):
    def step(state, x):
        grads = jax.grad(rp.remat(lambda w, x: jnp.sum(jnp.tanh(x @ w))))(state["w"], x)
        return {"w": state["w"] - grads, "step": state["step"] + 1}

    state, x = {"w": jnp.eye(4), "step": 0}, jnp.ones((8, 4))
    fitted = rp.fit(step, state, x, budget="200%")
    with caplog.at_level("INFO", "remat_plan"):
        for number in range(1, 4):
            state = fitted({**state, "step": int(state["step"])}, x)
            assert state["step"] == number
    assert "fitting again" not in caplog.text
