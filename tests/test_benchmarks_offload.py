"""The table of what the host's memory gains: its hands are the model, and it says what is behind."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import offload
from benchmarks.common import Options
from benchmarks.offload import ALL, EACH, PLAIN, ROOMY, SLOWER, Row, facts_of
from tests.helpers import assert_trees_close


def test_hands_are_the_model():
    place = offload.pairs_of_products(32, 8, 16, 3)
    keys = iter(jax.random.split(jax.random.key(0), 3))
    weights = tuple(jax.random.normal(next(keys), s.shape, s.dtype) for s in place.model.params)
    x = jax.random.normal(next(keys), place.model.batch.shape, jnp.float32)
    for loss in place.hands.values():
        assert_trees_close(jax.value_and_grad(loss)(weights, x), jax.value_and_grad(place.model.loss)(weights, x))


def row(step, peak_bytes, host_bytes, seconds):
    return Row("gpu:h100", "a", step, peak_bytes, 0, host_bytes, 1.0, seconds)


def facts(ours, alone=1.2, roomy_host=0, most=1.1):
    rows = [row(PLAIN, 900, 0, 1.0), row("by hand, inputs", 100, 10, 1.1), row(f"by hand, {EACH}", 100, 0, 1.3)]
    rows += [row("ours, in the bytes of inputs", *ours), row(f"ours, in the bytes of {EACH}", 100, 50, 1.1)]
    return facts_of([*rows, row(SLOWER, 100, 0, alone), row(ROOMY, 900, roomy_host, 1.0), row(ALL, 800, 0, most)])


def test_gains_are_over_plans_on_the_device_alone():
    assert facts((100, 10, 1.1))[0].endswith("by: a on gpu:h100 10.0 points with 5e-05 MB there")


def test_what_memory_is_worth_at_most_is_told():
    assert facts((100, 10, 1.1), most=1.15)[2].endswith("by: a on gpu:h100 5.0 points in 0.0008 MB")


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        ((100, 10, 1.1), "none"),
        ((100, 10, 1.15), "a on gpu:h100, inputs (+5.0 points)"),
        ((101, 10, 1.1), "a on gpu:h100, inputs (+0.0 points)"),
        ((100, 11, 1.1), "a on gpu:h100, inputs (+0.0 points)"),
    ],
)
def test_what_is_behind_a_hand_is_told(ours, told):
    assert facts(ours)[3].endswith(f": {told}")


def test_a_plan_without_the_host_is_held_to_the_hand_too():
    assert facts((100, 10, 1.1), alone=1.4)[3].endswith(
        ": a on gpu:h100, each layer's bytes, device alone (+10.0 points)"
    )


@pytest.mark.parametrize(("host_bytes", "told"), [(0, "none"), (7, "a on gpu:h100")])
def test_what_is_moved_for_nothing_is_told(host_bytes, told):
    assert facts((100, 10, 1.1), roomy_host=host_bytes)[4].endswith(f": {told}")


@pytest.mark.slow
def test_the_table_is_made_and_goes_on_where_it_stopped(tmp_path, capsys):
    options = Options(quick=True, results=tmp_path, targets=("cpu",))
    made = offload.run(options)
    assert len(made.rows) == 8
    capsys.readouterr()
    assert offload.run(options).rows == made.rows


def test_hands_of_the_optimizer_example_are_its_step():
    example = offload.Updating(16, 8)
    keys = jax.random.split(jax.random.key(0), 5)
    params = {f"w{n}": jax.random.normal(key, (16, 16)) for n, key in enumerate(keys[:4])}
    args = params, offload._ADAM.init(params), jax.random.normal(keys[4], (8, 16))
    wanted = jax.jit(example.step)(*args)
    for step in (example.documented, example.leaf_by_leaf):
        on_device = jax.tree.map(lambda x: jax.device_put(x, jax.memory.Space.Device), jax.jit(step)(*args))
        assert_trees_close(on_device, wanted)


def test_the_optimizer_example_is_made_once():
    known = {
        step: Row("tpu:v5e:1x1", "adam", step) for step in (PLAIN, "by hand, as documented", "by hand, leaf by leaf")
    }
    known["ours, in 2.9GiB"] = Row("tpu:v5e:1x1", "adam", "ours, in 2.9GiB")
    assert not [*offload.rows_of_update("cpu", offload.Updating(), known)]
