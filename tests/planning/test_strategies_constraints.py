"""``must_save``, ``must_recompute``, ``never_recompute``: honoured by every strategy, or refused."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import remat_plan as rp
from remat_plan import _compat
from remat_plan.cost.builder import Rules
from remat_plan.planning.constraints import NO_CONSTRAINTS, Constraints, make_constraints
from remat_plan.planning.cuts import find_cuts
from remat_plan.planning.limits import resolve
from remat_plan.planning.names import known_names, named_values
from remat_plan.planning.planner import Planner
from remat_plan.report.strategies import Strategies
from remat_plan.search.judge import Judge
from remat_plan.small.progress import Progress
from remat_plan.solve import milp, min_cut
from remat_plan.verify.targets import resolve as place
from tests.helpers import CPU, assert_trees_close, count_equations, few, flat_gradient, plain_gradient, traced
from tests.strategies import chain_judge, found, named_chain, runs

pytestmark = pytest.mark.usefixtures("quick_search")

SETTINGS = {
    "collection": {"names": ("pillar", "state")},
    "mirror": {"counts": {"pillar": 0, "state": 1}},
    "binomial": {"slots": 2},
}
LAYERS = 6


@functools.cache
def judge():
    return chain_judge(named_chain(LAYERS))


def schedules(name, constraints, on=None):
    """All schedules that a strategy may come to, the planner's among them."""
    on = on or judge()
    if Strategies()[name].find is not None:
        return found(on, name, constraints, **SETTINGS.get(name, {})).schedules
    graph = on.program.graph
    planner = Planner(graph, Rules(graph, on.hardware), resolve(graph, constraints))
    curves = [curve[point] for curve in planner.curves for point in range(0, len(curve.points), 3)]
    return tuple(curves)


NAMES = [row.name for row in Strategies()]
EACH = pytest.mark.parametrize("name", few(NAMES, [name for name in NAMES if name not in ("auto", "chain")]))
"""The two that take most time go through the constraint that rules out most, ``chain`` as one half of ``auto``."""


@EACH
def test_what_must_be_saved_is_never_run_again(name):
    constraints = make_constraints(["hidden"], (), ())
    for schedule in schedules(name, constraints):
        assert runs(judge(), schedule, "tanh") == LAYERS


@EACH
def test_a_primitive_that_never_runs_again(name):
    constraints = make_constraints((), (), ["tanh"])
    for schedule in schedules(name, constraints):
        assert runs(judge(), schedule, "tanh") == LAYERS


@pytest.mark.parametrize("name", few(NAMES, [name for name in NAMES if name != "chain"]))
def test_what_must_be_recomputed_is_never_kept(name):
    graph = judge().program.graph
    constraints = make_constraints((), ["hidden"], ())
    hidden = set(resolve(graph, constraints).forbidden)
    assert len(hidden) == 2 * LAYERS
    for schedule in schedules(name, constraints):
        for segment in itertools.chain.from_iterable(s.leaves() for s in schedule):
            assert hidden.isdisjoint(segment.saved)
            inside = {v for op in graph.ops[segment.start : segment.end] for v in op.outputs}
            assert (segment.checkpointed and not segment.children) or hidden.isdisjoint(inside), (
                "left as it is, it would be kept"
            )
        assert runs(judge(), schedule, "tanh") >= 2 * LAYERS


@pytest.mark.slow
def test_gradients_under_constraints():
    on = small_judge()
    values = [jnp.sin(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) / 4 for x in on.structs]
    want = plain_gradient(on.program)(*values)
    for constraints in (
        Constraints(("hidden",)),
        Constraints((), ("hidden",)),
        Constraints(("state",), ("hidden",), ("sub",)),
    ):
        for name in ("auto", "log"):
            schedule = schedules(name, constraints, on)[0]
            got = jax.jit(flat_gradient(on.program, schedule))(*values)
            assert_trees_close(got, want, 1e-4, 1e-5)


