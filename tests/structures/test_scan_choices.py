"""The options of scans: what steps keep, groups, scans in scans; and what the evaluator makes of them."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import remat_plan as rp
from benchmarks import hands
from benchmarks.models import small
from remat_plan.cost.builder import Rules
from remat_plan.cost.memory import evaluate
from remat_plan.cost.price import price
from remat_plan.cost.whole_step import StepProgram
from remat_plan.graph.schedule import Choice, Part, Segment, as_is, saving, structured
from remat_plan.graph.structure import structure_of
from remat_plan.planning.planner import Planner, RegionPlanner
from remat_plan.rewrite.emit import Emitter
from remat_plan.structures.loop import loop_of
from remat_plan.structures.regions import Way
from remat_plan.structures.scan import Scan
from remat_plan.structures.scan_choices import divisors, scan_choices
from remat_plan.verify.compile import compile_memory
from remat_plan.verify.step import GradientStep
from remat_plan.verify.targets import resolve
from tests.helpers import CPU, flat_gradient, traced

W = jax.ShapeDtypeStruct((12, 64, 64), jnp.float32)
X = jax.ShapeDtypeStruct((2048, 64), jnp.float32)


def layers(w, x):
    def step(x, w):
        h = jax.nn.gelu(x @ w)
        return x + jnp.tanh(h @ w.T), None

    return jnp.sum(lax.scan(step, x, w)[0])


def scans_in_scans(w, x):
    def outer(x, ws):
        return lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, ws)[0], None

    return jnp.sum(lax.scan(outer, x, w.reshape(3, 4, 64, 64))[0])


def choices(fn):
    """The scan of a program, its rules, and its choices."""
    program = traced(fn, W, X)
    (op,) = [op for op in program.graph.ops if structure_of(op)]
    rules = Rules(program.graph, CPU)
    return op, rules, list(Scan().choices(rules, op, RegionPlanner()))


def passes_of(op, rules, choice):
    """What one choice keeps between the passes of all steps, needs inside one, its seconds and FLOPs."""
    unit = rules.unit(op, choice)
    passes, n = unit.passes, unit.length
    seconds = n * (passes.forward.region.seconds + passes.backward.region.seconds)
    flops = n * (passes.forward.flops + passes.backward.flops)
    return n * sum(passes.residual_bytes), passes.backward.region.transient_bytes, seconds, flops


def test_divisors():
    assert divisors(12) == [2, 3, 4, 6]
    assert divisors(61) == []
    assert divisors(64) == [2, 4, 8, 16, 32]


def test_steps_trade_bytes_for_seconds_and_work():
    """What is kept between the passes, what a step needs inside, its price: none beats another in all three."""
    op, rules, found = choices(layers)
    alike = [c for c in found if len(c.parts) == 1 and not c.parts[0].groups]
    plain = passes_of(op, rules, None)
    made = [passes_of(op, rules, c) for c in alike]
    rows = [(kept, price(seconds, flops, *plain[2:]), inside) for kept, inside, seconds, flops in made]
    assert len(rows) >= 3
    assert [kept for kept, _, _ in rows] == sorted(kept for kept, _, _ in rows)
    assert not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for a in rows for b in rows)
    assert rows[0][0] == 12 * 2048 * 64 * 4  # the carries


def test_groups_keep_one_carry_each():
    op, rules, found = choices(layers)
    grouped = [c for c in found if c.parts[0].groups and len(c.parts) == 1]
    assert {c.parts[0].groups[0] for c in grouped} >= {2, 3, 4}
    assert all(passes_of(op, rules, c)[0] == c.parts[0].groups[0] * 2048 * 64 * 4 for c in grouped)


def test_a_scan_in_a_scan_has_its_own_choice():
    op, rules, found = choices(scans_in_scans)
    body = loop_of(rules.graph, op).body
    inner = [o for o in body.ops if structure_of(o)]
    assert [loop_of(body, o).count for o in inner] == [4]
    steps = [s for c in found for part in c.parts for s in part.schedule]
    assert any(child.choices for s in steps for child in s.children)


def test_branches_in_a_step_are_there_for_all_that_is_kept():
    """Of ways that need as much inside, those that keep less are there too: a loop keeps it of every step."""
    model = hands.model("branch in scan", "small")
    program = traced(model.loss, model.params, model.batch)
    (op,) = [op for op in program.graph.ops if structure_of(op)]
    found = Scan().choices(Rules(program.graph, CPU), op, RegionPlanner())
    alike = [c.parts[0].schedule for c in found if len(c.parts) == 1 and not c.parts[0].groups]
    kept = {
        tuple(sum(len(s.actions) for s in part.schedule) for part in choice.parts)
        for schedule in alike
        for segment in schedule
        for _, choice in segment.choices
    }
    assert (1, 1) in kept


def stretches_inside(schedule):
    """Whether a step of a loop runs a loop in stretches: these start late, which the evaluator of jaxprs does not see."""
    parts = [part for s in schedule for _, c in s.choices for part in c.parts]
    inner = [c for part in parts for s in part.schedule for child in (s, *s.children) for _, c in child.choices]
    return any(len(c.parts) > 1 for c in inner)


@pytest.mark.parametrize("fn", [layers, pytest.param(scans_in_scans, marks=pytest.mark.slow)])
def test_loops_are_evaluated_as_jax_makes_them(fn):
    program = traced(fn, W, X)
    rules = Rules(program.graph, CPU)
    planner = Planner(program.graph, rules)
    seen = 0
    for curve in planner.curves:
        for point in range(0, len(curve.points), max(len(curve.points) // 6, 1)):
            schedule = curve[point]
            made = StepProgram(rules).loss_timeline(schedule)
            emitter = Emitter(program.graph, schedule)
            step = GradientStep(lambda *values, run=emitter: run(values), program.call.differentiated)
            found = evaluate(jax.make_jaxpr(step)(*program.call.structs), CPU)
            if stretches_inside(schedule) or made.peak_bytes != pytest.approx(found.peak_bytes, rel=0.08):
                # Where the evaluator of jaxprs says otherwise the compiler has the last word.
                compiled = compile_memory(step, tuple(program.call.structs), resolve("cpu")).total_bytes
                within = 0.3 if stretches_inside(schedule) else 0.03
                assert made.peak_bytes == pytest.approx(compiled, rel=within), schedule
            assert made.seconds == pytest.approx(found.seconds, rel=0.13), schedule
            seen += any(s.choices for s in schedule)
    assert seen >= 1


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_rows_of_stretches_are_put_together_once(reverse):
    """Padded to all rows each stretch's would take the memory of all of them where a branch makes it."""
    program = traced(lambda w, x: jnp.sum(lax.scan(layer, x, w, reverse=reverse)[0]), W, X, argnums=(0, 1))
    (op,) = [op for op in program.graph.ops if structure_of(op)]
    step, n = len(loop_of(program.graph, op).body.ops), len(program.graph.ops)
    parts = tuple([Part(count, (saving(0, step),)) for count in (5, 4, 3)])
    made = flat_gradient(program, (as_is(0, op.index), structured(op.index, Choice(parts)), as_is(op.index + 1, n)))
    text = str(jax.make_jaxpr(made)(W, X))
    assert " = pad[" not in text
    assert text.count("f32[12,64,64] = concatenate[") == 1


