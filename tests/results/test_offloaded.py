"""What is kept in the host's memory: rows, text, pages, charts, stored plans; why nothing is."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import matplotlib
import pytest
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import hardware_for
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import Choice, Part, Segment, around, as_is, saving, structured
from remat_plan.graph.structure import structure_of
from remat_plan.report.entries import plan_entries
from remat_plan.results.decisions import decide
from remat_plan.results.stored import digest_of
from remat_plan.small.budget import format_bytes
from tests.helpers import CUDA, has_module, searching_quickly, traced

matplotlib.use("Agg")

STEPS = 8
H100 = pytest.mark.skipif(not has_module(CUDA), reason="the CUDA plugin is not installed")
WS, X = jnp.ones((STEPS, 16, 16)) / 16, jnp.linspace(-1.0, 1.0, 32 * 16).reshape(32, 16)


def loss(ws, x):
    def layer(x, w):
        return x + jnp.tanh(checkpoint_name(x @ w, "product")), None

    return jnp.mean(jax.lax.scan(layer, x, ws)[0] ** 2)


GRAPH = traced(loss, WS, X).graph
(SCAN,) = (op for op in GRAPH.ops if op.primitive == "scan")
BODY = structure_of(SCAN).loop(GRAPH, SCAN).body
COUNT = len(BODY.ops)
(CARRY,) = BODY.carried
(PRODUCT,) = next(op for op in BODY.ops if op.primitive == "dot_general").outputs


def scanned(*parts):
    """The program with its scan run in these parts."""
    before = [as_is(0, SCAN.index)] if SCAN.index else []
    return (*before, structured(SCAN.index, Choice(parts)), as_is(SCAN.index + 1, len(GRAPH.ops)))


def keeping(actions, count=STEPS, groups=()):
    return Part(count, (saving(0, COUNT, actions),), groups)


def moving_carry(inside, count=STEPS):
    """Steps around segments, which keep what they are given on the host."""
    return Part(count, (around(0, COUNT, inside).with_parts(actions=((CARRY, "offload"),)),))


BOTH = scanned(keeping({CARRY: "offload", PRODUCT: "save"}))
INSIDE = (saving(0, 2), as_is(2, COUNT))
SCHEDULES = {
    "carry": scanned(keeping({CARRY: "offload"})),
    "both": BOTH,
    "all": scanned(keeping({CARRY: "offload", PRODUCT: "offload"})),
    "stretches": scanned(keeping({PRODUCT: "offload"}, 3), keeping({CARRY: "offload", PRODUCT: "save"}, 5)),
    "around": scanned(moving_carry(INSIDE)),
    "groups": scanned(keeping({PRODUCT: "offload"}, groups=(4,))),
}


def loop_and_steps(schedule):
    rows = decide(GRAPH, schedule)
    return next(r for r in rows if r.structured), [r for r in rows if r.depth == 1]


def test_a_carry_on_the_host_is_not_on_the_device():
    loop, (step,) = loop_and_steps(SCHEDULES["carry"])
    assert (loop.saved_bytes, loop.host_bytes) == (0, STEPS * X.nbytes)
    assert (step.saved_bytes, step.host_bytes) == (0, X.nbytes)
    assert (step.action, step.saved) == ("offload 1 value, recompute the rest", ("carry float32[32,16]",))


def test_what_goes_to_the_host_is_told_apart_and_first():
    loop, (step,) = loop_and_steps(BOTH)
    assert (loop.saved_bytes, loop.host_bytes) == (STEPS * X.nbytes, STEPS * X.nbytes)
    first, second = step.saved
    assert first == "carry float32[32,16] on the host"
    assert second.startswith("dot_general float32[32,16]")
    assert "host" not in second
    loop, (step,) = loop_and_steps(scanned(keeping({CARRY: "save", PRODUCT: "offload"})))
    assert [text.split()[0] for text in step.saved] == ["dot_general", "carry"]


def test_a_carry_that_stays_counts_on_the_device():
    loop, _ = loop_and_steps(scanned(keeping({PRODUCT: "offload"})))
    assert (loop.saved_bytes, loop.host_bytes) == (STEPS * X.nbytes, STEPS * X.nbytes)
    loop, steps = loop_and_steps(SCHEDULES["stretches"])
    assert (loop.saved_bytes, loop.host_bytes) == (3 * X.nbytes + 5 * X.nbytes, STEPS * X.nbytes)
    assert [row.host_bytes for row in steps] == [X.nbytes, X.nbytes]


def test_groups_keep_on_the_host_what_one_does_at_a_time():
    loop, _ = loop_and_steps(SCHEDULES["groups"])
    assert (loop.saved_bytes, loop.host_bytes) == (4 * X.nbytes, 2 * X.nbytes)
    loop, _ = loop_and_steps(scanned(keeping({PRODUCT: "offload"}, groups=(3,))))
    assert (loop.saved_bytes, loop.host_bytes) == (3 * X.nbytes, 3 * X.nbytes)


def test_a_checkpoint_around_segments_says_that_it_moves_its_carry():
    loop, (step,) = loop_and_steps(SCHEDULES["around"])
    assert step.action == "checkpoint around, offload 1 value"
    assert (step.saved, step.host_bytes, step.saved_bytes) == (("carry float32[32,16]",), X.nbytes, None)
    assert loop.host_bytes == STEPS * X.nbytes


@pytest.mark.parametrize("name", SCHEDULES)
def test_rows_add_up_to_what_is_predicted(name):
    program = StepProgram(Rules(GRAPH, hardware_for("gpu:h100", "gpu")))
    rows = decide(GRAPH, SCHEDULES[name])
    assert (
        sum(r.count * r.host_bytes for r in rows if r.depth == 0) == program.loss_timeline(SCHEDULES[name]).host_bytes
    )


def planned(name, **asked):
    return rp.plan(loss, WS, X, strategy=SCHEDULES[name], **{"verify": False, **asked})


@pytest.fixture(scope="module", params=SCHEDULES)
def plan(request):
    return planned(request.param)


@pytest.fixture(scope="module")
def unmoved():
    with searching_quickly():
        return rp.plan(loss, WS, X, budget="80%", verify=False)


def line_of(shown, label):
    return next((line for line in shown.splitlines() if line.strip().startswith(label)), None)


def test_a_plan_says_how_much_is_on_the_host(plan, unmoved):
    size = format_bytes(plan.host_bytes)
    assert plan.host_bytes > 0
    assert plan.compiled_host_bytes is None
    assert line_of(str(plan), "host memory").split() == ["host", "memory", *size.split(), *"predicted; in addition to the peak".split()]  # fmt: skip
    assert f" predicted, {size} on the host, budget none" in repr(plan)
    assert "on host" in line_of(str(plan), "equations")
    assert max(map(len, str(plan).splitlines())) <= 110
    page = plan._repr_html_()
    assert ">host memory<" in page
    assert page.count(">on host<") == 1
    assert f"overhead (predicted), {size} on the host" in page
    assert f"(predicted), {size} on the host" in plan.plot().get_title()
    for text in (str(unmoved), repr(unmoved), unmoved._repr_html_()):
        assert "host" not in text


def test_compiled_bytes_are_shown_beside_predicted_ones():
    found = dataclasses.replace(planned("both"), compiled_peak_bytes=5 * 10**6, compiled_host_bytes=2 * 10**6)
    words = f"compiled (predicted: {format_bytes(found.host_bytes)}); in addition to the peak"
    assert line_of(str(found), "host memory").split() == ["host", "memory", "2", "MB", *words.split()]
    assert "5 MB compiled, 2 MB on the host" in repr(found)
    same = dataclasses.replace(found, compiled_host_bytes=found.host_bytes)
    assert line_of(str(same), "host memory").endswith("compiled; in addition to the peak")


def test_a_single_value_is_named_with_what_is_done_with_it():
    for name, words in (("carry", "offload {}, recompute the rest"), ("around", "checkpoint around, offload {}:")):
        plan = planned(name)
        entry = next(e for e in plan_entries(plan) if e.indent == 1)
        assert entry.action(60) == words.format("carry float32[32,16]")
        assert entry.action(40) == words.format("1 value")
        below = str(plan).partition(words.format("1 value"))[2].splitlines()[1]
        assert below.strip() == "carry float32[32,16]"


def test_what_was_compiled_is_in_the_plan():
    found = planned("carry", verify=True)
    assert found.compiled_host_bytes is not None
    assert rp.Plan.from_json(found.to_json()) == found


def test_a_plan_comes_back(plan):
    again = rp.Plan.from_json(plan.to_json())
    assert again == plan
    assert (again.host_bytes, again.compiled_host_bytes) == (plan.host_bytes, None)
    assert str(again) == str(dataclasses.replace(plan, planning_seconds=0.0))


@pytest.mark.parametrize("name", ["both", "around"])
def test_a_stored_plan_keeps_the_gradient(name):
    again = rp.Plan.from_json(planned(name).to_json())
    found, wanted = (jax.jit(jax.grad(f))(WS, X) for f in (again.apply(loss), loss))
    assert jnp.allclose(found, wanted, rtol=1e-5, atol=1e-6)


def with_actions(plan, actions):
    """A stored plan whose steps keep other values, as another program may write it."""
    data = json.loads(plan.to_json())
    way = next(s for s in data["schedule"] if s.get("way", {}).get("choices"))["way"]
    way["choices"][0][1]["parts"][0][1][0]["way"]["actions"] = actions
    return json.dumps({**data, "digest": digest_of(data)})


@pytest.mark.parametrize("name", ["both", "around"])
@pytest.mark.parametrize(
    ("actions", "told"),
    [
        ([[CARRY, "unload"]], r"actions\[0\]\[1\]: action 'unload' is not known"),
        ([[-3, "offload"]], r"actions\[0\]\[0\] is -3, less than 0"),
        ([[CARRY, None]], r"actions\[0\]\[1\] is null"),
        ([[CARRY]], r"actions\[0\] has 1 items"),
    ],
)
def test_what_is_wrong_by_itself_is_not_read(name, actions, told):
    with pytest.raises(ValueError, match=told):
        rp.Plan.from_json(with_actions(planned(name), actions))


@pytest.mark.parametrize("name", ["both", "around"])
@pytest.mark.parametrize("value", [10**6, BODY.outputs[0] + 1])
def test_what_a_step_neither_makes_nor_is_given_is_refused(name, value):
    changed = rp.Plan.from_json(with_actions(planned(name), [[value, "offload"]]))
    with pytest.raises(ValueError, match=rf"damaged .*segment 0\.\.{COUNT} saves value {value}, which it does not"):
        changed.apply(loss)(WS, X)


def test_only_the_host_takes_what_a_step_is_given():
    changed = rp.Plan.from_json(with_actions(planned("both"), [[CARRY, "save"]]))
    with pytest.raises(ValueError, match=rf"damaged .*saves value {CARRY}, which it does not compute"):
        changed.apply(loss)(WS, X)


BIG = jax.ShapeDtypeStruct((8, 1024, 1024), "float32"), jax.ShapeDtypeStruct((8192, 1024), "float32")


def unrolled(ws, x):
    for w in ws[:4]:
        x = jnp.tanh(checkpoint_name(x @ w, "product"))
    return jnp.mean(x**2)


def outside(ws, x):
    return loss(ws, checkpoint_name(jnp.sin(x), "sine"))


@pytest.mark.parametrize(
    ("fn", "asked", "why"),
    [
        (loss, {"budget": "200%"}, "the budget is met without"),
        (loss, {"budget": "60%"}, "the memory of cpu is its host's"),
        (loss, {"strategy": "each_block"}, "only a search moves values there, and strategy 'each_block' is none"),
        pytest.param(
            unrolled,
            {"budget": "60%", "target": "gpu:h100"},
            "only what steps of loops keep is moved, and there is no loop",
            marks=H100,
        ),
        pytest.param(
            outside,
            {"budget": "60%", "target": "gpu:h100", "offload": False, "may_offload": ["sine"]},
            "only what steps of loops keep is moved, and may_offload names none of that",
            marks=H100,
        ),
        pytest.param(
            loss,
            {"budget": "60%", "target": "gpu:h100", "host_budget": "1kB"},
            "no schedule that moves values there within host_budget is clearly faster",
            marks=H100,
        ),
    ],
)
def test_a_note_says_why_nothing_is_moved(fn, asked, why):
    with searching_quickly():
        plan = rp.plan(fn, *BIG, **{"target": "cpu", "verify": False, "offload": True, **asked})
    assert plan.host_bytes == 0
    assert plan.notes[-1] == f"nothing is kept in the host's memory: {why}"
    assert "note: nothing is kept in the host's memory" in str(plan)


def test_nothing_is_said_where_nobody_asked(unmoved):
    assert not any("host" in note for note in unmoved.notes)
    assert (unmoved.host_bytes, unmoved.compiled_host_bytes) == (0, None)


def test_segments_that_are_made_up_are_those_of_the_test():
    """So that a change of how the body is traced does not empty these tests."""
    assert isinstance(BOTH[-2 if SCAN.index else 0], Segment)
    assert BODY.values[CARRY].producer < 0
    assert BODY.values[PRODUCT].producer >= 0
