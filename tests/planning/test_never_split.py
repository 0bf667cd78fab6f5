"""``never_split``: what is named by value or primitive, in loops too, does not run in slices; all else may."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.cost.builder import Rules
from remat_plan.graph.schedule import WRITTEN, Choice, Part, around, as_is, structured
from remat_plan.graph.structure import structure_of
from remat_plan.graph.ways import Split
from remat_plan.planning.constraints import Constraints, make_constraints
from remat_plan.planning.honours import honours
from remat_plan.planning.limits import resolve
from remat_plan.planning.planner import Planner
from tests.helpers import CPU, assert_trees_close, traced
from tests.splitting import largest, split, tiled

WORDS, WIDTH, TOKENS = 1024, 32, 256
KEYS = jax.random.split(jax.random.key(0), 3)
PARAMS = {"up": jax.random.normal(KEYS[0], (WIDTH, WORDS)) / 6, "w": jax.random.normal(KEYS[1], (WIDTH, WORDS)) / 6}
X = jax.random.normal(KEYS[2], (TOKENS, WIDTH))
BUDGET = 8 << 18  # two values of the size of the logits


@pytest.fixture(autouse=True)
def _small_values_are_split(monkeypatch):
    monkeypatch.setattr("remat_plan.planning.options.LEAST_SLICE_BYTES", 4 * TOKENS * WORDS // 32)


def head(p, x):
    logits = checkpoint_name(x @ p["w"], "logits")
    return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[:, 0])


def both(p, x):
    """A layer with a wide hidden value, then the head."""
    x = x + jnp.tanh(checkpoint_name(x @ p["up"], "hidden")) @ p["up"].T
    return head(p, checkpoint_name(x, "state"))


def scanned(p, x):
    """The same layers under a scan."""

    def step(x, _):
        return x + jnp.tanh(checkpoint_name(x @ p["up"], "hidden")) @ p["up"].T, None

    return head(p, lax.scan(step, x, None, length=3)[0])


def splits_of(graph, never_split):
    """The runs of blocks that have ways to split among their options."""
    limits = resolve(graph, make_constraints((), (), (), never_split))
    options = Planner(graph, Rules(graph, CPU), limits).options
    return {run for run, found in options.profiles.items() for o in found.options if isinstance(o.way, Split)}


def test_what_is_named_is_not_split_and_what_is_not_may_be():
    graph = traced(both, PARAMS, X).graph
    free, without_layer = splits_of(graph, ()), splits_of(graph, ["hidden"])
    assert set() < without_layer < free, "the head is split alone, or with the layer before it"
    for all_of_it in (True, ["dot_general"], ["logits"]):
        assert splits_of(graph, all_of_it) == set()


@pytest.mark.parametrize("never", [pytest.param(True, marks=pytest.mark.slow), ["logits"]])
def test_a_budget_that_needs_slices_cannot_be_met_without(never):
    plan = rp.plan(both, PARAMS, X, budget=BUDGET, verify=False)
    assert any(isinstance(segment.way, Split) for segment in plan.schedule)
    with pytest.raises(rp.BudgetError, match=r"never_split=\(\) \(which allows slices\)") as caught:
        rp.plan(both, PARAMS, X, budget=BUDGET, never_split=never, verify=False)
    assert caught.value.minimum_bytes > 4 * TOKENS * WORDS
    with pytest.raises(ValueError, match="'explicit' has no schedule that satisfies .* and never_split"):
        rp.plan(both, PARAMS, X, strategy=plan.schedule, never_split=never, verify=False)


@pytest.mark.slow
def test_decorated_functions_take_it():
    gradient = jax.jit(jax.grad(rp.remat(both, budget="100%", never_split=["logits"])))(PARAMS, X)
    assert_trees_close(gradient, jax.grad(both)(PARAMS, X), 1e-4, 1e-5)
    with pytest.raises(rp.BudgetError):
        rp.checkpoint(both, budget=BUDGET, never_split=True, verify=False)(PARAMS, X)


@pytest.mark.slow
def test_marks_of_a_training_step_take_it():
    def step(never):
        marked = rp.mark(both, never_split=never)
        return lambda p, x: jax.tree.map(lambda a, g: a - g, p, jax.grad(marked)(p, x))

    fitted = rp.fit(step(()), PARAMS, X, budget=BUDGET)
    assert fitted.report.planned.peak_bytes <= BUDGET
    with pytest.raises(rp.BudgetError) as caught:
        rp.fit(step(True), PARAMS, X, budget=BUDGET)
    assert caught.value.minimum_bytes > BUDGET


def test_a_name_inside_a_loop_holds_for_its_steps_and_for_what_is_around_it():
    graph = traced(scanned, PARAMS, X).graph
    limits = resolve(graph, Constraints((), (), (), ("hidden",)))
    (loop,) = [op for op in graph.ops if op.primitive == "scan"]
    (body,) = structure_of(loop).regions(graph, loop)
    inside = {body.ops[i].primitive for i in limits.inside(body).unsplit}
    assert "dot_general" in inside
    assert "tanh" not in inside
    assert limits.unsplit == {loop.index}


def test_a_name_of_an_argument_or_of_what_a_loop_is_given():
    """It stands for what is around, and the equation that gives the name is in one piece too."""

    def loss(p, x):
        x = checkpoint_name(x, "batch")

        def step(x, _):
            return jnp.tanh(checkpoint_name(x, "carry") @ p["up"]) @ p["up"].T, None

        return jnp.mean(lax.scan(step, jnp.sin(x), None, length=3)[0] ** 2)

    graph = traced(loss, PARAMS, X).graph
    primitives = [{graph.ops[i].primitive for i in resolve(graph, Constraints((), (), (), n)).unsplit} for n in NAMES]
    assert primitives == [{"name"}, {"sin", "scan"}]


NAMES = ("batch",), ("carry",)


def test_schedules_that_respect_it():
    program = traced(both, PARAMS, X)
    graph = program.graph
    sliced = split(program, largest(program), 0, 4)
    plain = (as_is(0, len(graph.ops)),)
    for never, allowed in (((), True), (("state",), False), (True, False)):
        limits = resolve(graph, Constraints((), (), (), never))
        assert honours(graph, limits, sliced) is allowed
        assert honours(graph, limits, plain)
        assert honours(graph, limits, WRITTEN), "nothing is split there"
        assert Constraints((), (), (), never).is_free, "so it is a candidate"
        assert honours(graph, limits, (around(0, len(graph.ops), sliced),)) is allowed, "where it runs again too"
    assert not honours(graph, resolve(graph, Constraints(("state",), (), (), True)), WRITTEN)


@pytest.mark.parametrize("wrapped", [False, True], ids=["in each step", "under a checkpoint around all"])
def test_slices_inside_the_steps_of_a_loop_respect_it(wrapped):
    program = traced(scanned, PARAMS, X)
    graph = program.graph
    (loop,) = [op for op in graph.ops if op.primitive == "scan"]
    (body,) = structure_of(loop).regions(graph, loop)
    steps = split(SimpleNamespace(graph=body), largest(SimpleNamespace(graph=body)), 0, 4)
    schedule = tiled(program, structured(loop.index, Choice((Part(3, (around(0, len(body.ops), steps),)),))))
    schedule = (around(0, len(graph.ops), schedule),) if wrapped else schedule
    for never, allowed in (((), True), (("logits",), True), (("hidden",), False), (True, False)):
        assert honours(graph, resolve(graph, Constraints((), (), (), never)), schedule) is allowed


@pytest.mark.parametrize(
    ("never", "error", "text"),
    [
        ("logits", TypeError, r"never_split='logits': give a list of names, \['logits'\]"),
        ([3], TypeError, "never_split=.3.: give a list of names"),
        (["logit"], ValueError, "never_split: 'logit' is no name and no primitive of .* Did you mean 'logits'"),
        (["psum"], ValueError, "Names: 'logits'. Primitives: .*dot_general.* never_split=True for no slices at all"),
    ],
)
def test_what_is_refused(never, error, text):
    with pytest.raises(error, match=text):
        rp.plan(head, PARAMS, X, budget="60%", never_split=never)


def test_nothing_asked_for_is_no_constraint():
    assert make_constraints((), (), None, False) == make_constraints((), (), None) == make_constraints((), (), None, [])
    assert make_constraints((), (), None, True).by_name().never_split is True