def layer(x, w):
    return x + jnp.tanh(x @ w), None


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["75%", "50%"])
def test_scanned_gpt_fits(budget):
    model = small("gpt2_scan")
    wide = jax.ShapeDtypeStruct((16, 64), jnp.int32)
    batch = dict.fromkeys(model.batch, wide)
    params = {**model.params, "position_embed": jax.ShapeDtypeStruct((64, 32), jnp.float32)}
    plan = rp.plan(model.loss, params, batch, budget=budget, target="cpu")
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    assert "scan of 6 steps" in str(plan)
    assert "scan of 6 steps" in plan._repr_html_()


@pytest.mark.slow
def test_no_worse_than_checkpoint_on_each_step():
    """At the peak of each stock policy on the scanned layer, the plan needs no more FLOPs by our own count."""
    from remat_plan.api import plan

    for policy in (None, jax.checkpoint_policies.dots_saveable):

        def by_hand(w, x, policy=policy):
            @jax.checkpoint
            def whole(x, w):
                return x + jnp.tanh(jax.nn.gelu(x @ w) @ w.T)

            step = whole if policy is None else jax.checkpoint(whole.__wrapped__, policy=policy)
            return jnp.sum(lax.scan(lambda x, w: (step(x, w), None), x, w)[0])

        kept = rp.plan(by_hand, W, X, budget="100%", target="cpu", existing="keep")
        ours = plan(layers, W, X, budget=kept.written_peak_bytes, target="cpu")
        assert ours.compiled_peak_bytes <= kept.written_peak_bytes
        assert ours.step_flops <= 1.001 * kept.step_flops


