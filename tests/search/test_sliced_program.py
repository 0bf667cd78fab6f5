"""Whole programs in slices of their batch: found where they are faster, refused where a batch is one."""

import jax
import jax.numpy as jnp
import pytest

import remat_plan as rp
from remat_plan.cost.builder import Rules
from remat_plan.graph.ways import Split
from remat_plan.planning.inside import Inside
from remat_plan.planning.limits import NO_LIMITS
from remat_plan.planning.splits import SlicedProgram
from tests.helpers import CPU, assert_trees_close, traced

WIDTH, BATCH, LAYERS = 64, 512, 6
KEYS = jax.random.split(jax.random.key(0), LAYERS)
WEIGHTS = [jax.random.normal(key, (WIDTH, WIDTH)) / 8 for key in KEYS]
X = jnp.sin(jnp.arange(float(BATCH * WIDTH))).reshape(BATCH, WIDTH)
VALUE_BYTES = 4 * BATCH * WIDTH


@pytest.fixture(autouse=True)
def _small_values_are_split(monkeypatch):
    monkeypatch.setattr("remat_plan.planning.splits.LEAST_SLICE_BYTES", VALUE_BYTES // 8)


def perceptron(ws, x):
    for w in ws:
        x = jnp.tanh(jnp.sin(x) @ w)
    return jnp.mean(jnp.square(x))


def two_sums(ws, x):
    for w in ws:
        x = jnp.tanh(jnp.sin(x) @ w)
    return jnp.mean(jnp.square(x)), jnp.mean(jnp.cos(x))


def normalised(ws, x):
    """The batch is one: what is made of a part of it depends on all."""
    for w in ws:
        x = x @ w
        x = jnp.tanh((x - x.mean(0)) / (x.std(0) + 1e-3))
    return jnp.mean(jnp.square(x))


def scanned(ws, x):
    x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(jnp.sin(x) @ w), None), x, ws)
    return jnp.mean(jnp.square(x))


def ways_in(plan):
    return [s.way for s in plan.schedule if isinstance(s.way, Split)]


def check(plan, loss, ws):
    (way,) = ways_in(plan)
    assert way.slices in (2, 4, 8)
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    assert_trees_close(jax.jit(jax.value_and_grad(plan.apply(loss)))(ws, X), jax.jit(jax.value_and_grad(loss))(ws, X))


def test_it_is_chosen_where_nothing_else_is_as_fast():
    plan = rp.plan(perceptron, WEIGHTS, X, budget="45%")
    check(plan, perceptron, WEIGHTS)
    assert plan.overhead < 0.5 * rp.plan(perceptron, WEIGHTS, X, budget="45%", never_split=True).overhead


def test_it_is_chosen_of_a_loss_that_is_the_root_of_a_sum():
    def loss(ws, x):
        return jnp.sqrt(perceptron(ws, x))

    check(rp.plan(loss, WEIGHTS, X, budget="45%"), loss, WEIGHTS)


def test_it_is_chosen_of_a_loss_beside_what_training_steps_hand_on():
    """Logits of all the batch, and how often they are right."""

    def loss(ws, x):
        for w in ws:
            x = jnp.tanh(jnp.sin(x) @ w)
        logits = x[:, :10]
        return jnp.mean(jnp.square(x)), {"logits": logits, "right": jnp.mean(jnp.argmax(logits, -1) == 3)}

    plan = rp.plan(loss, WEIGHTS, X, budget="45%", has_aux=True)
    (way,) = ways_in(plan)
    assert way.gradient_first
    assert plan.compiled_peak_bytes <= plan.budget_bytes
    ours, plain = (jax.jit(jax.value_and_grad(fn, has_aux=True)) for fn in (plan.apply(loss), loss))
    assert_trees_close(ours(WEIGHTS, X), plain(WEIGHTS, X))


def test_it_is_chosen_where_nothing_else_fits():
    ws = jnp.stack(WEIGHTS)
    check(rp.plan(scanned, ws, X, budget="35%"), scanned, ws)
    with pytest.raises(rp.BudgetError):
        rp.plan(scanned, ws, X, budget="35%", never_split=True)


def test_slices_are_as_many_as_the_budget_needs():
    few, many = (rp.plan(perceptron, WEIGHTS, X, budget=share, verify=False) for share in ("60%", "45%"))
    assert ways_in(few)[0].slices < ways_in(many)[0].slices
    assert max(few.predicted_peak_bytes / few.budget_bytes, many.predicted_peak_bytes / many.budget_bytes) <= 1


def test_below_what_slices_reach_less_is_kept_of_one():
    """Products alone, of each of eight slices."""
    most = sliced(perceptron, WEIGHTS, X).schedules(8)
    assert len(most) > 1
    least = rp.plan(perceptron, WEIGHTS, X, strategy=most[0]).compiled_peak_bytes
    plan = rp.plan(perceptron, WEIGHTS, X, budget=int(0.97 * least))
    check(plan, perceptron, WEIGHTS)
    (way,) = ways_in(plan)
    ((_, choice),) = [made for segment in way.sliced for made in segment.choices]
    assert choice.gradient_first
    assert any(segment.checkpointed for segment in choice.parts[0].schedule)
    assert plan.compiled_peak_bytes <= 1.03 * plan.predicted_peak_bytes


def test_of_slices_that_fit_all_is_kept():
    plan = rp.plan(perceptron, WEIGHTS, X, budget="45%", verify=False)
    (way,) = ways_in(plan)
    ((_, choice),) = [made for segment in way.sliced for made in segment.choices]
    assert not any(segment.checkpointed for segment in choice.parts[0].schedule)


def sliced(fn, *args):
    program = traced(fn, *args)
    return SlicedProgram(Inside(Rules(program.graph, CPU), NO_LIMITS))


def test_numbers_of_slices():
    assert sliced(perceptron, WEIGHTS, X).counts == (2, 4, 8)
    assert sliced(perceptron, WEIGHTS, X[:510]).counts == (2,)  # so many divide it
    assert sliced(perceptron, WEIGHTS, X[:120]).counts == ()


def test_what_is_no_loss_or_ties_the_batch_together_stays_whole():
    tied = sliced(normalised, WEIGHTS, X)
    assert all(tied.schedules(slices) == () for slices in tied.counts)
    ratio = sliced(lambda ws, x: two_sums(ws, x)[0] / two_sums(ws, x)[1], WEIGHTS, X)
    assert all(ratio.schedules(slices) == () for slices in ratio.counts)
    plan = rp.plan(normalised, WEIGHTS, X, budget="60%", verify=False)
    assert ways_in(plan) == []


def test_where_nothing_need_be_recomputed_it_is_not_asked(monkeypatch):
    monkeypatch.setattr(SlicedProgram, "schedules", lambda *_: pytest.fail("it was"))
    rp.plan(perceptron, WEIGHTS, X, budget="100%", verify=False, strategy="auto")
    rp.plan(perceptron, WEIGHTS, X, budget="60%", verify=False, strategy="memory")
