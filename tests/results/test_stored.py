"""Stored plans that were cut, changed or made up: refused with the field's name, or as good as any other plan."""

import copy
import io
import json

import jax
import jax.numpy as jnp
import matplotlib
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import remat_plan as rp
from remat_plan.results.stored import DIGEST, digest_of
from tests.helpers import searching_quickly

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from rich.console import Console


def step(x, w):
    return jnp.tanh(jnp.tanh(x @ w) @ w), None


def loss(ws, x):
    x = jax.lax.cond(x[0, 0] > 0, lambda x: jnp.sin(jnp.tanh(x @ ws[0])), lambda x: x, x)
    x, _ = jax.lax.scan(step, x, ws)
    for w in ws[:2]:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


ARGS = jnp.ones((12, 16, 16)) / 16, jnp.ones((256, 16))
with searching_quickly():
    PLANS = [
        rp.plan(loss, *ARGS, verify=False, **asked)
        for asked in ({"budget": "60%"}, {"strategy": "dots"}, {"strategy": "log"}, {"strategy": rp.Binomial(slots=3)})
    ]
assert any(segment.choices for plan in PLANS for segment in plan.schedule)
assert any(segment.actions for plan in PLANS for segment in plan.schedule)


def places(data, path=()):
    """Every place in JSON data, the whole left out."""
    for key, inside in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*path, key)
        yield from places(inside, (*path, key))


NUMBERS = (-1, 0, 1, 2, 3, 7, 10**9, 2**62, 2**63, 10**30, 10**400, -(10**400), 0.5, -0.5, 1e300, 1.7e308)
TEXTS = (
    "",
    "lots",
    "save",
    "offload",
    "keep",
    "around",
    "written",
    "$\\frac{",
    "\x1b[2J",
    "\ud800",
    "[red",
    "<script>",
    "a" * 500,
)
NO_NUMBERS = (float("nan"), float("inf"), -float("inf"))
ODD = (None, True, False, *NUMBERS, *NO_NUMBERS, *TEXTS, [], {}, [1], [[1]], [[0, "save"]])
TEXTS_OF_PLANS = [plan.to_json() for plan in PLANS]


@st.composite
def changed(draw):
    """The text of a plan with one to three fields replaced, taken out, doubled or added."""
    data = json.loads(draw(st.sampled_from(TEXTS_OF_PLANS)))
    for _ in range(draw(st.integers(1, 3))):
        top = draw(st.sampled_from(sorted(data)))  # so that long lists do not get most of the changes
        path = draw(st.sampled_from([path for path in places(data) if path[0] == top]))
        around = data
        for key in path[:-1]:
            around = around[key]
        what = draw(st.sampled_from(("replace", "replace", "replace", "take out", "double or add")))
        if what == "replace":
            around[path[-1]] = copy.deepcopy(draw(st.sampled_from(ODD)))  # later changes may be inside it
        elif what == "take out":
            del around[path[-1]]
            assume(data)
        elif isinstance(around, list):
            around.append(around[path[-1]])
        else:
            around["surprise"] = 1
    return json.dumps(data)


def check_usable(plan):
    """Everything that is done with a plan works, or, of applying it, refuses."""
    assert rp.Plan.from_json(plan.to_json()) == plan
    for text in (str(plan), repr(plan), plan._repr_html_()):
        text.encode()
    Console(file=io.StringIO()).print(plan)
    plan.plot()
    plt.close("all")
    told = ""
    try:
        jax.make_jaxpr(jax.grad(plan.apply(loss)))(*ARGS)
    except (TypeError, ValueError) as error:
        told = str(error)
    assert not told or any(text in told for text in ("this plan was", "argnums", "has_aux=True"))


def with_field(path, value, number=0):
    data = json.loads(TEXTS_OF_PLANS[number])
    around = data
    for key in path[:-1]:
        around = around[key]
    around[path[-1]] = value
    return json.dumps(data)


@given(changed())
@example(with_field(["budget_bytes"], 2**62))
@example(with_field(["plain_timeline", "live_bytes", 3], 2**62))
@example(with_field(["overhead"], 1.7e308))
@example(with_field(["has_aux"], True))
@example(with_field(["argnums"], [10**9]))
@example(with_field(["static_argnums"], [0]))
@settings(max_examples=250)
def test_changed_plans_are_refused_or_usable(text):
    told, plan = "", None
    try:
        plan = rp.Plan.from_json(text)
    except ValueError as error:
        told = str(error)
    if plan is None:
        assert told.startswith("Plan.from_json: this is not a plan that can be read: ")
    else:
        check_usable(plan)


@given(st.integers(0, len(TEXTS_OF_PLANS) - 1), st.floats(0, 1, exclude_max=True))
@settings(max_examples=50)
def test_cut_plans_are_refused(number, share):
    text = TEXTS_OF_PLANS[number]
    with pytest.raises(ValueError, match=r"^Plan\.from_json: this is not JSON"):
        rp.Plan.from_json(text[: int(share * len(text))])


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (["budget_bytes"], "lots", "budget_bytes is a string, not an integer"),
        (["budget_bytes"], 2**63, "budget_bytes is an integer of more than 64 bits"),
        (["overhead"], None, "overhead is null, not a number"),
        (["overhead"], 10**400, "overhead is an integer of more than 64 bits"),
        (["overhead"], float("nan"), "overhead is nan, not a finite number"),
        (["step_flops"], -3, "step_flops is -3, less than 0"),
        (["target"], "cpu\x1b[2J", r"target has the character '\x1b', which cannot be printed"),
        (["notes"], ["\ud800"], r"notes[0] has the character '\ud800', which cannot be printed"),
        (["plain_timeline", "live_bytes", 0], 10**30, "live_bytes[0] is an integer of more than 64 bits"),
    ],
)
def test_the_field_is_named(path, value, told):
    with pytest.raises(ValueError, match=r"^Plan\.from_json: ") as caught:
        rp.Plan.from_json(with_field(path, value))
    assert told in str(caught.value)


def test_a_schedule_that_cannot_run_is_refused_when_applied():
    data = json.loads(TEXTS_OF_PLANS[1])
    segment = next(segment for segment in data["schedule"] if "actions" in segment.get("way", ()))
    segment["way"]["actions"] = [[10**9, "save"]]
    data[DIGEST] = digest_of(data)  # as of a plan that another program wrote: the schedule itself is wrong
    plan = rp.Plan.from_json(json.dumps(data))
    start, end = segment["start"], segment["end"]
    with pytest.raises(
        ValueError, match=rf"damaged .*: segment {start}\.\.{end} saves value 1000000000, which it does"
    ):
        plan.apply(loss)(*ARGS)