@pytest.mark.slow
def test_checkpoints_in_the_body_are_planned_anew():
    @jax.checkpoint
    def layer(x, w):
        return x + jnp.tanh(jax.nn.gelu(x @ w) @ w.T)

    def by_hand(w, x):
        return jnp.sum(lax.scan(lambda x, w: (jax.jit(layer)(x, w), None), x, w)[0])

    def inside(w, x):
        outer = jax.checkpoint(lambda x, ws: lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0])
        return jnp.sum(lax.scan(lambda x, ws: (outer(x, ws), None), x, w.reshape(3, 4, 64, 64))[0])

    ours = rp.plan(layers, W, X, budget="100%", target="cpu")
    theirs = rp.plan(by_hand, W, X, budget="100%", target="cpu")
    assert theirs.plain_peak_bytes == pytest.approx(ours.written_peak_bytes, rel=0.01)
    assert theirs.plain_flops == pytest.approx(ours.plain_flops, rel=0.01)
    kept = rp.plan(by_hand, W, X, budget="100%", target="cpu", existing="keep")
    assert kept.written_peak_bytes == theirs.written_peak_bytes < 0.6 * ours.written_peak_bytes
    assert rp.plan(inside, W, X, budget="100%", target="cpu").plain_flops == pytest.approx(ours.plain_flops, rel=0.01)
    keys = jax.random.split(jax.random.key(0))
    small = jax.random.normal(keys[0], (12, 64, 64)) / 8, jax.random.normal(keys[1], (2048, 64))
    for fn in (by_hand, inside):
        plan = rp.plan(fn, W, X, budget=int(0.6 * ours.written_peak_bytes), target="cpu")
        assert plan.compiled_peak_bytes <= plan.budget_bytes
        found, wanted = jax.grad(plan.apply(fn))(*small), jax.grad(layers)(*small)
        assert jnp.allclose(found, wanted, rtol=1e-4, atol=1e-5 * jnp.abs(wanted).max())


@pytest.mark.parametrize("between", [(), ((10, 9.99),), ((10, 9.99), (11, 9.98), (12, 9.97))])
def test_what_saves_most_for_its_bytes_is_kept_in_groups_whatever_lies_beside_it(between):
    """Two products of the eleven equations of a step take nearly all the time; ways near each other change nothing."""
    points = ((8, 10.0), *between, (32, 1.0), (40, 0.99), (64, 0.98))
    steps = [Way((Segment(0, kept),), kept, 0, price) for kept, price in points]
    choices = [c for c in scan_choices(64, 8, 0, steps) if len(c.parts) == 1 and len(c.parts[0].groups) == 1]
    assert {c.parts[0].schedule[0].end for c in choices} == {8, 32, 64}
