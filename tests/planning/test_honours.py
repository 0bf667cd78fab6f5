"""``must_save``, ``must_recompute``, ``never_recompute`` in loops and branches: what is run, by the gradient's jaxpr."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import remat_plan as rp
from remat_plan._compat import live_jaxpr, open_jaxpr, sub_jaxprs
from remat_plan.cost.builder import Rules
from remat_plan.graph.schedule import WRITTEN, Choice, Part, around, as_is, saving, structured
from remat_plan.graph.structure import structure_of
from remat_plan.planning.constraints import Constraints
from remat_plan.planning.honours import honours
from remat_plan.planning.limits import NO_LIMITS, resolve
from remat_plan.planning.planner import Planner
from remat_plan.report.strategies import Strategies
from remat_plan.search.judge import Judge
from remat_plan.small.progress import Progress
from remat_plan.verify.targets import resolve as place
from tests.helpers import assert_trees_close, few, flat_gradient, plain_gradient, traced
from tests.strategies import found

STEPS, INNER, WIDTH = 6, 3, 8
WEIGHTS = jnp.linspace(-1, 1, STEPS * WIDTH * 4 * WIDTH).reshape(STEPS, WIDTH, 4 * WIDTH) / 3
X = jnp.linspace(-1, 1, 64 * WIDTH).reshape(64, WIDTH)
SAVE, AGAIN, NEVER = Constraints(("act",)), Constraints((), ("act",)), Constraints((), (), ("sin",))


def layer(w, x):
    return x + jnp.tanh(checkpoint_name(jnp.sin(x @ w), "act") @ w.T)


def scanned(w, x):
    return jnp.mean(lax.scan(lambda x, w: (layer(w, x), None), x, w)[0] ** 2)


def branches(w, x):
    for i in range(2):
        there = [functools.partial(layer, w[i]), lambda x: jnp.tanh(jnp.exp(x))]
        x = lax.switch(jnp.int32(x[0, 0] > 0), there, jnp.tanh(x))
    return jnp.mean(x**2)


def nested(w, x):
    def outer(x, w):
        inner, _ = lax.scan(lambda x, _: (layer(w, x), None), jnp.exp(x), None, length=INNER)
        return inner, None

    return jnp.mean(lax.scan(outer, x, w)[0] ** 2)


def called(w, x):
    there = NamedSharding(Mesh(jax.devices()[:1], ("i",)), P())
    for i in range(2):
        x = jax.jit(layer, in_shardings=there, out_shardings=there)(w[i], x)
    return jnp.mean(x**2)


def mapped(w, x):
    mesh = Mesh(jax.devices()[:1], ("i",))
    for i in range(2):
        x = jax.shard_map(layer, mesh=mesh, in_specs=(P(), P("i")), out_specs=P("i"))(w[i], x)
    return jnp.mean(x**2)


TIMES = {scanned: STEPS, branches: 2, nested: STEPS * INNER, called: 2, mapped: 2}
"""How often the sine is run in the forward pass."""


pytestmark = [
    pytest.mark.usefixtures("quick_search"),
    pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive"),
]


@functools.cache
def judge(fn):
    return Judge(traced(fn, WEIGHTS, X), place("cpu"), Progress("test", False))


@functools.cache
def schedules(fn, name, constraints):
    """Schedules that a strategy may come to: some of each of the planner's curves, or all that there are by name."""
    graph = judge(fn).program.graph
    if name != "auto":
        settings = {"binomial": {"slots": 2}, "mirror": {"counts": {"act": 1}}}.get(name, {})
        return found(judge(fn), name, constraints, **settings).schedules
    planner = Planner(graph, Rules(graph, judge(fn).hardware), resolve(graph, constraints))
    points = [c[p] for c in planner.curves for p in range(0, len(c.points), max(len(c.points) // 4, 1))]
    return tuple(dict.fromkeys(points))


def executions(jaxpr, primitive):
    """How often a primitive is run, each branch taken to be run."""
    total = 0
    for eqn in jaxpr.eqns:
        inside = sum(executions(open_jaxpr(j)[0], primitive) for j in sub_jaxprs(eqn.params))
        total += inside * eqn.params.get("length", 1) + (eqn.primitive.name == primitive)
    return total


@functools.cache
def sines(fn, schedule):
    on = judge(fn)
    return executions(live_jaxpr(jax.make_jaxpr(on.step(schedule))(*on.structs))[0], "sin")


NAMES = [row.name for row in Strategies() if row.name not in ("chain", "budgeted", "dots_no_batch", "milp")]


SLOW = (called, nested)


def cases(names):
    """Every strategy on loops; on branches and calls, which have regions like any other, one by name. A call
    is a branch that is always taken, a loop in a loop is a loop."""
    names = list(names)
    every = [(fn, name) for fn in TIMES for name in names]
    return few(every, [(fn, name) for fn, name in every if fn is scanned or name == "memory"])


@pytest.mark.parametrize(("fn", "name"), cases(["auto", "memory"]))
def test_what_never_runs_again_runs_once(fn, name):
    made = schedules(fn, name, NEVER)
    assert made
    assert {sines(fn, schedule) for schedule in made} == {TIMES[fn]}


@pytest.mark.parametrize(("fn", "name"), cases(NAMES))
def test_what_must_be_saved_runs_once(fn, name):
    made = schedules(fn, name, SAVE)
    assert made
    assert {sines(fn, schedule) for schedule in made} == {TIMES[fn]}


@pytest.mark.parametrize(("fn", "name"), cases(n for n in NAMES if n not in ("collection", "binomial")))
def test_what_must_be_recomputed_runs_again(fn, name):
    """``everything`` keeps all; by ``binomial`` loops go back and forth as often as they find to be right."""
    made = schedules(fn, name, AGAIN)
    assert made or name == "everything"
    assert all(sines(fn, schedule) >= 2 * TIMES[fn] for schedule in made)


@pytest.mark.parametrize("fn", few(TIMES, [fn for fn in TIMES if fn not in SLOW]))
def test_there_is_something_to_choose_from(fn):
    """Saved where it must be, everything else may still be recomputed; a value is kept at every step."""
    on = judge(fn)
    for constraints in (SAVE, AGAIN):
        peaks = [on.predicted_bytes(schedule) for schedule in schedules(fn, "auto", constraints)]
        assert min(peaks) < on.predicted_bytes(on.program.plain)


@functools.cache
def wanted(fn):
    return jax.jit(plain_gradient(judge(fn).program))(WEIGHTS, X)


@pytest.mark.parametrize(
    ("constraints", "fn"),
    few(
        [(c, fn) for c in ("save", "again") for fn in TIMES],
        [("save", scanned), ("again", branches)],
    ),
)
def test_gradients(fn, constraints):
    program = judge(fn).program
    want = wanted(fn)
    for schedule in schedules(fn, "auto", {"save": SAVE, "again": AGAIN}[constraints])[:3]:
        assert_trees_close(jax.jit(flat_gradient(program, schedule))(WEIGHTS, X), want, 1e-4, 1e-5)


def recurrent(w, x):
    def step(c, w):
        c = checkpoint_name(c, "state")
        return jnp.sin(jnp.tanh(c @ w) @ w.T), None

    return jnp.mean(lax.scan(step, jnp.sin(x @ w[0] @ w[1].T), w)[0] ** 2)


def given(w, x):
    for i in range(2):
        x = jnp.sin(jnp.tanh(x @ w[i]) @ w[i].T)
        x = lax.cond(x[0, 0] > 0, lambda x: jnp.tanh(checkpoint_name(x, "state") ** 3), lambda x: x, x)
    return jnp.mean(x**2)


NAMED = [
    (name, *case) for name in ("auto", "memory", "nothing", "log") for case in ((recurrent, 1 + STEPS), (given, 2))
]


@pytest.mark.parametrize(("name", "fn", "times"), few(NAMED, [case for case in NAMED if case[:2] != ("auto", given)]))
def test_a_name_given_to_an_input_stands_for_what_is_around(fn, times, name):
    made = schedules(fn, name, Constraints(("state",)))
    assert made
    assert {sines(fn, schedule) for schedule in made} == {times}


def test_an_input_that_must_not_be_kept():
    assert min(sines(given, schedule) for schedule in schedules(given, "auto", Constraints((), ("state",)))) == 4
    with pytest.raises(
        ValueError, match="float32.64,8. is carried from one step of a loop to the next, so it is saved"
    ):
        schedules(recurrent, "auto", Constraints((), ("state",)))


def handed_on(w, x):
    """What a branch makes is carried."""

    def step(x, w):
        inner = functools.partial(lambda w, x: checkpoint_name(jnp.sin(jnp.tanh(x @ w) @ w.T), "state"), w)
        return lax.cond(x[0, 0] > 0, inner, lambda x: x, x), None

    return jnp.mean(lax.scan(step, x, w)[0] ** 2)


def between_loops(w, x):
    def step(x, w):
        y, _ = lax.scan(lambda c, _: (jnp.tanh(checkpoint_name(jnp.sin(c @ w), "act") @ w.T), None), x, None, length=2)
        return x + jnp.exp(checkpoint_name(y, "out")), None

    return jnp.mean(lax.scan(step, x, w)[0] ** 2)


def two_names(w, x):
    def step(x, w):
        kept = checkpoint_name(jnp.sin(x @ w), "kept")
        return x + jnp.tanh(checkpoint_name(jnp.exp(jnp.tanh(kept)), "again") @ w.T), None

    return jnp.mean(lax.scan(step, x, w)[0] ** 2)


def test_one_value_saved_and_another_recomputed_in_each_step():
    for schedule in schedules(two_names, "auto", Constraints(("kept",), ("again",))):
        on = judge(two_names)
        jaxpr = live_jaxpr(jax.make_jaxpr(on.step(schedule))(*on.structs))[0]
        assert executions(jaxpr, "sin") == STEPS < 2 * STEPS <= executions(jaxpr, "exp")


def test_what_cannot_be():
    with pytest.raises(ValueError, match="is carried from one step of a loop to the next"):
        schedules(handed_on, "auto", Constraints((), ("state",)))
    with pytest.raises(ValueError, match="contradict each other.* .names there: 'act', 'out'. .*Remove"):
        schedules(between_loops, "auto", Constraints(("out",), ("act",)))
    with pytest.raises(ValueError, match="read on the other side of equation . .scan., which no segment may contain"):
        schedules(between_loops, "auto", Constraints(("act",), ("out",)))


def test_names_and_primitives_inside_are_known():
    graph = judge(nested).program.graph
    with pytest.raises(ValueError, match=r"must_save: no value is named 'x'\. Names in this program: 'act'\.$"):
        resolve(graph, Constraints(("x",)))
    with pytest.raises(ValueError, match=r"the program has no primitive 'erf'\. It has: .*, scan, .*, tanh.*\.$"):
        resolve(graph, Constraints((), (), ("erf",)))
    with pytest.raises(ValueError, match="sin float32.64,32. would have to be recomputed"):
        resolve(graph, Constraints((), ("act",), ("sin",)))


def test_what_is_never_returned():
    graph = judge(scanned).program.graph
    (scan,) = [op.index for op in graph.ops if op.primitive == "scan"]
    (body,) = structure_of(graph.ops[scan]).regions(graph, graph.ops[scan])
    n, m = len(graph.ops), len(body.ops)
    act = next(op.outputs[0] for op in body.ops if op.primitive == "sin")

    def steps(schedule, groups=(), slots=0):
        rest = as_is(scan + 1, n)
        return (
            *([as_is(0, scan)] if scan else []),
            structured(scan, Choice((Part(STEPS, schedule, groups),), slots)),
            rest,
        )

    bare, keeping, plain = (saving(0, m),), (saving(0, m, (act,)),), (as_is(0, m),)
    save, again = (resolve(graph, constraints) for constraints in (SAVE, AGAIN))
    cases = [
        ((as_is(0, n),), True, False),
        (WRITTEN, False, False),
        ((saving(0, n),), False, True),
        ((around(0, n, (as_is(0, n),)),), False, True),
        (steps(bare), False, True),
        (steps(keeping), True, False),
        (steps((around(0, m, keeping),)), False, False),
        (steps(plain), True, False),
        (steps(plain, (2,)), False, True),
        (steps(plain, slots=2), False, True),
    ]
    for schedule, saved, recomputed in cases:
        assert honours(graph, NO_LIMITS, schedule)
        assert (honours(graph, save, schedule), honours(graph, again, schedule)) == (saved, recomputed), schedule


@pytest.mark.parametrize("fn", few([scanned, branches], [scanned]))
@pytest.mark.parametrize(
    ("argument", "budget", "least", "most"),
    [
        ("must_save", "90%", 1, 1),
        ("must_recompute", "100%", 2, 4),
        pytest.param("must_save", "100%", 1, 1, marks=pytest.mark.slow),  # nothing needs to be recomputed
        pytest.param("must_recompute", "90%", 2, 4, marks=pytest.mark.slow),
    ],
)
def test_plans(fn, argument, budget, least, most):
    plan = rp.plan(fn, WEIGHTS, X, budget=budget, verify=False, **{argument: ["act"]})
    step = jax.make_jaxpr(jax.value_and_grad(plan.apply(fn)))(WEIGHTS, X)
    assert least <= executions(live_jaxpr(step)[0], "sin") / TIMES[fn] <= most


@pytest.mark.slow
def test_a_compiled_plan():
    """Nothing between a schedule that fits and the function as it is, which keeps what must not be kept."""
    w, x = jnp.tile(WEIGHTS, (2, 1, 1)), jnp.tile(X, (32, 1))
    for argument, times in (("must_save", 1), ("must_recompute", 2)):
        plan = rp.plan(scanned, w, x, budget="90%", **{argument: ["act"]})
        assert plan.compiled_peak_bytes <= plan.budget_bytes
        step = jax.make_jaxpr(jax.value_and_grad(plan.apply(scanned)))(w, x)
        count = executions(live_jaxpr(step)[0], "sin") / len(w)
        assert count == times if times == 1 else count >= times


def test_a_strategy_that_has_none_says_so():
    text = (
        "has no schedule that satisfies must_save, must_recompute, never_recompute and never_split. Use strategy='auto'"
    )
    with pytest.raises(ValueError, match=f"strategy='everything' {text}"):
        rp.plan(scanned, WEIGHTS, X, strategy="everything", must_recompute=["act"], verify=False)
    given_by_hand = rp.plan(scanned, WEIGHTS, X, strategy="nothing", verify=False).schedule
    with pytest.raises(ValueError, match=f"strategy='explicit' {text}"):
        rp.plan(scanned, WEIGHTS, X, strategy=given_by_hand, must_save=["act"], verify=False)
