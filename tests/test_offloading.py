"""Values in the host's memory through every door: a search that moves some, and what it is asked not to do."""

import inspect
import json

import jax
import jax.numpy as jnp
import matplotlib
import pytest
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.small.budget import format_bytes
from tests.helpers import CUDA, has_module

matplotlib.use("Agg")

pytestmark = pytest.mark.usefixtures("quick_search")

STRUCT = jax.ShapeDtypeStruct
ARGS = (
    (STRUCT((8, 4096, 16384), "bfloat16"), STRUCT((8, 16384, 4096), "bfloat16")),
    STRUCT((8192, 4096), "bfloat16"),
)
H100 = {"target": "gpu:h100", "verify": False}
searches = pytest.mark.skipif(not has_module(CUDA), reason="the CUDA plugin is not installed")
MOVING = ("offload", "may_offload", "host_budget")


def loss(weights, x):
    def layer(x, w):
        hidden = checkpoint_name(jax.nn.gelu(x @ w[0]), "hidden")
        return checkpoint_name(x + hidden @ w[1], "stream"), None

    return jnp.mean(jax.lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2)


@pytest.fixture(scope="module")
def comparison():
    asked = {"budgets": ["45%"], "strategies": ["auto", "each_block"], "offload": True}
    return rp.compare(loss, *ARGS, **asked, **H100)


@searches
def test_compared_plans_tell_bytes_on_the_device_and_on_the_host(comparison):
    auto, each = comparison.rows
    assert comparison.offloads
    assert auto.host_bytes == auto.plan.host_bytes > 0
    assert each.host_bytes == 0
    header, first, second = (line.split() for line in str(comparison).splitlines()[2:6] if "---" not in line)
    assert " ".join(header) == "strategy budget peak of plain on host overhead compiled FLOPs"
    assert " ".join(first).startswith(f"auto 45% {format_bytes(auto.peak_bytes)}")
    assert f"% {format_bytes(auto.host_bytes)} " in " ".join(first)
    assert second[5] == "-"
    note = "On host: bytes in the host's memory (predicted), in addition to the peak on the device."
    page = comparison._repr_html_()
    for shown in (str(comparison), page.replace("&#x27;", "'")):
        assert note in shown
    assert f", {format_bytes(auto.host_bytes)} on the host, overhead" in page
    assert [row["host_bytes"] for row in json.loads(comparison.to_json())["rows"]] == [auto.host_bytes, 0]


@searches
def test_nothing_is_said_of_the_host_where_nothing_is_moved():
    found = rp.compare(loss, *ARGS, budgets=["45%", "0.1%"], **H100)
    assert not found.offloads
    assert [row.host_bytes for row in found.rows] == [0, None]
    assert "on host" not in str(found) + found._repr_html_()


@searches
def test_a_budget_that_is_not_met_has_its_line_beside_plans_that_move_values():
    found = rp.compare(loss, *ARGS, budgets=["45%", "0.1%"], offload=True, **H100)
    assert found.rows[1].plan is None
    assert "least reached" in str(found)
    assert "least reached" in found._repr_html_()


@searches
def test_a_curve_tells_bytes_on_the_host():
    curve = rp.tradeoff(loss, *ARGS, target="gpu:h100", offload=True, points=4)
    moved = [p for p in curve.points if p.host_bytes]
    assert moved
    assert "on host" in str(curve)
    assert all(format_bytes(p.host_bytes) in str(curve) for p in moved)
    assert f"{format_bytes(moved[0].host_bytes)} on the host, overhead" in curve._repr_html_()
    plan = curve.plan(moved[0].peak_bytes, verify=False)
    assert plan.host_bytes > 0
    plain = rp.tradeoff(loss, *ARGS, target="gpu:h100", points=4)
    assert "host" not in str(plain) + plain._repr_html_()


@searches
def test_a_budget_for_the_host_is_kept():
    free = rp.plan(loss, *ARGS, budget="45%", offload=True, **H100)
    assert free.host_bytes > 10**6
    for door in (rp.compare, rp.tradeoff):
        kept = {"offload": True, "host_budget": 10**6, "target": "gpu:h100"}
        if door is rp.compare:
            (row,) = door(loss, *ARGS, budgets=["45%"], verify=False, **kept).rows
            assert row.host_bytes <= 10**6
        else:
            assert all(p.host_bytes <= 10**6 for p in door(loss, *ARGS, points=4, **kept).points)


@searches
def test_a_decorated_function_says_what_it_keeps_on_the_host():
    planned = rp.remat(loss, budget="45%", offload=True, **H100)
    jax.eval_shape(jax.grad(planned), *ARGS)
    (plan,) = planned.plans.values()
    assert f"{format_bytes(plan.host_bytes)} on the host" in repr(planned)


@pytest.mark.parametrize("door", [rp.plan, rp.tradeoff, rp.compare])
@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ({"host_budget": "1GB"}, ValueError, "host_budget='1GB' is for offload=True"),
        ({"offload": True, "host_budget": "60%"}, ValueError, "host_budget='60%': give bytes of the host's memory"),
        ({"offload": True, "host_budget": []}, ValueError, r"host_budget=\[\]: give bytes"),
        ({"may_offload": "hidden"}, TypeError, r"may_offload='hidden': give a list of names, \['hidden'\]"),
    ],
)
def test_what_is_asked_wrongly_is_named(door, asked, error, told):
    needed = {rp.plan: {"budget": "45%"}, rp.tradeoff: {}, rp.compare: {"budgets": ["45%"]}}[door]
    with pytest.raises(error, match=told):
        door(loss, *ARGS, target="gpu:h100", **needed, **asked)


@searches
def test_a_name_that_nothing_has_is_told():
    for door, needed in ((rp.plan, {"budget": "45%", "verify": False}), (rp.tradeoff, {})):
        with pytest.raises(ValueError, match=r"may_offload: no value is named 'nobody'\. .* 'hidden', 'stream'"):
            door(loss, *ARGS, target="gpu:h100", may_offload=["nobody"], **needed)
    (row,) = rp.compare(loss, *ARGS, budgets=["45%"], may_offload=["nobody"], **H100).rows
    assert "may_offload: no value is named 'nobody'" in row.problem


@pytest.mark.parametrize("door", [rp.plan, rp.tradeoff, rp.compare])
def test_doors_agree_on_how_it_is_asked(door):
    wanted, found = (inspect.signature(f).parameters for f in (rp.plan, door))
    for name in MOVING:
        assert (found[name].default, found[name].annotation) == (wanted[name].default, wanted[name].annotation)


def test_doors_that_hand_it_on_name_it():
    pytest.importorskip("flax")
    for door in (rp.remat, rp.checkpoint, rp.mark, rp.linen.remat, rp.nnx.remat):
        assert all(f"``{name}``" in door.__doc__ for name in MOVING)
