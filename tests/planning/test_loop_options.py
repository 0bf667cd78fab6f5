"""The options of scans: what steps keep, groups, scans in scans; and what the evaluator makes of them."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import remat_plan as rp
from benchmarks.models import small
from remat_plan.cost.memory import evaluate
from remat_plan.graph.loops import is_loop, loop_of
from remat_plan.planning.builder import Rules
from remat_plan.planning.loop_options import LoopProfiler, divisors
from remat_plan.planning.planner import Planner
from remat_plan.planning.whole_step import StepProgram
from remat_plan.program import make_emitter
from remat_plan.verify.step import GradientStep
from tests.helpers import CPU, traced

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


def profiler(fn):
    program = traced(fn, W, X)
    (op,) = [op for op in program.graph.ops if is_loop(op)]
    return LoopProfiler(program.graph, op, Rules(program.graph, CPU))


def test_divisors():
    assert divisors(12) == [2, 3, 4, 6]
    assert divisors(61) == []
    assert divisors(64) == [2, 4, 8, 16, 32]


def test_steps_trade_bytes_for_seconds():
    steps = profiler(layers).steps()
    assert len(steps) >= 3
    assert any(s.schedule[0].kind == "plain" for s in steps)
    least = min(steps, key=lambda s: s.kept_bytes)
    assert least.kept_bytes == 2048 * 64 * 4  # the carry
    most = max(steps, key=lambda s: s.kept_bytes)
    assert least.seconds > most.seconds >= 0.0


def test_groups_keep_one_carry_each():
    options = profiler(layers).options()
    carry = 2048 * 64 * 4
    grouped = [o for o in options if o.plan is not None and o.plan.groups]
    assert {o.plan.groups[0] for o in grouped} >= {2, 3, 4}
    assert all(o.kept_bytes == o.plan.groups[0] * carry for o in grouped)


def test_a_scan_in_a_scan_has_its_own_plan():
    found = profiler(scans_in_scans)
    inner = [op for op in found.body.ops if is_loop(op)]
    assert [loop_of(found.body, op).length for op in inner] == [4]
    nested = [s for step in found.steps() for s in step.schedule if s.kind == "nest"]
    assert any(child.loop is not None for s in nested for child in s.children)


@pytest.mark.parametrize("fn", [layers, scans_in_scans])
def test_loops_are_evaluated_as_jax_makes_them(fn):
    program = traced(fn, W, X)
    rules = Rules(program.graph, CPU)
    planner = Planner(program.graph, rules)
    seen = 0
    for curve in planner.curves:
        for point in range(0, len(curve.points), max(len(curve.points) // 6, 1)):
            schedule = curve.schedule(point)
            if any(s.kind == "nest" for s in schedule):
                continue  # a checkpoint around a whole scan: JAX runs it once more than need be
            made = StepProgram(rules, planner.cuts.free).loss_timeline(schedule)
            emitter = make_emitter(program.graph, schedule)
            step = GradientStep(lambda *values, run=emitter: run(values), program.call.differentiated)
            found = evaluate(jax.make_jaxpr(step)(*program.call.structs), CPU)
            assert made.peak_bytes == pytest.approx(found.peak_bytes, rel=0.005), schedule
            assert made.seconds == pytest.approx(found.seconds, rel=0.01), schedule
            seen += any(s.loop is not None for s in schedule)
    assert seen >= 1


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
        ours = plan(layers, W, X, budget=kept.baseline_peak_bytes, target="cpu")
        assert ours.compiled_peak_bytes <= kept.baseline_peak_bytes
        assert ours.step_flops <= 1.001 * kept.step_flops


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
    assert theirs.plain_peak_bytes == pytest.approx(ours.baseline_peak_bytes, rel=0.01)
    assert theirs.plain_flops == pytest.approx(ours.plain_flops, rel=0.01)
    kept = rp.plan(by_hand, W, X, budget="100%", target="cpu", existing="keep")
    assert kept.baseline_peak_bytes == theirs.baseline_peak_bytes < 0.6 * ours.baseline_peak_bytes
    assert rp.plan(inside, W, X, budget="100%", target="cpu").plain_flops == pytest.approx(ours.plain_flops, rel=0.01)
    small = jnp.ones((12, 64, 64)) / 64, jnp.ones((2048, 64))
    for fn in (by_hand, inside):
        plan = rp.plan(fn, W, X, budget=int(0.6 * ours.baseline_peak_bytes), target="cpu")
        assert plan.compiled_peak_bytes <= plan.budget_bytes
        found, wanted = jax.grad(plan.apply(fn))(*small), jax.grad(layers)(*small)
        assert jnp.allclose(found, wanted, rtol=1e-4, atol=1e-5)
