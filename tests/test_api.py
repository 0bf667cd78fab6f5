"""``rp.plan``, ``rp.remat`` and their kin as a user meets them."""

import functools
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_plan as rp
from remat_plan.plans import book
from remat_plan.results.curves import TradeoffPoint
from remat_plan.small.budget import format_bytes
from tests.helpers import assert_trees_close

pytestmark = pytest.mark.usefixtures("quick_search")

LAYERS, BATCH, WIDTH = 6, 512, 32


def array(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def loss(w, x):
    for i in range(LAYERS):
        x = jnp.tanh(x @ w[i])
    return jnp.mean(x**2)


W, X = array(LAYERS, WIDTH, WIDTH, seed=1) / 6, array(BATCH, WIDTH, seed=2)
SHAPES = jax.ShapeDtypeStruct(W.shape, W.dtype), jax.ShapeDtypeStruct(X.shape, X.dtype)


@functools.cache
def predicted(budget):
    """The plan of ``loss`` by predictions: searching for it takes a second, a strategy by name a twentieth of that."""
    return rp.plan(loss, *SHAPES, budget=budget, verify=False)


def compiled_bytes(fn, *args):
    """What XLA says the gradient step of a function needs, compiled as a user would."""
    step = jax.jit(jax.value_and_grad(fn), compiler_options=rp.compiler_options())
    stats = step.lower(*args).compile().memory_analysis()
    own = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return own + stats.temp_size_in_bytes


@pytest.mark.parametrize("budget", ["60%", *(pytest.param(b, marks=pytest.mark.slow) for b in ("70%", "90%"))])
def test_the_users_own_step_fits(budget):
    plan = rp.plan(loss, *SHAPES, budget=budget)
    assert not plan.is_identity
    assert plan.compiled_peak_bytes <= plan.budget_bytes < plan.written_peak_bytes
    assert compiled_bytes(plan.apply(loss), W, X) <= plan.budget_bytes * 1.001
    assert compiled_bytes(loss, W, X) == pytest.approx(plan.written_peak_bytes, rel=0.001)
    assert 0 <= plan.lower_bound <= plan.overhead
    assert plan.gap == plan.overhead - plan.lower_bound
    assert plan.budget == budget
    assert len(plan.fingerprint) == 16


def test_shapes_and_arrays_give_the_same_plan():
    given = [rp.plan(loss, *args, budget="70%", verify=False) for args in ((W, X), (np.asarray(W), X))]
    assert given[0] == given[1] == predicted("70%")


def test_more_memory_is_never_slower():
    plans = [predicted(f"{b}%") for b in (60, 70, 85, 100)]
    assert all(p.predicted_peak_bytes <= p.budget_bytes for p in plans)
    overheads = [p.overhead for p in plans]
    assert all(a >= b - 1e-9 for a, b in zip(overheads, overheads[1:], strict=False)), overheads
    assert plans[-1].is_identity


@pytest.mark.filterwarnings("ignore:remat_plan. the cost of primitive")
def test_nothing_is_computed():
    """Planning traces and compiles; it must not run the function."""
    ran = []

    def counted(w, x):
        jax.debug.callback(lambda: ran.append(1))
        return loss(w, x)

    rp.plan(counted, W, X, budget="80%")
    jax.effects_barrier()
    assert not ran


@pytest.fixture
def plans_made(monkeypatch):
    """Counts the plans that are made."""
    made = []
    original = book.plan_program

    def counting(*args, **kwargs):
        made.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(book, "plan_program", counting)
    return made


def test_remat_plans_once_per_shapes(plans_made):
    f = rp.remat(loss, strategy="each_block", verify=False, argnums=0)
    assert not plans_made, "nothing happens before the first call"
    step = jax.jit(jax.value_and_grad(f))
    step(W, X)
    assert len(plans_made) == 1
    step(W, X + 1)
    jax.grad(f)(W, X)
    jax.vmap(f, (None, 0))(W, jnp.stack([X, X]))
    jax.jit(lambda w, x: f(w, jnp.sin(x)))(W, X)
    assert len(plans_made) == 1, "same program, same plan"
    step(W, X[:256])
    assert len(plans_made) == 2
    step(W, X)
    step(W, X[:256])
    f(W.astype(jnp.bfloat16), X.astype(jnp.bfloat16))
    assert len(plans_made) == 3
    assert len(f.plans) == 3
    assert all(isinstance(p, rp.Plan) for p in f.plans.values())


def test_another_static_argument_is_another_program(plans_made):
    @rp.remat(strategy="each_block", verify=False, static_argnums=2)
    def f(w, x, name, train):
        for i in range(LAYERS):
            x = getattr(jnp, name)(x @ w[i])
        return jnp.mean(x) * (2.0 if train else 1.0)

    f(W, X, "tanh", True)
    f(W, X, "tanh", True)
    assert len(plans_made) == 1
    f(W, X, "sin", True)
    f(W, X, "sin", False)
    assert len(plans_made) == 3


def test_a_jitted_step_is_traced_once():
    traces = []

    def counted(w, x):
        traces.append(1)
        return loss(w, x)

    f = rp.remat(counted, strategy="each_block", verify=False)
    step = jax.jit(jax.value_and_grad(f))
    step(W, X)
    first = len(traces)
    for i in range(3):
        step(W, X + i)
    assert len(traces) == first
    assert step._cache_size() == 1


def test_budgets_of_all_kinds_agree():
    share = predicted("70%")
    size = int(share.written_peak_bytes * 0.7)
    kinds = [float(size), f"{size / 1024!r} KiB", np.int64(size)]
    plans = [share, *(rp.plan(loss, *SHAPES, budget=b, verify=False) for b in kinds)]
    assert len({p.schedule for p in plans}) == 1
    assert {p.budget_bytes for p in plans} <= {size, size - 1}


def test_argnums_change_what_is_planned():
    only = rp.plan(loss, W, X, strategy="each_block", verify=False)
    both = rp.plan(loss, W, X, strategy="each_block", verify=False, argnums=(0, 1))
    assert only.fingerprint != both.fingerprint
    assert only.plain_timeline.owned_bytes + X.nbytes == both.plain_timeline.owned_bytes
    assert both.argnums == (0, 1)
    f = both.apply(loss)
    assert_trees_close(jax.grad(f, (0, 1))(W, X), jax.grad(loss, (0, 1))(W, X))
    assert_trees_close(jax.grad(f, 1)(W, X), jax.grad(loss, 1)(W, X))


def test_negative_and_numpy_argnums():
    plan = rp.plan(loss, W, X, strategy="each_block", verify=False, argnums=np.int64(-1))
    assert plan.argnums == (-1,)
    rp.Plan.from_json(plan.to_json()).apply(loss)(W, X)


def test_aux_keywords_and_static_values():
    def fn(p, batch, *, train, scale=1.0):
        x, labels = batch
        hidden = []
        for i in range(LAYERS):
            x = jnp.tanh(x @ p["w"][i])
            hidden.append(jnp.mean(x))
        return jnp.mean(x) * scale + jnp.sum(labels) * 0, {"hidden": hidden, "train": train, "labels": labels}

    args = {"w": W, "unused": None}, (X, jnp.arange(3))
    plan = rp.plan(fn, *args, strategy="each_block", has_aux=True, kwargs={"train": True, "scale": 2.0})
    assert not plan.is_identity
    planned = plan.apply(fn)
    for transform in (lambda f: f, jax.jit):
        got = transform(jax.value_and_grad(functools.partial(planned, train=True, scale=2.0), has_aux=True))(*args)
        want = transform(jax.value_and_grad(functools.partial(fn, train=True, scale=2.0), has_aux=True))(*args)
        assert bool(got[0][1].pop("train")) is bool(want[0][1].pop("train")) is True
        assert_trees_close(got, want)
    with pytest.raises(ValueError, match="another program"):
        planned(*args, train=True)


def test_outputs_are_arrays_as_from_jit():
    f = rp.remat(lambda v: (jnp.sin(v), (2.0, 3, v, np.arange(2))), budget="1GB", has_aux=True, verify=False)
    got = f(3.0)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(got))
    want = jax.jit(lambda v: (jnp.sin(v), (2.0, 3, v, np.arange(2))))(3.0)
    assert [jax.typeof(x) for x in jax.tree.leaves(got)[:4]] == [jax.typeof(x) for x in jax.tree.leaves(want)[:4]]


