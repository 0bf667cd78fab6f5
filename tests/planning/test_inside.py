"""A program that is all inside one call is planned as it is outside of one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import remat_plan as rp
from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import as_is, saving
from remat_plan.planning.inside import find_inside
from remat_plan.planning.limits import NO_LIMITS
from tests.helpers import traced

CPU = hardware_for("cpu", "cpu")
SHAPES = [jax.ShapeDtypeStruct((64, 64), "float32")] * 12, jax.ShapeDtypeStruct((1024, 64), "float32")


def layers(ws, x):
    for w in ws:
        x = jnp.tanh(jnp.sin(x @ w)) + x
    return x


def loss(ws, x):
    return jnp.sum(layers(ws, x) ** 2)


MESH, ONES = Mesh(np.array(jax.devices()[:1]), ("d",)), [jnp.ones((64, 64))] * 12


def mapped(fn, outside=lambda y: y):
    mesh, whole = MESH, PartitionSpec()
    inner = jax.shard_map(fn, mesh=mesh, in_specs=(whole, whole), out_specs=whole, check_vma=False)
    return lambda *args: outside(inner(*args))


def inside_of(fn):
    return find_inside(Rules(traced(fn, *SHAPES).graph, CPU), NO_LIMITS)


def test_the_call_that_holds_all_work_is_gone_into():
    sharded = jax.jit(mapped(loss), in_shardings=NamedSharding(MESH, PartitionSpec()))
    inside = inside_of(lambda ws, x: 2 * sharded(ws, x))
    assert len(inside.path) == 2
    assert sum(op.primitive == "dot_general" for op in inside.rules.graph.ops) == len(SHAPES[0])


@pytest.mark.parametrize(
    "fn",
    [
        loss,
        mapped(layers, lambda y: loss(ONES, y)),  # as much work is outside
        lambda ws, x: jax.lax.scan(lambda x, _: (layers(ws, x), None), x, None, 3)[0].sum(),
    ],
)
def test_other_programs_are_searched_as_they_are(fn):
    assert not inside_of(fn).calls


def test_schedules_of_the_region_and_of_the_program():
    program = traced(mapped(loss, lambda y: 2 * y), *SHAPES)
    rules = Rules(program.graph, CPU)
    inside = find_inside(rules, NO_LIMITS)
    n = len(inside.rules.graph.ops)
    segments = saving(0, n // 2), as_is(n // 2, n)
    assert inside.within(inside.around(segments)) == segments
    assert inside.around((as_is(0, n),)) == program.plain
    assert inside.within(program.plain) == (as_is(0, n),)
    timeline = StepProgram(rules).loss_timeline(inside.around(segments))
    path = inside.path
    assert {place[: len(path)] for place in timeline.places if len(place) > 1} == {path}
    assert {place[len(path)] for place in timeline.places if len(place) > 1} <= set(range(n))


@pytest.mark.parametrize("share", ["70%", "50%", "35%"])
def test_a_plan_is_as_fast_as_outside_of_the_call(share):
    given = {"budget": share, "verify": False, "never_split": True}
    bare = rp.plan(loss, *SHAPES, **given)
    wrapped = rp.plan(mapped(loss), *SHAPES, **given)
    assert wrapped.predicted_peak_bytes <= bare.predicted_peak_bytes * 1.01
    assert wrapped.overhead <= bare.overhead + 0.005


def test_gradients_are_those_of_the_plain_step():
    args = [w * 0.1 for w in ONES], jnp.linspace(0, 1, 1024 * 64).reshape(1024, 64)
    fn = mapped(loss)
    planned = rp.plan(fn, *args, budget="40%", verify=False).apply(fn)
    for got, wanted in zip(*(jax.tree.leaves(jax.jit(jax.grad(f))(*args)) for f in (planned, fn)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_what_is_saved_inside_is_listed_by_value():
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    specs = PartitionSpec(), PartitionSpec("d")
    summed = lambda ws, x: jax.lax.psum(loss(ws, x), "d")  # noqa: E731
    mapped_rows = rp.analyze(jax.shard_map(summed, mesh=mesh, in_specs=specs, out_specs=PartitionSpec()), *SHAPES)
    bare = rp.analyze(loss, *SHAPES)
    assert {r.primitive for r in mapped_rows.residuals} >= {"sin", "tanh", "dot_general"}
    assert mapped_rows.saved_bytes == pytest.approx(bare.saved_bytes, rel=0.02)
    assert mapped_rows.peak is not None
    assert "float32[1024,64] " in mapped_rows.peak.value
