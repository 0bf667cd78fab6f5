"""All schedules of the planner: well formed, ordered, and never better than the certificate says is possible."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from remat_plan.cost.builder import Rules
from remat_plan.cost.memory import evaluate
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import check_cover
from remat_plan.graph.uses import free_ops
from remat_plan.planning.certificate import least_overhead
from remat_plan.planning.cuts import find_cuts
from remat_plan.planning.planner import Planner
from remat_plan.rewrite.emit import Emitter
from remat_plan.solve.chain import Nest
from remat_plan.verify.step import GradientStep
from tests.helpers import CPU, few, traced

pytestmark = pytest.mark.filterwarnings("ignore:remat_plan")
S = jax.ShapeDtypeStruct
W, X = S((32, 32), "float32"), S((512, 32), "float32")


def mlp(w, x):
    for _ in range(10):
        x = jnp.tanh(x @ w)
    return jnp.sum(x**2)


def residual(w, x):
    for _ in range(6):
        h = (x - jnp.mean(x, 1, keepdims=True)) * lax.rsqrt(jnp.var(x, 1, keepdims=True) + 1e-5)
        x = x + jax.nn.gelu(h @ w) @ w.T
    return jnp.mean(x**2)


def attention(w, x):
    for i in range(4):
        y = x.reshape(8, 64, 32)
        p = jax.nn.softmax(jnp.einsum("bid,bjd->bij", y @ w, y))
        x = x + jnp.einsum("bij,bjd->bid", p, y).reshape(512, 32) @ w
    return jnp.mean(x**2)


def dropout(w, x):
    key = jax.random.key(0)
    for i in range(6):
        keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, x.shape)
        x = jnp.where(keep, jax.nn.relu(x @ w), 0.0)
    return jnp.mean(x**2)


def around_a_loop(p, x):
    """Layers, a loop of many steps, layers: parts with the loop in them are run again too."""
    for w in p["before"]:
        x = jnp.tanh(x @ w)
    x, _ = lax.scan(lambda c, w: (jnp.tanh(jnp.tanh(c @ w) @ w), None), x, p["steps"])
    for w in p["after"]:
        x = jnp.tanh(x @ w)
    return jnp.sum(x**2)


def looped(w, x):
    for _ in range(3):
        x, _ = lax.scan(lambda c, _: (jnp.tanh(c @ w), None), jnp.sin(x), None, length=3)
    return jnp.mean(x)


def with_effects(w, x):
    """One effect tells what it is given, of the other the answer is read."""
    for i in range(4):
        x = jnp.tanh(jnp.sin(x @ w) @ w)
        if i == 1:
            jax.debug.callback(lambda _: None, x[0, 0])
        if i == 2:
            x = x * io_callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), x.dtype))
    return jnp.mean(x)


def skips(seed):
    """A net whose layers read some of the layers before."""
    rng = random.Random(seed)
    n = rng.randint(4, 9)
    reads = [[j for j in range(max(0, i - 3), i) if rng.random() < 0.35] for i in range(n)]
    kinds = [rng.choice([jnp.tanh, jnp.tanh, jnp.sin]) for _ in range(n)]

    def loss(w, x):
        made = []
        for i in range(n):
            for j in reads[i]:
                x = x + made[j]
            x = kinds[i](x @ w)
            made.append(x)
        return jnp.sum(x**2)

    return loss


PROGRAMS = {f.__name__: f for f in (mlp, residual, attention, dropout, looped, with_effects)}
PROGRAMS |= {f"skips{seed}": skips(seed) for seed in range(6)}


FEW = ("mlp", "looped", "with_effects")


@pytest.fixture(scope="module", params=few(PROGRAMS, FEW))
def planned(request):
    program = traced(PROGRAMS[request.param], W, X)
    return program, Planner(program.graph, Rules(program.graph, CPU))


def timeline(program, schedule):
    emitter = Emitter(program.graph, schedule)
    step = GradientStep(lambda *values: emitter(values), program.call.differentiated)
    return evaluate(jax.make_jaxpr(step)(*program.call.structs), CPU)


def every(planned):
    program, planner = planned
    return [(curve, point) for curve in planner.curves for point in range(len(curve.points))]


def test_schedules_are_well_formed(planned):
    program, _ = planned
    graph = program.graph
    free = free_ops(graph)

    def check(segments, nested):
        for s in segments:
            if s.checkpointed and not s.children:
                for v in s.saved:
                    assert s.start <= graph.values[v].producer < s.end
                    assert graph.values[v].producer not in free
                assert len(set(s.saved)) == len(s.saved)
            else:
                assert not s.saved
            if s.checkpointed or nested:
                assert graph.apart.isdisjoint(range(s.start, s.end))
            check(s.children, nested or bool(s.children))

    for curve, point in every(planned):
        schedule = curve[point]
        check_cover(schedule, 0, len(graph.ops))
        check(schedule, False)


def test_more_memory_less_time(planned):
    for curve in planned[1].curves:
        assert list(curve.limits) == sorted(set(curve.limits))
        assert list(curve.seconds) == sorted(curve.seconds, reverse=True)
        assert np.isfinite(curve.seconds).all()


def test_extracted_schedules_cost_what_the_table_says(planned):
    """Rows of the table are shared between equal intervals; a schedule read from a shared row must be its own."""

    def cost(problem, nodes, inside, end):
        total = 0.0
        for x in nodes:
            if isinstance(x, Nest):
                total += sum(problem.forward_seconds[x.start : x.end]) + cost(problem, x.children, True, x.end)
            else:
                option = next(o for e, o in problem.runs[x.start] if e == x.end)[x.option]
                total += option.last_seconds if inside and x.end == end else option.seconds
        return total

    for curve in planned[1].curves:
        table = curve.table
        for slot in curve.points:
            assert cost(table.problem, table.schedule(slot), False, table.n) == pytest.approx(
                table.costs[slot], rel=1e-6, abs=1e-12
            )


def test_no_schedule_is_below_the_certified_bound(planned):
    """Whatever the planner finds within some bytes costs what the certificate says for them, or more."""
    program, _ = planned
    plain = timeline(program, program.plain)
    rules, cuts = Rules(program.graph, CPU), find_cuts(program.graph)
    pairs = every(planned)
    for curve, point in pairs[:: max(len(pairs) // 8, 1)]:
        found = timeline(program, curve[point])
        bound = least_overhead(rules, cuts, plain, found.peak_bytes)
        assert bound <= max(found.seconds / plain.seconds - 1.0, 0.0) + 0.02


def test_the_least_schedule_saves_memory(planned):
    program, planner = planned
    if len(planner.cuts.major) <= 2:
        pytest.skip("no hill is found in this program")
    plain = timeline(program, program.plain).peak_bytes
    least = min(timeline(program, curve[0]).peak_bytes for curve in planner.curves)
    assert least < plain


@pytest.mark.parametrize("planned", few(PROGRAMS, ("looped", "mlp")), indirect=True)
def test_planning_twice_is_the_same(planned):
    program, planner = planned
    again = Planner(program.graph, Rules(program.graph, CPU))
    for a, b in zip(planner.curves, again.curves, strict=True):
        assert a.points == b.points
        assert a[0] == b[0]
        assert a[len(a.points) // 2] == b[len(b.points) // 2]


def test_a_loop_at_the_end_of_a_part_that_is_run_again_costs_what_it_promises():
    """The forward pass of a segment is not run twice there; of a loop the steps in a group still are."""
    shapes = {"before": [S((256, 256), "float32")] * 4, "steps": S((48, 256, 256), "float32")}
    program = traced(around_a_loop, {**shapes, "after": shapes["before"]}, S((4096, 256), "float32"))
    rules = Rules(program.graph, CPU)
    curve = Planner(program.graph, rules).curve
    plain = StepProgram(rules).loss_timeline(program.plain).seconds
    found = [StepProgram(rules).loss_timeline(curve[p]).seconds / plain - 1 for p in range(len(curve.points))]
    promised = [seconds / plain for seconds in curve.seconds]
    assert found == pytest.approx(promised, abs=2e-3)
    assert found[0] > 0.7
    near = min(overhead for overhead, limit in zip(found, curve.limits, strict=True) if limit < 0.2 * curve.limits[-1])
    assert near < 0.55