@pytest.mark.slow
def test_the_users_own_checkpoints():
    layer = jax.checkpoint(lambda w, x: jnp.tanh(jnp.sin(x @ w) @ w))

    def fn(w, x):
        for i in range(LAYERS):
            x = layer(w[i], x)
        return jnp.mean(x)

    kept = rp.plan(fn, W, X, budget="1GB", verify=False, existing="keep")
    anew = rp.plan(fn, W, X, budget="1GB", verify=False)
    assert kept.written_peak_bytes == anew.written_peak_bytes < anew.plain_peak_bytes
    tight = rp.plan(fn, W, X, budget=kept.written_peak_bytes, verify=False)
    assert not tight.is_identity
    assert tight.predicted_peak_bytes <= kept.written_peak_bytes
    for plan in (kept, anew, tight):
        assert_trees_close(jax.grad(plan.apply(fn))(W, X), jax.grad(fn)(W, X))


def test_a_large_closed_over_array_counts_once():
    table = array(BATCH, WIDTH, seed=5)

    def fn(w, x):
        return loss(w, x + table)

    plan = rp.plan(fn, W, X, strategy="each_block")
    assert not plan.is_identity
    assert_trees_close(jax.jit(jax.grad(plan.apply(fn)))(W, X), jax.grad(fn)(W, X))


