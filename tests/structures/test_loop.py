"""Which rows of a scan are only narrowed, and what that takes where they are converted before the loop."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.platforms import backend_for, judged_by
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import Choice, Part, as_is, saving, structured
from remat_plan.graph.structure import structure_of
from remat_plan.structures.loop import loop_of, narrowed_rows
from tests.helpers import traced

WEIGHTS = jax.ShapeDtypeStruct((8, 2048, 4096), jnp.float32), jax.ShapeDtypeStruct((8, 4096, 2048), jnp.float32)
X = jax.ShapeDtypeStruct((512, 2048), jnp.bfloat16)
BYTES = 2 * 8 * 2048 * 4096 * 2
"""Of both stacks in bfloat16."""


def layers(cast):
    """A perceptron of eight residual layers under a scan, that computes with what ``cast`` makes of its weights."""

    def step(x, w):
        first, second = cast(w)
        return x + jax.nn.gelu(x @ first) @ second, None

    return lambda w, x: jnp.sum(lax.scan(step, x, w)[0].astype(jnp.float32))


def low(w):
    return w[0].astype(jnp.bfloat16), w[1].astype(jnp.bfloat16)


def scan_of(fn, w=WEIGHTS):
    program = traced(fn, w, X)
    return program.graph, next(op for op in program.graph.ops if structure_of(op))


def found(cast, w=WEIGHTS):
    graph, op = scan_of(layers(cast), w)
    loop = loop_of(graph, op)
    return {place - loop.first_row: share for place, share in narrowed_rows(loop).items()}


def test_rows_that_are_read_in_a_smaller_type_alone_are_narrowed():
    assert found(low) == {0: 0.5, 1: 0.5}
    assert found(lambda w: (low(w)[0] * jnp.mean(w[0]).astype(jnp.bfloat16), low(w)[1])) == {1: 0.5}, "read wide too"
    assert found(lambda w: w, jax.tree.map(lambda s: s.update(dtype=jnp.bfloat16), WEIGHTS)) == {}
    assert found(lambda w: low(jax.tree.map(jnp.sin, w))) == {}, "something else is narrowed"


def peak_bytes(device):
    """The predicted peak where each layer is run again."""
    graph, op = scan_of(layers(low))
    each = structured(op.index, Choice((Part(8, (saving(0, len(loop_of(graph, op).body.ops)),)),)))
    around = [as_is(0, op.index), each, as_is(op.index + 1, len(graph.ops))]
    schedule = tuple([s for s in around if s.start < s.end])
    return StepProgram(Rules(graph, hardware_for(device, device.partition(":")[0]))).loss_timeline(schedule).peak_bytes


@pytest.mark.parametrize(("platform", "device"), [("tpu", "tpu:v5e"), ("gpu", "gpu:h100"), ("cpu", "cpu")])
def test_a_tpu_keeps_all_narrowed_rows_but_for_what_its_chip_holds(platform, device):
    hardware = hardware_for(device, platform)
    with judged_by(platform, backend_for(hardware).without("narrowed_stacks")):
        without = peak_bytes(device)
    kept_bytes = BYTES - hardware.cache_bytes if platform == "tpu" else 0
    assert peak_bytes(device) - without == kept_bytes
