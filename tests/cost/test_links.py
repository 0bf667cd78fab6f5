"""Transfers beside kernels: what hides, and what comes on top."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import Hardware, hardware_for
from remat_plan.cost.links import Link
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import Choice, Part, Segment
from remat_plan.graph.ways import Around, Keep, Plain
from remat_plan.structures.loop import loop_of
from tests.helpers import traced

W = jax.ShapeDtypeStruct((6, 256, 256), jnp.float32)
X = jax.ShapeDtypeStruct((1024, 256), jnp.float32)
VALUE_BYTES = 1024 * 256 * 4


def scanned(ws, x):
    def step(x, w):
        return jnp.tanh(jnp.sin(x @ w) @ w), None

    return jnp.sum(lax.scan(step, x, ws)[0])


def with_steps(way, count=6, groups=()):
    """The program with every step of its loop run in one way, which is made of the body."""
    graph = traced(scanned, W, X).graph
    index = next(op.index for op in graph.ops if op.primitive == "scan")
    body = loop_of(graph, graph.ops[index]).body
    step = Segment(0, len(body.ops), way(body))
    loop = Plain(((index, Choice((Part(count, (step,), groups),))),))
    return graph, (Segment(index, index + 1, loop), Segment(index + 1, len(graph.ops)))


def timeline(way, link=5e10, **loop):
    graph, schedule = with_steps(way, **loop)
    hardware = Hardware("toy", 1e13, 1e13, 1e12, link_bytes_per_second=link)
    return StepProgram(Rules(graph, hardware)).loss_timeline(schedule)


def product(action):
    """Keep the first product of a step."""
    return lambda body: Keep(((body.ops[0].outputs[0], action),))


def carry(action):
    """Keep nothing but what comes in."""
    return lambda body: Keep(((body.carried[0], action),))


def test_what_is_stored_leaves_beside_the_kernels_before_the_first_fetch():
    link = Link()
    link.run(3.0)
    link.run(1.0, transfer=2.0)
    link.run(5.0, transfer=7.0, returning=True)
    assert link.seconds == 4.0 + 7.0


@pytest.mark.parametrize(("way", "values"), [(product, 1), (carry, 1)])
def test_bytes_on_the_host_are_those_of_all_steps(way, values):
    assert timeline(way("offload")).host_bytes == values * 6 * VALUE_BYTES


def test_a_carry_moves_from_the_device_to_the_host():
    around = timeline(lambda body: Around((Segment(0, len(body.ops)),), ((body.carried[0], "offload"),)))
    moved, kept = timeline(carry("offload")), timeline(lambda body: Keep())
    assert kept.host_bytes == 0
    assert moved.peak_bytes < kept.peak_bytes - 4 * VALUE_BYTES
    assert (around.peak_bytes, around.host_bytes) == (moved.peak_bytes, moved.host_bytes)


def test_groups_keep_one_group_at_a_time():
    grouped = timeline(product("offload"), groups=(3,))
    assert grouped.host_bytes == 2 * VALUE_BYTES


def test_a_slow_link_takes_what_its_bytes_do_not_hide():
    fast, slow = (timeline(product("offload"), link).seconds for link in (1e15, 1e6))
    assert timeline(product("save")).seconds == pytest.approx(fast, rel=0.2)
    assert slow == pytest.approx(2 * 6 * VALUE_BYTES / 1e6, rel=0.01)


def test_links_of_data_sheets():
    known = [hardware_for(name, name[:3]).link_bytes_per_second for name in ("gpu:h100", "gpu:a100", "tpu:v5e", "cpu")]
    assert known == [7 / 8 * 63e9, 7 / 8 * 31.5e9, 1.6e10, 0.0]