@pytest.mark.full_search
@pytest.mark.parametrize("options", [{}, {"goal": "time"}])
def test_a_function_that_computes_nothing_is_left_as_it_is(options):
    door = rp.plan if options else rp.tradeoff
    found = door(lambda x: x, jnp.float32(2.0), **options)
    assert (found.overhead if options else found.points[0].overhead) == 0


def test_tradeoff():
    curve = rp.tradeoff(loss, *SHAPES, points=8)
    peaks = [p.peak_bytes for p in curve.points]
    overheads = [p.overhead for p in curve.points]
    assert peaks == sorted(peaks)
    assert overheads == sorted(overheads, reverse=True)
    assert overheads[-1] <= 0.0  # what keeps less may be faster than the plain step
    assert len(peaks) >= 4
    plan = curve.plan("70%", verify=False)
    direct = rp.plan(loss, *SHAPES, budget="70%", verify=False)
    assert plan == direct


def test_a_curve_has_several_points():
    for points, error in (("8", TypeError), (1.5, TypeError), (True, TypeError), (1, ValueError)):
        with pytest.raises(error, match="give an integer of at least 2"):
            rp.tradeoff(loss, *SHAPES, points=points)


def test_shares_of_a_curve_are_of_the_plain_step_where_that_is_beaten():
    def free(ws, x):
        def body(x, w):
            return x + jnp.tanh(jnp.sin(x) * jnp.cos(x @ w)), None

        return jnp.mean(jax.lax.scan(body, x, ws)[0] ** 2)

    args = jax.ShapeDtypeStruct((8, 32, 32), "float32"), jax.ShapeDtypeStruct((4096, 32), "float32")
    curve = rp.tradeoff(free, *args, points=8)
    plain = rp.plan(free, *args, budget="200%", verify=False).plain_peak_bytes
    assert curve.plain == TradeoffPoint(plain, 0.0)
    assert curve.written_peak_bytes == plain
    assert curve.plain not in curve.points  # what is recomputed fits between transfers
    assert curve.free == curve.points[-1]
    assert curve.free.peak_bytes < plain
    assert curve.points[0].peak_bytes < 0.5 * plain
    note = f"The plain step needs {format_bytes(plain)}; recomputing down to {format_bytes(curve.free.peak_bytes)} is"
    assert note in str(curve)
    assert note in curve._repr_html_()
    assert f"{curve.free.peak_bytes / plain:.1%}" in str(curve)
    assert json.loads(curve.to_json())["plain"] == {"peak_bytes": plain, "overhead": 0.0, "host_bytes": 0}
    assert pickle.loads(pickle.dumps(curve)) == curve