@functools.cache
def small_judge():
    def loss(w, x):
        for i in range(4):
            x = checkpoint_name(x, "state") - checkpoint_name(jnp.tanh(x @ w), "hidden") @ w
        return jnp.mean(x**2)

    program = traced(loss, jnp.ones((8, 8)), jnp.ones((64, 8)))
    return Judge(program, place("cpu"), Progress("test", False))


def test_a_loop_that_never_runs_again_stays_outside_segments():
    def loss(w, x):
        for _ in range(3):
            x, _ = lax.scan(lambda c, _: (jnp.tanh(c @ w), None), jnp.sin(x), None, length=3)
            x = jnp.tanh(jnp.cos(x) @ w)
        return jnp.sum(x)

    program = traced(loss, jnp.ones((8, 8)), jnp.ones((64, 8)))
    graph = program.graph
    limits = resolve(graph, make_constraints((), (), ["scan"]))
    scans = {op.index for op in graph.ops if op.primitive == "scan"}
    assert limits.pinned == scans
    planner = Planner(graph, Rules(graph, CPU), limits)
    for curve in planner.curves:
        for point in range(len(curve.points)):
            for segment in curve[point]:
                inside = scans & set(range(segment.start, segment.end))
                assert not segment.checkpointed or not inside


def test_a_collective_is_not_repeated():
    def loss(w, x):
        for _ in range(3):
            x = jnp.sin(lax.psum(jnp.tanh(x @ w), "i"))
        return jnp.sum(x**2)

    counts = {}

    def look(w, x):
        program = traced(loss, w, x)
        judge = Judge(program, place("cpu"), Progress("test", False))
        name = next(op.primitive for op in program.graph.ops if op.primitive.startswith("psum"))
        counts["plain"] = runs(judge, program.plain, name)
        for key, constraints in (("free", make_constraints((), (), ())), ("kept", NO_CONSTRAINTS)):
            every = [s for strategy in ("memory", "auto") for s in schedules(strategy, constraints, judge)]
            counts[key] = max(runs(judge, s, name) for s in every)
        return jnp.zeros(())

    jax.vmap(look, (None, 0), axis_name="i")(jnp.ones((8, 8)), jnp.ones((2, 64, 8)))
    assert counts["kept"] == counts["plain"] < counts["free"]


