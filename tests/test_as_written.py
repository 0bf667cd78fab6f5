"""Functions with ``jax.checkpoint`` regions of their own: they are the baseline, and a plan is never worse."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import remat_plan as rp
from remat_plan.cli.main import main
from remat_plan.graph.schedule import WRITTEN
from remat_plan.report.plans import summary_line
from remat_plan.small.budget import format_bytes
from tests.helpers import assert_trees_close, count_equations, few

pytestmark = pytest.mark.usefixtures("quick_search")

LAYERS = 4
SHAPES = jax.ShapeDtypeStruct((LAYERS, 32, 32), "float32"), jax.ShapeDtypeStruct((1024, 32), "float32")
VALUES = jax.random.normal(jax.random.key(0), (LAYERS, 32, 32)) / 6, jnp.ones((1024, 32))
POLICIES = {
    "all": None,
    "dots": jax.checkpoint_policies.dots_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("hidden"),
}


def layer(x, w):
    hidden = checkpoint_name(jax.nn.gelu(jnp.sin(x @ w)), "hidden")
    return x + jnp.tanh(hidden @ w.T)


def make(kind, policy):
    """A loss of ``layer`` without remat (``policy`` is "none"), or with the user's own, unrolled, scanned or nested."""
    step = layer if policy == "none" else jax.checkpoint(layer, policy=POLICIES[policy])

    def body(x, w):
        return step(x, w), None

    def steps(x, ws):
        return lax.scan(body, x, ws)[0]

    def unrolled(w, x):
        for i in range(LAYERS):
            x = step(x, w[i])
        return jnp.mean(x**2)

    def scanned(w, x):
        return jnp.mean(lax.scan(body, x, w)[0] ** 2)

    def nested(w, x):
        outer = steps if policy == "none" else jax.checkpoint(steps)
        return jnp.mean(lax.scan(lambda x, ws: (outer(x, ws), None), x, w.reshape(2, LAYERS // 2, 32, 32))[0] ** 2)

    return {"unrolled": unrolled, "scanned": scanned, "nested": nested}[kind]


def of_xla(loss):
    step = jax.jit(jax.value_and_grad(loss), compiler_options=rp.compiler_options("cpu"))
    memory = step.lower(*SHAPES).compile().memory_analysis()
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


@pytest.fixture(scope="module")
def curves():
    """One session for each loss: curves whose plans share all compiles."""
    found = {}

    def curve(kind, policy):
        if (kind, policy) not in found:
            found[kind, policy] = rp.tradeoff(make(kind, policy), *SHAPES, target="cpu", points=4)
        return found[kind, policy]

    return curve


CASES = [("unrolled", "dots"), ("scanned", "all"), ("nested", "names")]


@pytest.mark.parametrize(("kind", "policy"), few(CASES, CASES[:2]))
def test_the_baseline_is_the_function_as_written(curves, kind, policy):
    plan = curves(kind, policy).plan("100%")
    assert plan.written_peak_bytes == pytest.approx(of_xla(make(kind, policy)), abs=256)
    assert plan.plain_peak_bytes == pytest.approx(of_xla(make(kind, "none")), rel=0.01)
    assert plan.budget_bytes == plan.written_peak_bytes < plan.plain_peak_bytes
    assert plan.plain_flops < plan.written_flops


def reach(curve, budget):
    """The plan for a budget; where it cannot be met, the one for the least that can, which is not above the baseline."""
    try:
        return curve.plan(budget)
    except rp.BudgetError as error:
        least = error.minimum_bytes
    plan = curve.plan(least)
    assert least <= plan.written_peak_bytes
    return plan


BUDGETS = ("50%", "90%", "100%", "middle", "1GB")
QUICK = [("unrolled", "dots", b) for b in ("middle", "1GB")] + [("scanned", "all", "100%")]
ALL = [(*case, b) for case in CASES for b in BUDGETS]


@pytest.mark.parametrize(("kind", "policy", "budget"), few(ALL, QUICK))
def test_no_plan_is_worse_than_the_function_as_written(curves, kind, policy, budget):
    loss, curve = make(kind, policy), curves(kind, policy)
    if budget == "middle":
        given = curve.plan("100%")
        budget = (given.written_peak_bytes + given.plain_peak_bytes) // 2
    plan = reach(curve, budget)
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    assert plan.compiled_peak_bytes == pytest.approx(of_xla(plan.apply(loss)), abs=256)
    if plan.compiled_peak_bytes >= plan.written_peak_bytes and not plan.is_written:
        assert plan.overhead <= plan.written_overhead
        assert plan.is_identity or any("faster" in note for note in plan.notes)
    found, wanted = (jax.value_and_grad(f)(*VALUES) for f in (plan.apply(loss), loss))
    assert_trees_close(found, wanted)
    again = rp.Plan.from_json(plan.to_json())
    assert again == plan
    assert_trees_close(jax.grad(again.apply(loss))(*VALUES), wanted[1])


@pytest.mark.parametrize("kind", [pytest.param("unrolled", marks=pytest.mark.slow), "scanned"])
def test_what_nothing_beats_is_left_as_written(kind):
    """One whole checkpoint of the kind that the planner makes itself, at its own peak."""
    loss = make(kind, "all")
    plan = rp.plan(loss, *SHAPES, budget="100%", verify=False, target="cpu")
    if not plan.is_written:
        assert (plan.overhead, plan.step_flops) < (plan.written_overhead, plan.written_flops)
    forced = dataclasses.replace(plan, schedule=WRITTEN, decisions=(dataclasses.replace(plan.decisions[0], count=1),))
    assert forced.is_written
    assert rp.Plan.from_json(forced.to_json()) == forced
    given, run = (jax.make_jaxpr(f)(*SHAPES) for f in (loss, forced.apply(loss)))
    for name in ("remat2", "checkpoint"):
        assert count_equations(run.jaxpr, name) == count_equations(given.jaxpr, name)
    assert_trees_close(jax.grad(forced.apply(loss))(*VALUES), jax.grad(loss)(*VALUES))
    batch = jnp.stack([VALUES[1], 2 * VALUES[1]])
    both = jax.jit(jax.vmap(jax.grad(forced.apply(loss)), (None, 0)))(VALUES[0], batch)
    assert_trees_close(both, jax.vmap(jax.grad(loss), (None, 0))(VALUES[0], batch))


def test_a_scan_is_left_as_written_and_says_so(curves):
    plan = curves("scanned", "all").plan("100%")
    assert plan.is_written
    assert not plan.is_identity
    assert plan.compiled_peak_bytes == plan.written_peak_bytes
    assert plan.overhead == plan.written_overhead
    assert plan.step_flops == plan.written_flops
    shown = str(plan)
    assert "left as written, with its own jax.checkpoint regions" in shown.replace("\n        ", " ")
    assert "left as written" in shown.splitlines()[-1]
    assert "schedules were compiled" not in shown


@pytest.mark.slow
def test_what_is_closed_over_may_be_traced():
    loss = make("scanned", "all")

    @jax.jit
    def outer(w, x, scale):
        inner = rp.remat(lambda w: scale * loss(w, x), budget="100%", verify=False)
        return jax.grad(inner)(w)

    assert_trees_close(outer(*VALUES, 3.0), jax.grad(lambda w: 3.0 * loss(w, VALUES[1]))(VALUES[0]))


def test_both_peaks_are_shown(curves):
    curve = curves("unrolled", "dots")
    plan = curve.plan("90%")
    figures = [format_bytes(plan.written_peak_bytes), format_bytes(plan.plain_peak_bytes)]
    for shown in (str(plan), plan._repr_html_()):
        for text in (*figures, "peak as written", "plain peak", "overhead as written", f"{plan.written_overhead:.1%}"):
            assert text in shown
    assert f"{figures[0]} as written, {figures[1]} plain" in summary_line(plan)
    assert "of written" in str(curve)
    assert f"as written {format_bytes(curve.written.peak_bytes)}" in str(curve)
    assert json.loads(curve.to_json())["written"]["overhead"] == plan.written_overhead
    found = rp.compare(make("unrolled", "dots"), *SHAPES, budgets=["90%"], strategies=["auto"], target="cpu")
    assert (found.written_peak_bytes, found.plain_peak_bytes) == (plan.written_peak_bytes, plan.plain_peak_bytes)
    assert f"peak as written {figures[0]}, plain peak {figures[1]}" in str(found)
    assert "of written" in found._repr_html_()


def test_other_functions_have_one_peak():
    plan = rp.plan(make("unrolled", "none"), *SHAPES, budget="90%", verify=False)
    assert not plan.has_own_remat
    assert plan.plain_peak_bytes == plan.written_peak_bytes
    assert (plan.written_overhead, plan.written_flops) == (None, None)
    assert "written" not in str(plan).replace("test_as_written.py", "")
    kept = rp.plan(make("unrolled", "all"), *SHAPES, budget="100%", verify=False, existing="keep")
    assert not kept.has_own_remat
    assert kept.plain_peak_bytes == kept.written_peak_bytes
    assert kept.is_identity


def test_strategies_by_name_and_constraints_do_what_they_promise():
    loss = make("scanned", "all")
    named = rp.plan(loss, *SHAPES, strategy="everything", verify=False)
    assert named.predicted_peak_bytes > named.written_peak_bytes
    assert "peak as written" in str(named)
    large = SHAPES[0], jax.ShapeDtypeStruct((1 << 17, 32), "float32")  # fresh memory takes longer than the work
    assert rp.plan(loss, *large, budget="1GB", verify=False).is_written
    assert rp.plan(loss, *large, budget="1GB", never_recompute=["scan"], verify=False).is_identity


def test_a_planned_function_is_planned_again_from_what_it_needs():
    inner = rp.remat(make("unrolled", "none"), budget="60%", verify=False)
    plain = rp.plan(make("unrolled", "none"), *SHAPES, budget="60%", verify=False)
    plan = rp.plan(inner, *SHAPES, budget="100%", verify=False)
    assert plan.written_peak_bytes == pytest.approx(plain.predicted_peak_bytes, rel=0.01)
    assert plan.plain_peak_bytes == plain.written_peak_bytes
    assert plan.overhead <= plain.overhead + 1e-6


@pytest.mark.slow
def test_the_command_line_shows_both(tmp_path, capsys):
    source = tmp_path / "own.py"
    source.write_text(
        "import jax, jax.numpy as jnp\n"
        "layer = jax.checkpoint(lambda x, w: jnp.tanh(jnp.sin(x @ w) @ w))\n"
        "def loss(w, x):\n"
        "    for _ in range(4):\n"
        "        x = layer(x, w)\n"
        "    return jnp.sum(x)\n"
        "def problem():\n"
        "    S = jax.ShapeDtypeStruct\n"
        "    return loss, (S((16, 16), 'float32'), S((512, 16), 'float32'))\n"
    )
    assert main(["plan", f"{source}:problem", "--budget", "100%", "--no-verify"]) == 0
    assert "peak as written" in capsys.readouterr().out
