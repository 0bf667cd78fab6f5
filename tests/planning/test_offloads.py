"""What a search moves to the host: which values, when, and when it declines."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.cost.builder import Rules
from remat_plan.cost.hardware import hardware_for
from remat_plan.graph.schedule import actions_in, saving
from remat_plan.planning.constraints import make_constraints
from remat_plan.planning.limits import resolve
from remat_plan.planning.offloads import may_offload, offloaded
from remat_plan.planning.strategies.registry import lookup
from remat_plan.search import judge
from remat_plan.search.candidates import Candidates, Request
from remat_plan.search.judge import Judge
from remat_plan.small.budget import parse_budget
from remat_plan.small.progress import Progress
from remat_plan.structures.loop import loop_of
from remat_plan.verify.targets import resolve as place
from tests.helpers import few, traced

pytestmark = pytest.mark.usefixtures("quick_search")

H100, CPU = hardware_for("gpu:h100", "gpu"), hardware_for("cpu", "cpu")
W = jax.ShapeDtypeStruct((8, 4096, 8192), jnp.bfloat16)
X = jax.ShapeDtypeStruct((131072, 4096), jnp.bfloat16)


@pytest.fixture(autouse=True)
def rates(monkeypatch):
    """Plans are made by the rates of an H100, whose compiler nothing here needs."""
    monkeypatch.setattr(judge, "hardware_of", lambda *asked: H100)


def step(x, w):
    h = checkpoint_name(x @ w, "hidden")
    return x + checkpoint_name(jax.nn.gelu(h) @ w.T, "out"), None


def loss(w, x):
    return jnp.sum(lax.scan(step, x, w)[0].astype(jnp.float32) ** 2)


def unrolled(w, x):
    for layer in range(8):
        x, _ = step(x, w[layer])
    return jnp.sum(x.astype(jnp.float32) ** 2)


def planned(fn=loss, budget="60%", **asked):
    return rp.plan(fn, W, X, budget=budget, target="cpu", verify=False, never_split=True, **asked)


def judged(plan, fn=loss):
    """Seconds over the plain ones, the peak and the bytes on the host, by prediction."""
    program = traced(fn, W, X)
    own = Judge(program, place("cpu"), Progress("test", False))
    found, plain = own.timeline(plan.schedule), own.timeline(program.plain)
    return found.seconds / plain.seconds, found.peak_bytes, found.host_bytes


def names_moved(plan, fn=loss):
    """The names of the values that the steps of the loop keep on the host; "carry" for what comes in."""
    graph = traced(fn, W, X).graph
    body = loop_of(graph, next(op for op in graph.ops if op.primitive == "scan")).body
    chosen = [s for segment in plan.schedule for _, c in segment.choices for part in c.parts for s in part.schedule]
    moved = {v for s in chosen for v, action in s.actions if action == "offload"}
    return {
        "carry" if v in body.carried else body.values[v].name or body.ops[body.values[v].producer].primitive
        for v in moved
    }


def body_of(fn=loss, **asked):
    graph = traced(fn, W, X).graph
    limits = resolve(graph, make_constraints(**asked))
    body = loop_of(graph, next(op for op in graph.ops if op.primitive == "scan")).body
    return body, limits.inside(body)


def test_values_move_in_the_order_in_which_they_are_made_from_either_end():
    body, limits = body_of(offload=True)
    hidden, out = (v.producer for v in body.values if v.name in ("hidden", "out"))
    made = [body.ops[i].operands[0] for i in (hidden, out)]
    step_of = (saving(0, len(body.ops), made),)
    moved = [{v for v, action in s.actions if action == "offload"} for (s,) in offloaded(body, limits, [step_of])]
    first, second, third = body.carried[0], *made
    assert moved == [{first}, {third}, {first, second}, {second, third}, {first, second, third}]


@pytest.mark.parametrize(
    ("asked", "hardware", "allowed"),
    [
        ({"offload": True}, "gpu:h100", True),
        ({"may_offload": ["hidden"]}, "gpu:h100", True),
        ({"offload": True}, "cpu", False),
        ({}, "gpu:h100", False),
    ],
)
def test_something_may_move_where_it_is_asked_for_and_there_is_another_memory(asked, hardware, allowed):
    assert may_offload(body_of(**asked)[1], hardware_for(hardware, hardware[:3])) is allowed


def test_it_is_chosen_where_it_pays():
    without, with_host = planned(budget="28.6GB"), planned(budget="28.6GB", offload=True)
    assert actions_in(without.schedule) <= {"save"}
    assert "offload" in actions_in(with_host.schedule)
    (slow, _, nothing), (fast, peak, moved) = judged(without), judged(with_host)
    assert nothing == 0 < moved
    assert fast < slow - 0.05
    assert peak <= with_host.budget_bytes


def test_what_people_move_by_policies_is_tried():
    program = traced(loss, W, X)
    candidates = Candidates(Rules(program.graph, H100), Progress("test", False))
    asked = make_constraints(offload=True)
    request = Request(lookup("auto"), True, (0,), False, (), "replan", asked)
    beside = replace(request, constraints=asked.on_device())
    further = set(candidates.uniform(request)) - set(candidates.uniform(beside))
    own = Judge(program, place("cpu"), Progress("test", False))
    carries = 8 * X.size * 2
    assert {own.timeline(s).host_bytes for s in further} >= {carries, 3 * carries}


def test_only_named_values_move():
    assert names_moved(planned(budget="28.6GB", may_offload=["hidden"])) <= {"hidden", "dot_general"}
    with pytest.raises(
        ValueError, match=r"may_offload: no value is named 'hiden'. Names in this program: 'hidden', 'out'"
    ):
        planned(may_offload=["hiden"])


@pytest.mark.parametrize("limit", few(["2200MB", "3GB", "9GB"], ["3GB"]))
def test_a_budget_for_the_host_is_kept_and_no_plan_is_slower_for_it(limit):
    without, free = judged(planned(budget="28GB")), judged(planned(budget="28GB", offload=True))
    bounded = judged(planned(budget="28GB", offload=True, host_budget=limit))
    assert 0 < bounded[2] <= parse_budget(limit).size_bytes < free[2]
    assert free[0] <= bounded[0] < without[0]


@pytest.mark.parametrize("budget", few(["20%", "25%", "40%", "60%", "80%"], ["40%"]))
def test_the_curve_lies_on_or_below_the_one_without(budget):
    assert judged(planned(budget=budget, offload=True))[0] <= judged(planned(budget=budget))[0] * 1.01


@pytest.mark.parametrize(
    ("fn", "budget", "hardware"),
    [(loss, "100%", H100), (loss, "60%", CPU), (unrolled, "60%", H100)],
    ids=["what is there is enough", "no other memory", "no loop"],
)
def test_nothing_is_moved(fn, budget, hardware, monkeypatch):
    monkeypatch.setattr(judge, "hardware_of", lambda *asked: hardware)
    plan = planned(fn, budget=budget, offload=True)
    assert "offload" not in actions_in(plan.schedule)
    assert judged(plan, fn)[2] == 0


def test_a_budget_for_the_host_needs_something_that_may_go_there():
    with pytest.raises(ValueError, match=r"host_budget='1GB' is for offload=True, or may_offload"):
        planned(host_budget="1GB")
    with pytest.raises(ValueError, match=r"host_budget='60%': give bytes of the host's memory, such as '64GB'"):
        planned(offload=True, host_budget="60%")
    with pytest.raises(ValueError, match=r"host_budget='much': give bytes of the host's memory, such as '64GB'"):
        planned(offload=True, host_budget="much")


def test_names_are_no_answer_to_whether():
    with pytest.raises(TypeError, match=r"offload='hidden': give True or False; names of values go into may_offload="):
        planned(offload="hidden")


def test_what_is_named_moves_though_others_would_be_kept():
    """The product costs more to make again than the tanh of it, so a search that is free keeps the product."""

    def step(x, w):
        return x + checkpoint_name(jnp.tanh(x @ w), "tanh"), None

    def fn(w, x):
        return jnp.sum(lax.scan(step, x, w)[0].astype(jnp.float32) ** 2)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8, 16384, 16384), (32768, 16384))]
    asked = {"target": "cpu", "verify": False, "never_split": True, "budget": "75%"}
    plan = rp.plan(fn, *shapes, may_offload=["tanh"], **asked)
    assert "offload" in actions_in(plan.schedule)
    assert plan.overhead < rp.plan(fn, *shapes, **asked).overhead


def test_what_was_compiled_for_another_budget_of_the_host_is_not_taken():
    """Nor is it a start for the search: the first plan keeps more on the host than the second one may."""
    first = planned(budget="25%", offload=True)
    second = planned(budget="25%", offload=True, host_budget="300MB")
    assert judged(second)[2] <= 3e8 < judged(first)[2]


def test_an_error_speaks_of_the_host_where_steps_could_move_something():
    with pytest.raises(rp.BudgetError, match=r"offload=True \(which allows the host's memory\)"):
        planned(budget="1%")
    with pytest.raises(rp.BudgetError, match=r"^(?!.*offload=True)"):
        planned(unrolled, budget="1%")