@pytest.mark.slow
@pytest.mark.full_search
def test_no_row_of_a_curve_looks_beaten():
    curve = rp.tradeoff(loss, *SHAPES)
    assert curve.free is None
    assert curve.points[-1] == curve.plain
    rows = [(format_bytes(p.peak_bytes), f"{p.overhead:.1%}") for p in curve.points[:-1]]
    assert len({peak for peak, _ in rows}) == len({overhead for _, overhead in rows}) == len(rows)


def test_analyze_compiles_nothing(monkeypatch):
    monkeypatch.setattr("remat_plan.verify.compile.compile_memory", None)
    analysis = rp.analyze(loss, *SHAPES)
    hidden = BATCH * WIDTH * 4
    assert analysis.minimum_residual_bytes == pytest.approx(LAYERS * hidden + LAYERS * WIDTH * WIDTH * 4, rel=0.2)
    assert analysis.saved_bytes >= analysis.minimum_residual_bytes


def test_no_more_has_to_be_saved_than_plain_jax_saves():
    """The mask of a relu is a quarter of what it follows from."""
    analysis = rp.analyze(lambda w, x: jnp.sum(jax.nn.relu(x @ w)), jnp.ones((8, 8)), jnp.ones((64, 8)))
    assert analysis.saved_bytes == analysis.minimum_residual_bytes == 64 * 8
    sizes = [r.size_bytes for r in analysis.residuals]
    assert sizes == sorted(sizes, reverse=True)
    assert any("test_api.py" in r.source for r in analysis.residuals)


def test_compiler_options_are_accepted_by_jit():
    options = rp.compiler_options()
    assert isinstance(options, dict)
    assert jax.jit(jnp.sin, compiler_options=options)(1.0) == jnp.sin(1.0)


@pytest.mark.slow
def test_half_precision_and_x64():
    half = rp.plan(loss, W.astype(jnp.bfloat16), X.astype(jnp.bfloat16), budget="80%", verify=False)
    assert half.predicted_peak_bytes <= half.budget_bytes
    with jax.enable_x64(True):
        w, x = jnp.asarray(W, jnp.float64), jnp.asarray(X, jnp.float64)
        plan = rp.plan(loss, w, x, strategy="each_block")
        assert not plan.is_identity
        got = jax.jit(jax.grad(plan.apply(loss)))(w, x)
        assert got.dtype == jnp.float64
        assert_trees_close(got, jax.grad(loss)(w, x), 1e-9, 1e-12)


@pytest.mark.slow
def test_training_goes_as_without():
    f = rp.remat(loss, strategy="each_block")

    def train(f, w):
        step = jax.jit(lambda w, x: w - 0.5 * jax.grad(f)(w, x))
        for i in range(5):
            w = step(w, X + 0.01 * i)
        return w

    assert_trees_close(train(f, W), train(loss, W), 1e-4, 1e-5)


def test_plans_print():
    plan = predicted("70%")
    text = str(plan)
    assert "test_api.py" in text
    assert "70" in text
    assert plan.strategy == "auto"
    before, after = plan.plain_timeline, plan.planned_timeline
    assert before.peak_bytes == plan.written_peak_bytes
    assert after.peak_bytes == plan.predicted_peak_bytes


def test_a_decorated_function_can_be_planned_again():
    f = rp.remat(loss, strategy="memory", verify=False)
    plan = rp.plan(f, W, X, strategy="each_block", verify=False)
    assert not plan.is_identity
    assert plan.written_peak_bytes < 0.85 * plan.plain_peak_bytes, "what the first plan left"
    assert_trees_close(jax.grad(plan.apply(f))(W, X), jax.grad(loss)(W, X))


def test_partial_functions_and_callable_objects():
    class Loss:
        def __call__(self, w, x):
            return loss(w, x)

    for fn in (
        functools.partial(loss, W),
        functools.partial(loss, x=X),
        Loss(),
        lambda *args: loss(*args),
        jax.jit(loss),
    ):
        args = (W, X)
        if isinstance(fn, functools.partial):
            args = (X,) if fn.args else (W,)
        plan = rp.plan(fn, *args, strategy="each_block", verify=False)
        assert_trees_close(jax.grad(plan.apply(fn))(*args), jax.grad(fn)(*args))
        f = rp.remat(fn, strategy="memory", verify=False)
        assert_trees_close(jax.grad(f)(*args), jax.grad(fn)(*args))