def summed_over_devices():
    """A loss with a sum over devices in each of its layers, and its arguments."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))

    def layers(w, x):
        for _ in range(6):
            x = x + jnp.tanh(lax.psum(jax.nn.gelu(x @ w), "i"))
        return lax.pmean(jnp.sum(x**2), "i")

    loss = jax.shard_map(layers, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
    return loss, (jnp.ones((64, 64)) / 64, jnp.ones((4096, 64)))


@pytest.mark.slow
def test_collectives_are_kept_unless_allowed():
    loss, args = summed_over_devices()

    def sums(fn):
        return inside(jax.make_jaxpr(jax.grad(fn))(*args).jaxpr)

    def inside(jaxpr):
        regions = [sub for eqn in jaxpr.eqns for _, sub in _compat.named_jaxprs(eqn.params)]
        own = sum(eqn.primitive.name.startswith("psum") for eqn in jaxpr.eqns)
        return own + sum(inside(_compat.open_jaxpr(sub)[0]) for sub in regions)

    kept = rp.plan(loss, *args, budget="65%", verify=False)
    allowed = rp.plan(loss, *args, budget="40%", verify=False, never_recompute=())
    by_name = rp.plan(loss, *args, strategy="each_block", verify=False)
    assert sums(kept.apply(loss)) <= sums(loss) < min(sums(plan.apply(loss)) for plan in (allowed, by_name))


def test_collectives_without_an_effect_are_kept_too():
    """JAX notes the axis of a ``ppermute`` (ring attention, pipelines) nowhere but among its parameters."""
    mesh = jax.make_mesh((1,), ("ring",), axis_types=(AxisType.Auto,))

    def around(w, x):
        for _ in range(4):
            x = x + lax.ppermute(jnp.tanh(x @ w), "ring", [(0, 0)])
        return lax.pmean(jnp.sum(x**2), "ring")

    loss = jax.shard_map(around, mesh=mesh, in_specs=(P(), P("ring")), out_specs=P())
    args = jnp.ones((64, 64)) / 64, jnp.ones((512, 64))
    plan = rp.plan(loss, *args, budget="70%", verify=False)
    assert plan.overhead > 0
    plain, kept = (jax.make_jaxpr(jax.grad(fn))(*args).jaxpr for fn in (loss, plan.apply(loss)))
    assert count_equations(kept, "ppermute") <= count_equations(plain, "ppermute")


def test_what_repeating_collectives_would_allow_is_said():
    loss, args = summed_over_devices()
    with pytest.raises(rp.BudgetError, match=r"never_recompute=\(\) \(which allows repeating collectives\)"):
        rp.plan(loss, *args, budget="40%", verify=False)


@pytest.mark.parametrize(
    ("constraints", "text"),
    [
        (
            (["layer"], (), ()),
            "must_save: no value is named 'layer'. Names in this program: 'hidden', 'pillar', 'state', 'step'",
        ),
        (((), ["layer"], ()), "must_recompute: no value is named 'layer'"),
        (((), (), ["psum"]), "never_recompute: the program has no primitive 'psum'. It has: add, "),
        (((), ["hidden"], ["tanh"]), "tanh .* would have to be recomputed, which must_save or never_recompute forbids"),
    ],
)
def test_what_is_unknown_or_contradicts_itself(constraints, text):
    with pytest.raises(ValueError, match=text):
        resolve(judge().program.graph, make_constraints(*constraints))


@pytest.mark.parametrize(
    ("constraints", "error", "text"),
    [
        ((["a"], ["a"], ()), ValueError, "'a' is in both must_save and must_recompute"),
        (("a", (), ()), TypeError, r"must_save='a': give a list of names, \['a'\]"),
        (((), [1], ()), TypeError, "must_recompute=.1.: give a list of names"),
        (((), (), 5), TypeError, "never_recompute=5: give a list of names"),
    ],
)
def test_what_is_no_list_of_names(constraints, error, text):
    with pytest.raises(error, match=text):
        make_constraints(*constraints)


def test_a_program_without_names_says_how_to_give_them():
    program = traced(lambda w: jnp.sum(jnp.tanh(w)), jnp.ones(3))
    with pytest.raises(ValueError, match="This program has no names: name values with jax.ad_checkpoint"):
        resolve(program.graph, make_constraints(["a"], (), ()))


def test_a_value_read_on_both_sides_of_an_effect_that_is_read_has_to_be_kept():
    def loss(effect, w, x):
        y = checkpoint_name(jnp.tanh(x @ w), "y")
        return jnp.sum(effect() * y**2)

    def find(effect):
        graph = traced(functools.partial(loss, effect), jnp.ones((8, 8)), jnp.ones((64, 8))).graph
        return find_cuts(graph, resolve(graph, make_constraints((), ["y"], ())))

    def told():
        jax.debug.callback(lambda: None)
        return 2

    assert find(told)  # a segment may hold it
    with pytest.raises(ValueError, match="must_recompute: float32.64,8. is read on the other side of equation"):
        find(lambda: io_callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), jnp.float32)))


def test_names_stand_for_what_was_named():
    graph = judge().program.graph
    assert known_names(graph) == ("hidden", "pillar", "state", "step")
    values = named_values(graph, ["hidden"])
    assert [graph.ops[graph.values[v].producer].primitive for v in values] == ["tanh"] * LAYERS
    assert len(named_values(graph, ["pillar"])) == 1, "the first one is an argument"


def test_the_minimum_cut_saves_what_must_not_run_again():
    """a -> b -> c, all needed in turn; b may not run again."""
    inputs, outputs = ((), (0,), (1,)), ((0,), (1,), (2,))
    problem = min_cut.SegmentProblem(
        inputs, outputs, (1.0, 1.0, 1.0), (4, 4, 4), (True,) * 3, frozenset({2}), frozenset({1})
    )
    for selection in (*min_cut.hull(problem), milp.exact(problem, 4), min_cut.save_none(problem)):
        assert 1 not in selection.recomputed
    assert min_cut.save_none(problem).saved == {1}
    assert min_cut.complete(problem, {}).recomputed == {2}
